"""Writing charts, manifest and report.

python -m stages.report
"""

from pathlib import Path

from minitrain.core.errors import run_stage
from minitrain.report.publish import publish
from minitrain.report.read import Project

DATA = Path("data")
PROJECT = Project(
    params=Path("params.yaml"),
    shards=DATA / "shards",
    runs=DATA / "runs",
    baseline=DATA / "baseline",
    metrics=Path("metrics"),
)


def main() -> None:
    publish(PROJECT)


if __name__ == "__main__":
    run_stage(main)
