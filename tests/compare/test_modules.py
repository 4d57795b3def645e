"""The first module, by the order of execution, whose output differs."""

from collections.abc import Callable
from functools import partial
from itertools import cycle
from math import inf, isnan
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import alter, rows_of, write
from recorded_loops import batch, loss_of, steps
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from minitrain.cli.recording_words import recordings_in_words
from minitrain.compare.difference import What
from minitrain.compare.modules import ModulesCompared
from minitrain.compare.recordings import RecordingsCompared, compare_recordings
from minitrain.compare.step_causes import share_apart
from minitrain.recording.alarm import Row
from minitrain.recording.fingerprint import fingerprint
from minitrain.recording.format import read_recording

NUM = 6


class Attention(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return self.spoil(super().forward(x))

    def spoil(self, y: Tensor) -> Tensor:
        return y


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.mlp = Attention(6, 6), nn.Sequential(nn.Linear(6, 6), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attn(x) + self.mlp(x)


class Blocks(nn.Module):
    """Six blocks, each run again within backward, and a part that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(NUM))
        self.out = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.out(self.out(x)).sum(-1)


Fault = Callable[[Blocks], None]


def right(_: Any) -> None:
    """Plants nothing."""


def wrong(model: Blocks) -> None:
    model.blocks[3].attn.spoil = lambda y: 1.01 * y


def without_attention(by: float, model: Blocks) -> None:
    """What a block computes between its modules: the input of what comes next."""
    model.blocks[3].forward = lambda x: model.blocks[3].mlp(by * x)


def second(model: Blocks) -> None:
    factors = cycle([1.0, 1.01])
    model.out.register_forward_hook(lambda module, args, y: next(factors) * y)


def record(
    folder: Path,
    fault: Fault = right,
    lr: float = 0.1,
    seeds: tuple[int, int] = (0, 1),
    **more: object,
) -> Path:
    torch.manual_seed(0)
    model = Blocks()
    fault(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    options = {"modules": True} | more
    for step in steps(folder, model, optimizer, 2, **options):
        loss_of(model, batch(seeds[step])).backward()
    return folder


def named(found: RecordingsCompared) -> tuple[str, int, int, bool | None]:
    one = found.modules
    assert one.step == 0
    return one.module, one.place, one.call, one.same_inputs


def not_read(row: Row) -> None:
    for call in row["modules"]:
        call["inputs"]["hash"] = ""


between = [partial(without_attention, by) for by in (1.0, 1.01)]


# a block ends five calls: attn, mlp.0, mlp.1, mlp and its own
@pytest.mark.parametrize(
    ("faults", "change", "expected", "line"),
    [
        ([right, wrong], right, ("blocks.3.attn", 16, 1, True), "agree"),
        (
            [right, wrong],
            not_read,
            ("blocks.3.attn", 16, 1, None),
            "cannot be compared",
        ),
        ([right, second], right, ("out, call 2 of it", 32, 2, True), "agree"),
        (between, right, ("blocks.3.mlp.0", 16, 1, False), "differ already"),
    ],
)
def test_the_module_with_the_fault_is_named(
    tmp_path: Path, faults: list[Fault], change: Any, expected: Any, line: str
) -> None:
    a, b = (record(tmp_path / name, of) for name, of in zip("ab", faults, strict=True))
    alter(b, 0, change)
    found = compare_recordings(a, b)
    name, place, *_ = expected
    assert named(found) == (name.partition(",")[0], *expected[1:])
    text = recordings_in_words(found)
    assert f"output differs at step 0: {name} ({place} of " in text
    assert f"; its inputs {line}" in text


def test_outputs_of_which_both_runs_have_infinities_are_not_different() -> None:
    masked = [fingerprint(torch.tensor([-torch.inf, x])) for x in (3.1, 3.2)]
    finite = fingerprint(torch.tensor([1.0, 3.1]))
    assert isnan(share_apart(*masked))
    assert share_apart(masked[0], finite) == inf
    assert share_apart(masked[0], masked[0]) == 0


def test_where_all_modules_agree_the_difference_is_elsewhere(tmp_path: Path) -> None:
    a, same = (record(tmp_path / name) for name in ("a", "same"))
    found = compare_recordings(a, same)
    assert (found.verdict, found.modules.module) == ("equal bits", "")
    assert "module" not in recordings_in_words(found)
    found = compare_recordings(a, record(tmp_path / "b", lr=0.2))
    assert found.modules == ModulesCompared(0, 5 * NUM + 2)
    line = "the outputs of 32 calls of modules agree at step 0: the difference comes"
    assert line in recordings_in_words(found)


def test_other_data_is_no_matter_of_modules(tmp_path: Path) -> None:
    b = record(tmp_path / "b", seeds=(0, 7))
    found = compare_recordings(record(tmp_path / "a"), b)
    assert (found.first.what, found.first.step) == (What.DATA, 1)
    assert found.modules is None


def test_rounding_before_does_not_hide_the_module(tmp_path: Path) -> None:
    def apart(model: Blocks) -> None:
        with torch.no_grad():
            model.blocks[0].attn.weight.mul_(1 + 1e-6)

    def both(model: Blocks) -> None:
        apart(model)
        wrong(model)

    sound = record(tmp_path / "a")
    found = compare_recordings(sound, record(tmp_path / "b", both))
    assert named(found) == ("blocks.3.attn", 16, 1, True)
    alone = compare_recordings(sound, record(tmp_path / "c", apart)).modules
    assert alone.module == "blocks.0.attn"


def test_module_that_differs_on_one_rank(tmp_path: Path) -> None:
    a, b, spoilt = (
        record(tmp_path / name, fault)
        for name, fault in (("a", right), ("b", right), ("c", wrong))
    )
    for folder, other in ((a, a), (b, spoilt)):
        for rank, (head, *rest) in enumerate([rows_of(folder), rows_of(other)]):
            write(folder, [head | {"rank": rank, "world_size": 2}, *rest], rank)
    assert compare_recordings(a, b).modules.module == "blocks.3.attn"


def test_off_by_default_and_under_compile(tmp_path: Path) -> None:
    plain, asked = record(tmp_path / "a", modules=False), record(tmp_path / "b")
    assert compare_recordings(plain, asked).modules is None
    rows = [read_recording(one).ranks[0] for one in (plain, asked)]
    first = [one.steps[0, 0] for one in rows]
    assert "modules" not in first[0]
    assert {**first[0]} == {k: v for k, v in first[1].items() if k != "modules"}
    model = Blocks()
    compiled = torch.compile(model, backend="eager")
    for step in steps(tmp_path / "c", compiled, num_steps=2, modules=True):
        loss_of(compiled, batch(step)).backward()
    one = read_recording(tmp_path / "c").ranks[0]
    assert [row["rule"] for row in one.alarms] == ["modules"]
    assert all("modules" not in row for row in one.steps.values())
    assert not any(m._forward_hooks for m in model.blocks.modules())


class Odd(nn.Module):
    """A model that begins with what a hook cannot see, or must not break."""

    def __init__(self, begin: "Begin") -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.begin = begin(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.last(self.begin(x))).sum(-1)


Begin = Callable[[Odd], Callable[[Tensor], Tensor]]


def scripted(model: Odd) -> Callable[[Tensor], Tensor]:
    model.inner = torch.jit.trace(nn.Sequential(model.inner), torch.ones(1, 6))
    return lambda x: model.inner(x)


def calling_with(value: object, model: Odd) -> Callable[[Tensor], Tensor]:
    model.inner = nn.Identity()
    return lambda x: (x, model.inner(value))[0]


def compiled(model: Odd) -> Callable[[Tensor], Tensor]:
    return torch.compile(lambda x: model.inner(x), backend="eager", fullgraph=True)


def compiled_beside(model: Odd) -> Callable[[Tensor], Tensor]:
    """What it calls is compiled, and none of it."""
    held = [torch.compile(model.inner, backend="eager", fullgraph=True)]
    return lambda x: held[0](x)


class Settings(dict[str, Any]):
    """Attributes are entries; another is a KeyError."""

    __getattr__ = dict.__getitem__


def settings_beside(model: Odd) -> Callable[[Tensor], Tensor]:
    model.settings = Settings(width=1)
    return model.inner


infinite = torch.full((8,), torch.inf)


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize(
    ("begin", "calls", "known"),
    [
        (scripted, "last last", 2),
        (partial(calling_with, (infinite, -infinite)), "inner last last", 3),
        # of a meta tensor nothing can be read
        (partial(calling_with, torch.ones(2, device="meta")), "inner last last", 2),
        (compiled, "", 0),
        (compiled_beside, "last last", 2),
        (settings_beside, "inner last last", 3),
    ],
)
def test_models_that_hooks_must_not_break(
    tmp_path: Path, begin: Begin, calls: str, known: int
) -> None:
    for name in "ab":
        torch.manual_seed(0)
        model = Odd(begin)
        for step in steps(tmp_path / name, model, num_steps=2, modules=True):
            loss_of(model, batch(step)).backward()
        assert called_in(tmp_path / name) == calls.split()
    found = compare_recordings(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "equal bits"
    assert (found.modules.num if found.modules else 0) == known


def called_in(folder: Path) -> list[str]:
    row = read_recording(folder).ranks[0].steps[0, 0]
    return [call["module"] for call in row.get("modules", ())]


def failing(model: Odd) -> Callable[[Tensor], Tensor]:
    def begin(x: Tensor) -> Tensor:
        x = model.last(x)
        if x.isnan().any():
            raise ZeroDivisionError
        return x

    return begin


def test_pass_that_failed_leaves_neither_calls_nor_hooks(tmp_path: Path) -> None:
    model = Odd(failing)
    for step in steps(tmp_path, model, num_steps=3, modules=True, every=10):
        loss_of(model, batch(step)).backward()
        with pytest.raises(ZeroDivisionError):
            model(torch.full((2, 6), torch.nan))
    assert called_in(tmp_path) == ["last"] * 3
    assert not model.last._forward_hooks
