"""Which code made a result that is kept in git, and whether there is newer code."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from minitrain.core.files import read_json
from minitrain.core.provenance import code_sha256, measured_where


@dataclass(frozen=True)
class Made:
    """A result: the script that measured it, and the hash of its code, the machine and
    the time that were recorded beside it. ``code`` is None where nobody recorded it.
    """

    script: Path
    code: str | None
    origin: Mapping[str, Any]

    @property
    def outdated(self) -> bool:
        """Whether other code would measure today, or nobody knows."""
        return self.code is None or self.code != code_sha256(self.script)


def made_in_study(study: Path) -> list[Made]:
    """What the stages of ``study`` measured: those that read no output of another."""
    stages = YAML(typ="safe").load((study / "dvc.yaml").read_text("utf-8"))["stages"]
    outs = {name: [*map(_path, stage["outs"])] for name, stage in stages.items()}
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
    """What the stages ``train`` and ``baseline`` measured, by the manifest."""
    return [
        Made(
            root / "stages" / f"{stage}.py",
            manifest.get(f"{key}code_sha256"),
            {**manifest, "measured_at": manifest[f"{key}measured_at"]},
        )
        for stage, key in (("train", ""), ("baseline", "baseline_"))
    ]


def label(made: list[Made], again: str) -> str:
    """A paragraph for the page that shows the results; ``again`` measures them anew."""
    lines = []
    for one in made:
        code = f"code {one.code[:12]}" if one.code else "code that nobody recorded"
        where = measured_where(one.origin) if "machine" in one.origin else ""
        lines.append(f"- `{one.script.name}`: made by {code}. {where}".rstrip())
    if any(one.outdated for one in made):
        lines.append(f"- Newer code may give other numbers: `{again}` measures again.")
    return "\n".join(lines) + "\n"


def _path(out: str | Mapping[str, Any]) -> str:
    return out if isinstance(out, str) else next(iter(out))
