"""The loops of examples/ as their users start them, each with a recording."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from project import ROOT, environment

LOOPS = ("nanogpt_style", "with_accelerate", "with_fabric", "with_trainer")
# the frameworks are no part of the environment that the tests themselves run in
PEERS = ROOT / ".venv-peers/bin/python"


def run_loop(
    name: str, world_size: int, folder: Path, *arguments: str, **variables: str
) -> str:
    """Record one run of examples/``name``.py into ``folder``: alone as a plain script,
    else by torchrun. Returns what it printed to stderr.
    """
    plain = name == "nanogpt_style"
    if not plain and not PEERS.exists():
        pytest.skip("no .venv-peers; make test makes it")
    python = Path(sys.executable) if plain else PEERS
    command = [python, ROOT / f"examples/{name}.py", folder, *arguments]
    if world_size > 1:
        torchrun = ["-m", "torch.distributed.run", "--standalone"]
        command[1:1] = [*torchrun, f"--nproc-per-node={world_size}"]
    # the hub of Hugging Face is for those who want a model of another's
    own = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **variables}
    # torchrun leaves a folder behind
    with TemporaryDirectory() as temporary:
        done = subprocess.run(
            command,
            cwd=folder.parent,
            env=environment(**own, TMPDIR=temporary),
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stderr
