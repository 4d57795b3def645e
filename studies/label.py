"""Write into the README of every study, and of the project, which code made its result.

python studies/label.py

Where there is newer code, it says that too; tests/project/test_published.py wants it
to be so.
"""

from pathlib import Path

from minitrain.analysis.made_by import label, made_by_pipeline, made_in_study
from minitrain.core.errors import run_stage
from minitrain.core.files import read_json
from minitrain.report.render import write_marked

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    for folder, text in labels().items():
        write_marked(folder / "README.md", "made-by", text)


def labels() -> dict[Path, str]:
    """What belongs into the README of each folder."""
    manifest = read_json(ROOT / "metrics" / "manifest.json")
    texts = {ROOT: ""}
    if manifest.get("verdict") != "breach":
        texts[ROOT] = label(made_by_pipeline(ROOT, manifest), "make")
    for file in sorted(ROOT.glob("studies/*/dvc.yaml")):
        study = file.parent
        texts[study] = label(made_in_study(study), f"make study-{study.name}")
    return texts


if __name__ == "__main__":
    run_stage(main)
