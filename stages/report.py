"""Writing charts, manifest and report.

python -m stages.report
"""

from pathlib import Path

from minitrain.core.errors import run_stage
from minitrain.report.publish import publish


def main() -> None:
    publish(Path())


if __name__ == "__main__":
    run_stage(main)
