"""Write into every README which code made its result, and if there is newer code."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from minitrain.core.errors import run_stage
from minitrain.core.files import read_json
from minitrain.core.provenance import code_sha256, measured_where
from minitrain.report.render import write_marked

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    for folder, text in labels().items():
        write_marked(folder / "README.md", "made-by", text)


def labels() -> dict[Path, str]:
    """What belongs into the README of each folder."""
    manifest = read_json(ROOT / "metrics" / "manifest.json")
    texts = {ROOT: label(made_by_pipeline(ROOT, manifest), "make")}
    for study in sorted(file.parent for file in ROOT.glob("studies/*/dvc.yaml")):
        texts[study] = label(made_in_study(study), f"make study-{study.name}")
    return texts


@dataclass(frozen=True)
class Made:
    """A result: its script, the hash of its code if recorded, and its provenance."""

    script: Path
    code: str | None
    origin: Mapping[str, Any]

    @property
    def outdated(self) -> bool:
        """Whether the code has changed since, or was not recorded."""
        return self.code is None or self.code != code_sha256(self.script)


def made_in_study(study: Path) -> list[Made]:
    """Return the results of the stages that read no output of another stage."""
    stages = YAML(typ="safe").load((study / "dvc.yaml").read_text("utf-8"))["stages"]
    outs = {
        name: [o if isinstance(o, str) else next(iter(o)) for o in stage["outs"]]
        for name, stage in stages.items()
    }
    written = {path for paths in outs.values() for path in paths}
    found = []
    for name, stage in stages.items():
        if written.isdisjoint(stage["deps"]):
            script = study / stage["cmd"].split()[-1]
            files = [study / path for path in outs[name] if path.endswith(".json")]
            origin = read_json(files[0]) if files and files[0].is_file() else {}
            origin = origin.get("provenance", origin)
            found.append(Made(script, origin.get("code_sha256"), origin))
    return found


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
    """Return a paragraph for a README; ``again`` is the command that measures anew."""
    lines = []
    for one in made:
        code = f"code {one.code[:12]}" if one.code else "code that nobody recorded"
        where = measured_where(one.origin) if "machine" in one.origin else ""
        lines.append(f"- `{one.script.name}`: made by {code}. {where}".rstrip())
    if any(one.outdated for one in made):
        lines.append(f"- Newer code may give other numbers: `{again}` measures again.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_stage(main)
