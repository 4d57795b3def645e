"""The loops of examples/, each with a recording: as users start them, or by forks."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from forked_loops import ForkedLoops
from mutated import servers
from project import ROOT, environment

# what each imports that is slow
LOOPS = {
    "nanogpt_style": (),
    "with_accelerate": ("accelerate.utils",),
    "with_fabric": ("lightning_fabric",),
    "with_trainer": ("transformers.trainer", "transformers.models.gpt2.modeling_gpt2"),
}
# the frameworks are no part of the environment that the tests themselves run in
PEERS = ROOT / ".venv-peers/bin/python"
Run = Callable[..., str]


def python_of(name: str) -> Path:
    plain = name == "nanogpt_style"
    if not plain and not PEERS.exists():
        pytest.skip("no .venv-peers; make test makes it")
    return Path(sys.executable) if plain else PEERS


def variables_of(temporary: str, **variables: str) -> dict[str, str]:
    # the hub of Hugging Face is for those who want a model of another's
    own = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TMPDIR": temporary}
    return environment(**own, **variables)


def script_of(name: str) -> Path:
    return ROOT / f"examples/{name}.py"


def run_as_users_do(name: str, world_size: int, folder: Path, *arguments: str) -> None:
    """Record one run of examples/``name``.py into ``folder``: alone as a plain script,
    else by torchrun.
    """
    command = [script_of(name), folder, *arguments]
    if world_size > 1:
        torchrun = ["-m", "torch.distributed.run", "--standalone"]
        command[:0] = [*torchrun, f"--nproc-per-node={world_size}"]
    # torchrun leaves a folder behind
    with TemporaryDirectory() as temporary:
        done = subprocess.run(
            [python_of(name), *command],
            cwd=folder.parent,
            env=variables_of(temporary),
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert done.returncode == 0, done.stderr[-4000:]


def loops_by_fork() -> Iterator[Run]:
    """``run(name, world_size, folder, *arguments, **variables)`` records one run into
    ``folder`` and returns what it printed. For a fixture of a module.
    """

    started: dict[str, ForkedLoops] = {}

    def run(
        name: str, world_size: int, folder: Path, *arguments: str, **variables: str
    ) -> str:
        if name not in started:
            started[name] = ForkedLoops(python_of(name), LOOPS[name], ROOT)
            servers.add(started[name].process.pid)
        with TemporaryDirectory() as temporary:
            said = Path(temporary, "said")
            try:
                code = started[name].run(
                    [script_of(name), folder, *arguments],
                    world_size,
                    folder.parent,
                    variables_of(temporary, **variables),
                    said,
                )
            except BaseException:
                # its answer would be taken for that to the next run
                started.pop(name).kill()
                raise
            text = said.read_text(errors="replace")
        assert code == 0, text[-4000:]
        return text

    yield run
    for forks in started.values():
        forks.stop()
