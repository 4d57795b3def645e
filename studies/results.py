"""Results kept in git, and their provenance."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from minitrain.core.files import read_json
from minitrain.core.provenance import code_sha256


@dataclass(frozen=True)
class Made:
    """Result of the pipeline: its script, the hash of its code if recorded, and its
    provenance.
    """

    script: Path
    code: str | None
    origin: Mapping[str, Any]

    @property
    def outdated(self) -> bool:
        """True if the code has changed since, or was not recorded."""
        return self.code is None or self.code != code_sha256(self.script)


def made_by_pipeline(root: Path, manifest: Mapping[str, Any]) -> list[Made]:
    """Return the results of stages ``train`` and ``baseline``, by the manifest."""
    return [
        Made(
            root / "stages" / f"{stage}.py",
            manifest.get(f"{key}code_sha256"),
            {**manifest, "measured_at": manifest[f"{key}measured_at"]},
        )
        for stage, key in (("train", ""), ("baseline", "baseline_"))
    ]


def measured_in(study: Path) -> dict[str, Mapping[str, Any]]:
    """Return the provenance of each measurement of ``study`` by script, for stages that
    depend on its ``code.lock``; empty without a result.
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
