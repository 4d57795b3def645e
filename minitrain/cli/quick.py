"""The pipeline with few steps and rounds in a copy of the project: a first look.

    python -m minitrain.cli.quick

The copy is ``.dvc/tmp/quick``: neither params.yaml nor a result of the project changes.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from ruamel.yaml import YAML

from minitrain.cli.private_cache import make_private_cache
from minitrain.core.errors import UserError, run_stage
from minitrain.core.files import open_atomic
from minitrain.core.params import load_params

COPY = Path(".dvc/tmp/quick")
FILES = ("dvc.yaml", ".dvcignore", "requirements.lock", ".dvc/config")
# results of studies in metrics/, which the report shows
STUDIED = ("collectives.csv", "hosts.*", "ladder.*", "zoo.json")
FEW = {
    "train": {"num_steps": 20, "num_epochs": None, "num_warmup_steps": 5},
    "baseline": {"num_rounds": 5},
}
# keys with paths; of the user's files, which are not copied, they become absolute
OWN = (("corpus", "source"), ("model", "file"), ("model", "deps"))


def main() -> None:
    """Run the pipeline, shortened, in a copy of the project; UserError if it fails."""
    load_params(Path("params.yaml"))
    for name in ("minitrain", "stages", "studies"):
        shutil.rmtree(COPY / name, ignore_errors=True)
    for name in ("minitrain", "stages"):
        shutil.copytree(name, COPY / name, ignore=shutil.ignore_patterns("__pycache__"))
    studied = [file for name in STUDIED for file in Path("metrics").glob(name)]
    # the report states whether this code has changed
    code = Path("studies").rglob("*.py")
    for file in [*map(Path, FILES), *studied, *code]:
        (COPY / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, COPY / file)
    _write_params(COPY / "params.yaml")
    make_private_cache(COPY)
    # the copy is not in git
    dvc = [sys.executable, "-P", "-m", "dvc"]
    subprocess.run([*dvc, "config", "core.no_scm", "true"], cwd=COPY, check=True)
    # the user's own packages are in the root of the project
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), os.getcwd())))
    own = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([*dvc, "repro"], cwd=COPY, env=own)
    if done.returncode:
        raise UserError(f"{COPY}: the quick pipeline failed, as the lines above say")


def _write_params(file: Path) -> None:
    yaml = YAML()
    params = yaml.load(Path("params.yaml").read_text("utf-8"))
    for section, values in FEW.items():
        params[section].update(values)
    for section, key in OWN:
        path = params[section][key]
        if path and not path.startswith("minitrain/"):
            params[section][key] = str(Path(path).resolve())
    with open_atomic(file) as stream:
        yaml.dump(params, stream)


if __name__ == "__main__":
    run_stage(main)
