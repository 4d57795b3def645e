"""Write into every README when, where and by which code its result was measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from minitrain.core.errors import run_stage
from minitrain.core.files import read_json
from minitrain.core.provenance import code_sha256, measured_where
from minitrain.report.render import write_marked
from minitrain.report.studied import since_then

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    for folder, text in labels().items():
        write_marked(folder / "README.md", "made-by", text)


def labels() -> dict[Path, str]:
    """What belongs into the README of each folder."""
    manifest = read_json(ROOT / "metrics" / "manifest.json")
    texts = {ROOT: label(made_by_pipeline(ROOT, manifest), "make")}
    for study in sorted(file.parent for file in ROOT.glob("studies/*/dvc.yaml")):
        texts[study] = label_of_study(study)
    return texts


@dataclass(frozen=True)
class Made:
    """A result of the pipeline: its script, the hash of its code if it was recorded,
    and its provenance.
    """

    script: Path
    code: str | None
    origin: Mapping[str, Any]

    @property
    def outdated(self) -> bool:
        """Whether the code has changed since, or was not recorded."""
        return self.code is None or self.code != code_sha256(self.script)


def made_by_pipeline(root: Path, manifest: Mapping[str, Any]) -> list[Made]:
    """Return the results of the stages ``train`` and ``baseline``, by the manifest."""
    return [
        Made(
            root / "stages" / f"{stage}.py",
            manifest.get(f"{key}code_sha256"),
            {**manifest, "measured_at": manifest[f"{key}measured_at"]},
        )
        for stage, key in (("train", ""), ("baseline", "baseline_"))
    ]


def label(made: list[Made], again: str) -> str:
    """Return a paragraph for a README; ``again`` is the command that repeats it."""
    lines = []
    for one in made:
        code = f"code {one.code[:12]}" if one.code else "code that was not recorded"
        where = measured_where(one.origin) if "machine" in one.origin else ""
        lines.append(f"- `{one.script.name}`: made by {code}. {where}".rstrip())
    if any(one.outdated for one in made):
        lines.append(f"- Newer code may give other numbers: `{again}` measures again.")
    return "\n".join(lines) + "\n"


def measured_in(study: Path) -> dict[str, Mapping[str, Any]]:
    """Return the provenance of each measurement of ``study`` by its script: of the
    stages that depend on its ``code.lock``. It is empty where there is no result.
    """
    stages = YAML(typ="safe").load((study / "dvc.yaml").read_text("utf-8"))["stages"]
    found = {}
    for stage in stages.values():
        if "code.lock" in stage["deps"]:
            outs = [next(iter(out)) for out in stage["outs"]]
            files = [study / name for name in outs if name.endswith(".json")]
            origin = read_json(files[0]) if files and files[0].is_file() else {}
            script = stage["cmd"].split()[-1]
            found[script] = origin.get("provenance", origin)
    return found


def label_of_study(study: Path) -> str:
    """Return the label for the README of ``study``, a folder in studies/."""
    lines = []
    for script, origin in measured_in(study).items():
        where = measured_where(origin) if "machine" in origin else "Not measured."
        lines.append(f"- `{script}`: {where} {since_then(study.parents[1], origin)}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_stage(main)
