"""Write into every README when, where and with which code its result was measured.

python -m studies.label [STUDY ...]   (only these studies' READMEs)
"""

import sys
from pathlib import Path

from minitrain.core.errors import run_stage
from minitrain.core.files import read_json
from minitrain.core.provenance import measured_where
from minitrain.report.render import write_marked
from minitrain.report.study_results import since_then
from studies.results import Made, made_by_pipeline, measured_in

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    named = {ROOT / "studies" / name for name in sys.argv[1:]}
    for folder, text in labels().items():
        if not named or folder in named:
            write_marked(folder / "README.md", "made-by", text)


def labels() -> dict[Path, str]:
    """Return the label of each README, by folder."""
    manifest = read_json(ROOT / "metrics" / "manifest.json")
    texts = {ROOT: label(made_by_pipeline(ROOT, manifest), "make")}
    for study in sorted(file.parent for file in ROOT.glob("studies/*/dvc.yaml")):
        texts[study] = label_of_study(study)
    return texts


def label(made: list[Made], again: str) -> str:
    """Format the label of pipeline results; ``again`` is the command to repeat."""
    lines = []
    for one in made:
        code = f"code {one.code[:12]}" if one.code else "code that was not recorded"
        where = measured_where(one.origin) if "machine" in one.origin else ""
        lines.append(f"- `{one.script.name}`: made by {code}. {where}".rstrip())
    if any(one.outdated for one in made):
        lines.append(f"- Newer code may give other numbers: `{again}` measures again.")
    return "\n".join(lines) + "\n"


def label_of_study(study: Path) -> str:
    """Return the label for the README of ``study``, a folder in studies/."""
    lines = []
    for script, origin in measured_in(study).items():
        where = measured_where(origin) if "machine" in origin else "Not measured."
        lines.append(f"- `{script}`: {where} {since_then(study.parents[1], origin)}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_stage(main)
