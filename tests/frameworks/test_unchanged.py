"""Scripts that were not changed, under ``minitrain record FOLDER -- COMMAND``."""

import os
import re
import signal
import sys
from pathlib import Path
from subprocess import CompletedProcess
from textwrap import indent

import pytest
from example_loops import (
    LOOPS,
    MINITRAIN,
    Run,
    assert_equal_rows,
    python_of,
    record,
    run_command,
    script_of,
    torchrun,
)
from one_line import refusal
from project import ROOT
from thorough import thorough_after
from torch import nn

from minitrain.cli.main import run
from minitrain.recording import recorder
from minitrain.recording import unchanged as unchanged_script
from minitrain.recording.format import read_recording

TRAINS = """
import torch
from torch import nn
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def by_command(text: str, folder: Path, *options: str) -> "CompletedProcess[str]":
    script = folder / "train.py"
    script.write_text(text)
    return record(folder / "run", [sys.executable, script], *options, given="given\n")


def unchanged(name: str, folder: Path) -> Path:
    """The example without the lines that were added for the recording."""
    text = script_of(name).read_text()
    with_block = re.sub(
        r"^with minitrain.record.*# added.*$", "if True:", text, flags=re.M
    )
    script = folder / f"{name}.py"
    script.write_text(re.sub(r"^.*# added.*\n", "", with_block, flags=re.M))
    return script


@pytest.mark.parametrize(
    ("name", "world_size"),
    thorough_after(1, [(name, size) for name in LOOPS for size in (2, 1)]),
)
def test_recording_is_the_same_as_with_the_lines(
    name: str, world_size: int, by_fork: Run, tmp_path: Path
) -> None:
    by_fork(name, world_size, tmp_path / "changed")
    command = [python_of(name), *torchrun(world_size, tmp_path)]
    command += [unchanged(name, tmp_path), "unused"]
    done = record(tmp_path / "same", command)
    assert done.returncode == 0, done.stderr[-4000:]
    assert_equal_rows(tmp_path / "changed", tmp_path / "same", world_size)


# libraries search for torch before it is imported, some of them twice: this must not
# stop the recording
SEARCHES = """
import importlib.util, os, signal, sys
assert importlib.util.find_spec("torch") and importlib.util.find_spec("torch")
"""
ECHOES = 'print(sys.stdin.read(), end="")\n'


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("sys.exit(7)", 7),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("raise ValueError('mine')", 1),
    ],
)
def test_exit_code_signal_and_streams_are_the_commands_own(
    end: str, code: int, tmp_path: Path
) -> None:
    done = by_command(SEARCHES + TRAINS + ECHOES + end, tmp_path)
    assert (done.returncode, done.stdout) == (code, "given\n"), done.stderr
    assert ("ValueError: mine" in done.stderr) == (code == 1)
    (rank,) = read_recording(tmp_path / "run").ranks.values()
    # a run that an error or a signal ended is not whole
    assert (len(rank.steps), rank.end) == (3, None)


IN_CHILDREN = f"""
import os
import torch.multiprocessing as mp

def main(number, error):
{indent(TRAINS, "    ")}
    if error is not None:
        raise error

if __name__ == "__main__":
    os.environ["WORLD_SIZE"] = "2"
    for rank, error in enumerate([None, ValueError()]):
        os.environ["RANK"] = str(rank)
        try:
            mp.start_processes(main, (error,), start_method="fork")
        except mp.ProcessRaisedException:
            pass
"""


def test_process_of_multiprocessing_has_an_end_unless_it_failed(tmp_path: Path) -> None:
    """A fork runs no function of atexit, and torch hides the error."""
    done = by_command(IN_CHILDREN, tmp_path)
    assert done.returncode == 0, done.stderr
    ranks = read_recording(tmp_path / "run").ranks
    assert [len(ranks[rank].steps) for rank in range(2)] == [3, 3]
    assert [ranks[rank].end is not None for rank in range(2)] == [True, False]


GROUP = """
import torch.distributed as dist
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
"""
FSDP = f"""{GROUP}
from torch.distributed.fsdp import FullyShardedDataParallel
model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
"""


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (FSDP, "record: model is in FullyShardedDataParallel"),
        ("open('run', 'w').close()", "FileExistsError"),
    ],
)
def test_training_that_cannot_be_recorded_is_one_line_and_goes_on(
    change: str, line: str, tmp_path: Path
) -> None:
    text = TRAINS.replace("optimizer =", f"{change}\noptimizer =", 1)
    done = by_command(f"{text}print('trained')", tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    lines = [one for one in done.stderr.splitlines() if one.startswith("minitrain")]
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"minitrain: nothing is recorded: {line}")
    assert not (tmp_path / "run").is_dir()


def test_error_of_the_recorder_ends_the_training_only_where_ranks_wait_for_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError("a folder on this host")

    def start() -> str:
        settings = {"folder": tmp_path / "run", "timeout_s": 1.0}
        unchanged_script._record(nn.Linear(2, 2), settings)
        return capsys.readouterr().err

    monkeypatch.setattr(recorder, "Writer", refused)
    assert "nothing is recorded: PermissionError" in start()
    monkeypatch.setattr(recorder.hooks, "is_sharded", lambda model: True)
    with pytest.raises(PermissionError):
        start()


PARTED = f"""{GROUP}
from torch.distributed.fsdp import fully_shard
fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
"""


@pytest.mark.parametrize("end", ["", "dist.destroy_process_group()"])
def test_sharded_model_has_an_end(end: str, tmp_path: Path) -> None:
    """Its parameters are gathered before its group is destroyed, or at the exit."""
    text = TRAINS.replace("optimizer =", f"{PARTED}optimizer =", 1)
    done = by_command(text + end, tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    rank = read_recording(tmp_path / "run").ranks[0]
    assert (len(rank.steps), "parameters" in rank.end) == (3, True)


def test_script_without_torch_is_untouched(tmp_path: Path) -> None:
    """The user's sitecustomize is run."""
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 3\n")
    code = "import sys; print(mine, 'torch' in sys.modules, 'minitrain' in sys.modules)"
    command = [*MINITRAIN, "record", "run", "--", sys.executable, "-c", code]
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = run_command(command, tmp_path, PYTHONPATH=path)
    assert (done.stdout, done.stderr) == ("3 False False\n", "")
    assert not (tmp_path / "run").exists()


def test_parameters_outside_the_recorded_model_are_counted(tmp_path: Path) -> None:
    more = "other = nn.Linear(2, 2)\nsecond = torch.optim.SGD(other.parameters())\n"
    text = TRAINS.replace("for _", f"{more}for _")
    text = text.replace("nn.Linear(4, 4)", "nn.Sequential(nn.Linear(4, 4))")
    done = by_command(text, tmp_path, "--modules")
    note = "note: 2 of 4 parameters of the optimizers are not in Sequential: use"
    assert note in done.stderr
    rows = read_recording(tmp_path / "run").ranks[0].steps.values()
    assert {call["module"] for row in rows for call in row["modules"]} == {"0"}
    said = "minitrain: recorded 6 steps, the first three and each 10-th"
    assert done.stderr.splitlines()[-1].startswith(said)


OWN = """
class Own(nn.Linear):
    def forward(self, inputs):
        return 2 * super().forward(inputs)
model = torch.compile(Own(4, 4), backend="eager")
"""


def test_compiled_model_is_recorded_once(tmp_path: Path) -> None:
    text = TRAINS.replace("model = nn.Linear(4, 4)", OWN)
    done = by_command(f"{text}import sys\nsys.exit(0)\n", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "nothing is recorded" not in done.stderr
    end = read_recording(tmp_path / "run").ranks[0].end
    assert end is not None
    assert end["forwards"] == 6


def test_older_torch_is_one_line_and_the_run_goes_on(tmp_path: Path) -> None:
    older = "from torch.torch_version import TorchVersion\n"
    older += "torch.__version__ = TorchVersion('2.8.1')\nmodel ="
    done = by_command(TRAINS.replace("model =", older, 1), tmp_path)
    line = "nothing is recorded: torch 2.8.1: minitrain needs 2.9 or newer"
    assert (done.returncode, done.stderr) == (0, f"minitrain: {line}\n")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run"], "no command; minitrain record FOLDER -- COMMAND"),
        (["run", "--", "no-such-program"], "no-such-program: no such command"),
        (["run", "--", "a.py"], "a.py: no such command; try python a.py"),
        (["--every", "0", "run", "--", "true"], "--every = 0: must be at least 1"),
        (["--timeout", "0", "run", "--", "true"], "--timeout = 0: must be above 0"),
        (["file", "--", "true"], "file: must be a folder with write permission"),
        (["full", "--", "true"], "full: has a recording; name another folder"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_the_command_runs(
    arguments: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/rank-0.jsonl").touch()
    # the command would replace this process
    monkeypatch.setattr(os, "execvpe", None)
    assert line in refusal(run, ["record", *arguments])
