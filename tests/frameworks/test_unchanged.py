"""Scripts that were not changed, under ``minitrain record FOLDER -- COMMAND``."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest
import torch
from example_loops import (
    LOOPS,
    MINITRAIN,
    assert_equal_rows,
    python_of,
    record,
    run_as_users_do,
    run_command,
    script_of,
    torchrun,
)
from project import ROOT
from thorough import thorough_after
from torch import nn

from minitrain.recording import recorder
from minitrain.recording import unchanged as unchanged_script
from minitrain.recording.format import read_recording


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
    thorough_after(2, [("nanogpt_style", 2), ("with_trainer", 1)])
    + thorough_after(0, [(name, size) for name in LOOPS for size in (1, 2)]),
)
def test_recording_is_the_same_as_with_the_lines(
    name: str, world_size: int, tmp_path: Path
) -> None:
    run_as_users_do(name, world_size, tmp_path / "changed")
    command = [python_of(name), *torchrun(world_size, tmp_path)]
    command += [unchanged(name, tmp_path), "unused"]
    done = record(tmp_path / "same", command)
    assert done.returncode == 0, done.stderr[-4000:]
    assert_equal_rows(tmp_path / "changed", tmp_path / "same", world_size)


# libraries search for torch before it is imported, some of them twice: this must not
# stop the recording
TRAINS = """
import importlib.util, os, signal, sys
assert importlib.util.find_spec("torch") and importlib.util.find_spec("torch")
import torch
from torch import nn
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print(sys.stdin.read(), end="")
{end}
"""
GOES_ON = """
try:
    sys.exit(3)
except SystemExit:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("sys.exit(0)", 0),
        ("sys.exit(7)", 7),
        (GOES_ON, 0),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("raise ValueError('mine')", 1),
    ],
)
def test_exit_code_signal_and_streams_are_the_commands_own(
    end: str, code: int, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINS.format(end=end))
    done = record(tmp_path / "run", [sys.executable, script], given="given\n")
    assert (done.returncode, done.stdout) == (code, "given\n"), done.stderr
    assert ("ValueError: mine" in done.stderr) == (code == 1)
    (rank,) = read_recording(tmp_path / "run").ranks.values()
    # a run that an error or a signal ended is not whole
    assert (len(rank.steps), rank.end is not None) == (3, code == 0)


IN_A_CHILD = """
import sys
import torch.multiprocessing as mp
def main(rank, error):
{trains}
    if error is not None:
        raise error
if __name__ == "__main__":
    error = {end}
    if "spawn" == "{start}":
        mp.spawn(main, (error,))
    else:
        mp.get_context("{start}").Process(target=main, args=(0, error)).start()
"""


@pytest.mark.parametrize(
    ("start", "end", "is_whole"),
    [
        ("spawn", "None", True),
        ("spawn", "ValueError()", False),
        ("fork", "SystemExit(0)", True),
        ("fork", "ValueError()", False),
    ],
)
def test_process_of_multiprocessing_has_an_end_unless_it_failed(
    start: str, end: str, is_whole: bool, tmp_path: Path
) -> None:
    """A fork runs no function of atexit, and torch's spawn hides the error."""
    trains = TRAINS.format(end="").partition("print(")[0].replace("\n", "\n    ")
    script = tmp_path / "train.py"
    script.write_text(IN_A_CHILD.format(trains=trains, start=start, end=end))
    record(tmp_path / "run", [sys.executable, script])
    rank = read_recording(tmp_path / "run").ranks[0]
    assert (len(rank.steps), rank.end is not None) == (3, is_whole)


FSDP = """
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
"""


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("model = torch.jit.script(model)", "RuntimeError: register_forward_pre_hook"),
        (FSDP, "record: model is in FullyShardedDataParallel"),
        ("open('run', 'w').close()", "FileExistsError"),
    ],
)
def test_training_that_cannot_be_recorded_is_one_line_and_goes_on(
    change: str, line: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    text = TRAINS.format(end="print('trained')")
    script.write_text(text.replace("optimizer =", f"{change}\noptimizer =", 1))
    done = record(tmp_path / "run", [sys.executable, script])
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    lines = [one for one in done.stderr.splitlines() if one.startswith("minitrain")]
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"minitrain: nothing is recorded: {line}")


@pytest.mark.parametrize("sharded", [False, True])
def test_a_rank_does_not_go_on_while_others_wait_for_its_shards(
    sharded: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError("a folder on this host")

    monkeypatch.setattr(recorder, "Writer", refused)
    monkeypatch.setattr(recorder.rows, "is_sharded", lambda model: sharded)
    settings = {"folder": tmp_path / "run", "timeout_s": 1.0}
    if sharded:
        with pytest.raises(PermissionError):
            unchanged_script._record(nn.Linear(2, 2), settings)
    else:
        unchanged_script._record(nn.Linear(2, 2), settings)
        assert "nothing is recorded: PermissionError" in capsys.readouterr().err


def test_missing_library_of_the_recorder_does_not_end_the_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "minitrain.recording.recorder", None)
    unchanged_script._record(nn.Linear(2, 2), {"folder": "run"})
    assert "nothing is recorded: ModuleNotFoundError" in capsys.readouterr().err


PARTED = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed import destroy_process_group
from torch.distributed.fsdp import fully_shard
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
model = fully_shard(nn.Linear(4, 4), mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
{end}
"""


@pytest.mark.parametrize(
    "end",
    ["destroy_process_group()", "", "dist.distributed_c10d.destroy_process_group()"],
)
def test_sharded_model_has_an_end_without_a_process_group(
    end: str, tmp_path: Path
) -> None:
    """The last one is not the function that was patched."""
    script = tmp_path / "train.py"
    script.write_text(PARTED.format(end=end))
    done = record(tmp_path / "run", [sys.executable, script])
    assert "Traceback" not in done.stderr, done.stderr
    rank = read_recording(tmp_path / "run").ranks[0]
    assert (done.returncode, len(rank.steps)) == (0, 3)
    assert rank.end is not None
    # sharded parameters cannot be gathered without a group
    assert ("parameters" in rank.end) == (not end.startswith("dist."))


def test_optimizers_are_searched_only_for_modules_with_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not for the transforms of a data loader."""
    asked = []
    monkeypatch.setattr(nn.Module, "__call__", nn.Module.__call__)
    monkeypatch.setattr(unchanged_script, "_held", lambda: asked.append(1) or set())
    monkeypatch.setenv(unchanged_script.SETTINGS, "{}")
    unchanged_script.prepare()
    nn.Dropout()(torch.ones(2))
    nn.Linear(2, 2).requires_grad_(False)(torch.ones(2))
    assert asked == []
    # not for a module within the one that is called
    model = nn.Sequential(nn.Linear(2, 2))
    model(torch.ones(2))
    assert asked == [1]
    model(torch.ones(2))
    assert asked == [1, 1]


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
    script = tmp_path / "train.py"
    more = "other = nn.Linear(2, 2)\nsecond = torch.optim.SGD(other.parameters())\n"
    text = TRAINS.format(end="").replace("for _", f"{more}for _")
    text = text.replace("nn.Linear(4, 4)", "nn.Sequential(nn.Linear(4, 4))")
    script.write_text(text)
    done = record(tmp_path / "run", [sys.executable, script], "--modules")
    note = "note: 2 of 4 parameters of the optimizers are not in Sequential: use"
    assert note in done.stderr
    rows = read_recording(tmp_path / "run").ranks[0].steps.values()
    assert {call["module"] for row in rows for call in row["modules"]} == {"0"}
    said = "minitrain: recorded 6 steps, the first three and each 10-th"
    assert done.stderr.splitlines()[-1].startswith(said)


def test_parameters_beside_a_called_child_are_counted(tmp_path: Path) -> None:
    """The script calls a method of the model, which calls children of it."""
    text = TRAINS.format(end="").replace("nn.Linear(4, 4)", "nn.Bilinear(4, 4, 4)")
    text = text.replace("optimizer =", "model.head = nn.Linear(4, 4)\noptimizer =")
    script = tmp_path / "train.py"
    script.write_text(text.replace("model(torch", "model.head(torch"))
    done = record(tmp_path / "run", [sys.executable, script])
    note = "note: 2 of 4 parameters of the optimizers are not in Linear: use"
    assert note in done.stderr


OWN = """
class Own(nn.Linear):
    def forward(self, inputs):
        return 2 * super().forward(inputs)
model = torch.compile(Own(4, 4), backend="eager")
"""


def test_compiled_model_is_recorded_once(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINS.format(end="").replace("model = nn.Linear(4, 4)", OWN))
    done = record(tmp_path / "run", [sys.executable, script])
    assert done.returncode == 0, done.stderr
    assert "nothing is recorded" not in done.stderr
    end = read_recording(tmp_path / "run").ranks[0].end
    assert end is not None
    assert end["forwards"] == 6


def test_older_torch_is_one_line_and_the_run_goes_on(tmp_path: Path) -> None:
    script, older = tmp_path / "train.py", "torch.__version__ = TorchVersion('2.8.1')"
    older = f"from torch.torch_version import TorchVersion\n{older}\nmodel ="
    script.write_text(TRAINS.format(end="").replace("model =", older, 1))
    done = record(tmp_path / "run", [sys.executable, script])
    line = "nothing is recorded: torch 2.8.1: minitrain needs 2.9 or newer"
    assert (done.returncode, done.stderr) == (0, f"minitrain: {line}\n")


def test_folder_with_a_recording_is_refused_before_the_command_runs(
    tmp_path: Path,
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/rank-0.jsonl").touch()
    done = record(tmp_path / "run", ["touch", tmp_path / "ran"])
    assert done.returncode == 2
    assert "run: has a recording; name another folder" in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run"], "no command; minitrain record FOLDER -- COMMAND"),
        (["run", "--"], "no command; minitrain record FOLDER -- COMMAND"),
        (["run", "--", "no-such-program"], "no-such-program: no such command"),
        (["run", "--", "a.py"], "a.py: no such command; try python a.py"),
        (["--every", "0", "run", "--", "true"], "--every = 0: must be at least 1"),
        (["--timeout", "0", "run", "--", "true"], "--timeout = 0: must be above 0"),
        (["--timeout", "nan", "run", "--", "true"], "--timeout = nan: must be above 0"),
        (["file", "--", "true"], "file: must be a folder with write permission"),
        (["file/run", "--", "true"], "file: must be a folder with write permission"),
    ],
)
def test_what_cannot_be_recorded_is_one_line(
    arguments: list[str], line: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    done = run_command([*MINITRAIN, "record", *arguments], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert line in done.stderr
    assert done.stderr.count("\n") == 1
