"""Runs that resume another one from a checkpoint: the right one, and one for each part
of the state that is not restored.
"""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import output_of
from one_line import refusal
from recorded import CLASSES, Model, adamw, alter, dealt, record
from recorded_loops import Net, batch, loss_of
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

import minitrain
from minitrain.cli.main import run
from minitrain.compare.difference import Cause, What
from minitrain.compare.recordings import compare_recordings

START, STEPS, EPOCH = 6, 12, 4
Checkpoint = dict[str, Any]
Tensors = dict[str, torch.Tensor]


def train(
    folder: Path,
    saved: Checkpoint | None = None,
    *,
    lost: str = "",
    start: int = START,
    every: int = 1,
    rate: Callable[[int], float] = lambda step: 1 / (1 + step),
) -> Checkpoint:
    """Record a run, from the checkpoint that was ``saved`` where there is one, but for
    what is ``lost`` -> its checkpoint at step ``start``.
    """
    torch.manual_seed(0)
    model, ema = Net(), Net()
    optimizer = AdamW(model.parameters(), lr=0.01)
    scheduler = LambdaLR(optimizer, rate)
    scale = 2.0 ** (127 if lost == "large scale" else 10)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=3)
    parts: Checkpoint = {
        "model": model,
        "ema": ema,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scaler": scaler,
    }
    if saved is not None:
        torch.manual_seed(5)
        # an optimizer goes on with the tensors that it loads
        saved = deepcopy(saved)
        state = saved["model"]
        if lost == "buffers":
            state = {k: state[k] for k in state if "running" not in k}
        if lost == "bits":
            state = {k: 1.001 * v if v.dim() else v for k, v in state.items()}
        model.load_state_dict(state, strict=False)
        lacking = "scaler" if lost == "large scale" else lost
        for name in {*parts} - {"model", lacking}:
            parts[name].load_state_dict(saved[name])
        if lost != "random":
            torch.set_rng_state(saved["random"])
    first, made = (0 if saved is None else start), {}
    with minitrain.record(model, optimizer, folder, every=every, also={"ema": ema}):
        for step in range(first, STEPS):
            if step == start:
                states = {name: one.state_dict() for name, one in parts.items()}
                made = deepcopy(states | {"random": torch.get_rng_state()})
            by = {"position": start, "epoch": EPOCH, "order": 100 * EPOCH}.get(lost, 0)
            scaler.scale(loss_of(model, batch(step - by))).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scheduler.step()
            for mean, parameter in zip(
                ema.parameters(), model.parameters(), strict=True
            ):
                mean.data.lerp_(parameter.data, 0.1)
    return made


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Checkpoint]:
    folder = tmp_path_factory.mktemp("runs") / "straight"
    return folder, train(folder)


def test_resumed_run_is_compared_from_where_it_resumes(
    straight: tuple[Path, Checkpoint], tmp_path: Path
) -> None:
    a, saved = straight
    train(tmp_path, saved)
    for number, pair in enumerate([(a, tmp_path), (tmp_path, a)]):
        late, other = "BA"[number], "AB"[number]
        code, text = output_of("verify", *pair)
        assert code == 0
        verdict, _, *aside = text.splitlines()[:3]
        assert (
            verdict
            == f"equal bits, from step {START} of {other}: 6 recorded steps and the end"
        )
        assert aside == [f"expected difference: {late} resumes {other} at step {START}"]
    by_hand = compare_recordings(a, tmp_path, start=START)
    assert by_hand == compare_recordings(a, tmp_path)
    other_step = compare_recordings(a, tmp_path, start=START + 1)
    assert other_step.first.what == What.START
    line = refusal(run, ["verify", f"{a}", f"{tmp_path}", "--from=-1"])
    assert line.startswith("--from = -1: must be at least 0, a step of A at which B ")
    # other bytes from which come the same gradients: no lost position, nor a sure fault
    alter(tmp_path, 0, lambda row: row.update(inputs=[["0" * 16] * 5]))
    found = compare_recordings(a, tmp_path)
    assert (found.verdict, found.first.why.cause) == ("undecided", Cause.PADDED)


@pytest.mark.parametrize(
    ("lost", "step", "what", "cause"),
    [
        ("optimizer", START, What.RATE, Cause.OPTIMIZER_LOST),
        ("scheduler", START + 1, What.RATE, Cause.SCHEDULER_LOST),
        ("scaler", START, What.OWN, Cause.SCALER_LOST),
        # the new scale skips steps: no lost position
        ("large scale", START, What.DATA, Cause.NO_STEP),
        ("position", START, What.DATA, Cause.SAMPLER_LOST),
        ("epoch", START, What.DATA, Cause.SAMPLER_LOST),
        ("order", START, What.DATA, Cause.POSITION_LOST),
        ("random", START, What.OWN, Cause.RANDOM_LOST),
        ("buffers", START, What.BUFFERS, Cause.BUFFERS_LOST),
        ("ema", START, What.ALSO, Cause.ALSO_LOST),
        ("bits", -1, What.START, Cause.SEED),
    ],
)
def test_part_of_the_state_that_is_not_restored_is_named(
    lost: str,
    step: int,
    what: What,
    cause: Cause,
    straight: tuple[Path, Checkpoint],
    tmp_path: Path,
) -> None:
    a, saved = straight
    train(tmp_path, saved, lost=lost)
    found = compare_recordings(a, tmp_path)
    assert found.verdict == "different"
    first = found.first
    assert (first.step, first.what, first.why.cause) == (step, what, cause)


def test_step_that_was_not_recorded(tmp_path: Path) -> None:
    a, good, bad = (tmp_path / name for name in ("a", "good", "bad"))
    saved = train(a, start=5, every=5)
    train(good, saved, start=5, every=5)
    found = compare_recordings(a, good)
    assert found.verdict == "equal bits"
    assert [step.step for step in found.steps] == [5, 10, 11]
    saved = train(tmp_path / "again", start=6, every=5)
    train(bad, saved, start=6, every=5)
    line = f"{a}: has no recorded step in common with {bad} from step 6 on"
    assert refusal(compare_recordings, a, bad).startswith(line)


def test_run_that_may_start_between_recorded_steps_is_undecided(tmp_path: Path) -> None:
    more: dict[str, Any] = {"every": 5, "rate": lambda step: 1.0}
    saved = train(tmp_path / "a", start=8, **more)
    train(tmp_path / "b", saved, start=8, **more)
    found = compare_recordings(tmp_path / "a", tmp_path / "b")
    assert (found.verdict, {s.mark for s in found.steps}) == ("undecided", {"?"})
    assert found.first.why.facts == {"side": "B", "first": 5, "last": 10}


@pytest.mark.parametrize(("still", "start"), [((0, 1), 1), ((0, 2), 2), ((5, 9), 7)])
def test_run_that_resumes_where_nothing_moves(
    still: tuple[int, int], start: int, tmp_path: Path
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"

    def rate(step: int) -> float:
        return float(step not in range(*still))

    train(b, train(a, start=start, rate=rate), start=start, rate=rate)
    found = compare_recordings(a, b)
    assert (found.verdict, found.resumed.step) == ("equal bits", start)
    if still[0]:
        unknown = {"inputs": [], "moments": {}, "random": ""}
        alter(b, 0, lambda row: row.update(unknown), at=0)
        line = refusal(compare_recordings, a, b)
        assert "several steps of" in line
        assert line.endswith(
            f", 5 to 9; minitrain verify {a} {b} --from STEP names one"
        )


def test_runs_that_start_alike_resume_nothing(tmp_path: Path) -> None:
    """A moves after step 0 only, so that two of its steps start with B's weights, the
    second at B's rate.
    """

    def waits(own: list[Tensors], rank: int, step: int) -> Tensors:
        return {name: gradient * bool(step) for name, gradient in own[0].items()}

    warm = {"reduce": waits, "lr": lambda step: 0.1 if step else 0.2}
    a = record(tmp_path / "a", optimizer=SGD, **warm)
    flipped = {"deal": lambda step, size, order: dealt(step, size, order.flip(0))}
    b = record(tmp_path / "b", optimizer=SGD, lr=lambda step: 0.1, **flipped)
    found = compare_recordings(a, b)
    assert (found.resumed, found.first.step, found.first.what) == (None, 0, What.DATA)


@pytest.mark.parametrize("are_given", [True, False])
def test_each_optimizer_is_aligned_by_its_own_steps(
    tmp_path: Path, are_given: bool
) -> None:
    """The critic makes two steps for one of the generator. The recorder may be given
    the optimizers, or meet each at its first step.
    """
    torch.manual_seed(0)
    generator, critic, saved = nn.Linear(6, 6), nn.Linear(6, 1), Checkpoint()
    model = nn.Sequential(generator, nn.Tanh(), critic)
    parts = critic, generator
    optimizers: list[Optimizer] = [AdamW(part.parameters(), lr=0.1) for part in parts]
    for folder, first in (("a", 0), ("b", START), ("c", START)):
        if first:
            model.load_state_dict(saved["model"])
        if folder == "c":
            generator.reset_parameters()
        if first:
            for optimizer, state in zip(optimizers, saved["of"], strict=True):
                optimizer.load_state_dict(state)
        given = optimizers if are_given else None
        with minitrain.record(model, given, tmp_path / folder, every=1):
            for step in range(first, STEPS):
                if step == START:
                    states = [one.state_dict() for one in optimizers]
                    saved = deepcopy({"model": model.state_dict(), "of": states})
                model(batch(step)).square().mean().backward()
                optimizers[step % 3 == 2].step()
                model.zero_grad()
    found = compare_recordings(tmp_path / "a", tmp_path / "b")
    assert (found.verdict, found.resumed.starts) == ("equal bits", {0: 4, 1: 2})
    # a generator that was not restored
    line = refusal(compare_recordings, tmp_path / "a", tmp_path / "c")
    assert "optimizer 1 starts with the parameters of 0 recorded steps of" in line


class Shifted(Model):
    """With a parameter that changes no probability: its gradient is rounding alone."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(16, 1024), nn.Linear(1024, CLASSES)
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.shift


def test_resume_from_one_recorded_step_under_adam(tmp_path: Path) -> None:
    """Adam makes whole steps of a gradient that is rounding alone."""
    saved, start = Checkpoint(), 10

    def save(step: int, models: list[nn.Module], optimizers: list[Optimizer]) -> None:
        if step == start:
            one = models[0].state_dict(), optimizers[0].state_dict()
            saved["model"], saved["optimizer"] = deepcopy(one)

    def load(models: list[nn.Module], optimizers: list[Optimizer]) -> None:
        for model, optimizer in zip(models, optimizers, strict=True):
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(deepcopy(saved["optimizer"]))

    def later(step: int, *more: Any) -> list[torch.Tensor]:
        return dealt(step + start, *more)

    a = record(tmp_path / "a", model=Shifted, early=save)
    plan = {"model": Shifted, "steps": 14, "begin": load, "deal": later}
    b = record(tmp_path / "b", world_size=2, **plan)
    names = [name for name, _ in Shifted().named_parameters()]
    groups = [{"parameters": names, "settings": {"betas": [0.9, 0.999]}}]
    for folder, rank in ((a, 0), (b, 0), (b, 1)):
        alter(folder, rank, lambda row: row.update(groups=groups))
    found = compare_recordings(a, b)
    assert [step.step for step in found.steps] == [10, 20, 23]
    assert found.verdict == "same computation within rounding"
    # a step of another length is none
    c = record(tmp_path / "c", optimizer=lambda p, lr: adamw(p, 2 * lr), **plan)
    assert compare_recordings(a, c).verdict == "different"
