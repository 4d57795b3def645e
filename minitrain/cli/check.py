"""Prove data-parallel training of your own model: the ladder.

MODEL is FILE.py:NAME or module:NAME, a function without arguments that returns a new
torch.nn.Module: beside the build(model, vocab_size) of the pipeline, one like alone().
It is trained for a few steps with several processes, replayed by one, and worked out
once more by a witness. Models of Hugging Face's convention (input_ids and labels in,
.loss out) with 256 tokens or more need nothing else: they read the bytes of a text, by
default those of their own file. Others bring --batches and --loss.
"""

import argparse
import re
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minitrain.cli.answer import Answer
from minitrain.cli.parser import Names
from minitrain.core.errors import UserError
from minitrain.core.printable import as_lines, note
from minitrain.report.numbers import plural
from minitrain.sync.catalog import STRATEGIES, guarantees_of

if TYPE_CHECKING:
    from minitrain.check.check import Ladder

EXAMPLES = {
    "a model of Hugging Face's convention reads its own file": (
        "minitrain check my_model.py:alone --steps 5"
    ),
    "another one brings what it reads, and its loss": (
        "minitrain check net.py:build --batches net.py:batches --loss net.py:loss"
    ),
    "held to what another strategy promises": (
        "minitrain check my_model.py:alone --sync flat --optimizer sgd"
    ),
}
# those of minitrain/train, which imports torch: it takes seconds, and not for --help
OPTIMIZERS = ("adamw", "sgd")
PRECISIONS = ("float32", "bf16", "fp16")
ALL = "all"
# what Python says of a call without arguments; a place behind it is of one further down
NEEDS = re.compile(
    r"factory: TypeError: (\S+\(\)) missing \d+ required [^()]*: ([^()]*)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model, what it reads, and how it is trained."""
    add = parser.add_argument
    what = "FILE.py:NAME or module:NAME, which builds it, without arguments"
    add("model", metavar="MODEL", help=what)
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--text", type=Path, metavar="FILE", help="a line is a sample")
    data.add_argument(
        "--batches",
        metavar="NAME",
        help="FILE.py:NAME of global batches: a list, a DataLoader, or a function",
    )
    functions = {"loss": "loss(model, batch), a mean", "count": "count(batch): targets"}
    for name, what in functions.items():
        what = f"FILE.py:NAME of {what}"
        add(f"--{name}", metavar="NAME", help=what)
    add("--world-size", type=int, default=2, metavar="W", help="processes (2)")
    strategies = Names([ALL, *STRATEGIES])
    what = "a strategy, all of them, or package.module:Class (ddp)"
    add("--sync", default="ddp", choices=strategies, metavar="NAME", help=what)
    add("--optimizer", default="adamw", choices=OPTIMIZERS, help="(adamw)")
    add("--precision", default="float32", choices=PRECISIONS, help="(float32)")
    what = "steps, at least 2 (3; 2 of a large model that reads text)"
    add("--steps", type=int, metavar="N", help=what)
    add("--batch-size", type=int, default=8, metavar="B", help="lines a batch (8)")
    add("--timeout-s", type=float, default=300, metavar="S", help="limit (300)")


@dataclass
class Climbed:
    """``ladders`` by strategy, and why others were ``refused`` for this model."""

    ladders: "dict[str, Ladder]" = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether each is proven; undecided is enough where no bits are promised."""
        return bool(self.ladders) and all(
            ladder.holds
            or (
                ladder.verdict == "undecided"
                and "replay" not in guarantees_of(name).promises
            )
            for name, ladder in self.ladders.items()
        )


def answer(options: argparse.Namespace) -> Answer:
    """Climb the ladder of every strategy that was asked for."""
    begun = time.monotonic()
    try:
        given, shortened = _given(options)
        note(_told(options, given["steps"]))
        found = _climb(options.sync, given)
    except UserError as error:
        needs = NEEDS.fullmatch(str(error))
        if needs is None:
            raise
        raise _without_arguments(options.model, *needs.groups()) from None
    seconds = time.monotonic() - begun
    ladders = {name: _facts(ladder) for name, ladder in found.ladders.items()}
    facts = {"strategies": ladders, "refused": found.refused, "seconds": seconds}
    facts["shortened"] = shortened or None
    more = f", {shortened}" if shortened else ""
    if not options.count and any(
        "witness_mean" in ladder.breaches for ladder in found.ladders.values()
    ):
        more += "\n--count NAME gives a count of yours"
    return Answer(found.holds, facts, in_words(found, seconds) + more)


def _climb(sync: str, given: dict[str, Any]) -> Climbed:
    # torch takes seconds to import: not for --help
    from minitrain.check.check import ANY_VERDICT, check_data_parallel

    found = Climbed()
    for name in STRATEGIES if sync == ALL else [sync]:
        try:
            ladder = check_data_parallel(sync=name, accept=ANY_VERDICT, **given)
            found.ladders[name] = ladder
        except UserError as error:
            if sync != ALL:
                raise
            found.refused[name] = str(error)
    return found


def _told(options: argparse.Namespace, steps: int) -> str:
    """What is about to happen, which takes seconds to minutes."""
    ranks = plural(options.world_size, "process", "processes")
    text = (
        f"training {plural(steps, 'step')} with {ranks}, and again with one; a witness "
        "computes in float64"
    )
    if options.sync == ALL:
        text += f": {len(STRATEGIES)} strategies, one after the other"
    return f"{text} ..."


def _without_arguments(model: str, call: str, needed: str) -> UserError:
    return UserError(
        f"MODEL = {model!r}: check calls it without arguments, and {call} needs "
        f"{needed}; beside the build(model, vocab_size) of the pipeline write a "
        "function like alone(), see docs/how-to/own-model.md"
    )


def _given(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Arguments of a check, and how its text was shortened, if it was."""
    from minitrain.check.import_target import find
    from minitrain.check.text_batches import STEPS, Reading, reading_for, text_batches

    factory = find(options.model, "MODEL")
    functions = {
        name: find(getattr(options, name), f"--{name}")
        for name in ("loss", "count")
        if getattr(options, name)
    }
    if options.batches:
        batches = find(options.batches, "--batches")
        batches = batches() if callable(batches) else batches
        reading = Reading(STEPS if options.steps is None else options.steps)
    else:
        text = options.text or Path(options.model.rpartition(":")[0])
        if not text.is_file():
            raise UserError(f"{text}: no file to read; --text or --batches names one")
        size = options.batch_size
        reading = reading_for(factory, size, options.steps)
        batches = text_batches(text, size, reading.steps, reading.longest)
    copied = ("world_size", "optimizer", "precision", "timeout_s")
    given = {name: getattr(options, name) for name in copied}
    given |= {"factory": factory, "steps": reading.steps, "batches": batches}
    return given | functions, reading.shortened


def _facts(ladder: "Ladder") -> dict[str, Any]:
    return {
        "verdict": ladder.verdict,
        "rests_on": ladder.rests_on,
        "rungs": {name: asdict(rung) for name, rung in ladder.rungs.items()},
        "communicates": [*ladder.communicates],
        "first_difference": ladder.divergence and ladder.divergence.facts(),
    }


def in_words(found: Climbed, seconds: float) -> str:
    """The ladder of one strategy; of several, a line each."""
    took = f"{seconds:.0f} s"
    if len(found.ladders) == 1 and not found.refused:
        (only,) = found.ladders.values()
        return f"{only}\n{took}"
    width = max(map(len, (*found.ladders, *found.refused)))
    lines = []
    for name, ladder in found.ladders.items():
        lines.append(f"{name:<{width}}  {ladder.verdict}: {ladder.rests_on}")
        if ladder.divergence is not None:
            lines.append(f"{'':<{width}}  first difference: {ladder.divergence}")
    for name, why in found.refused.items():
        lines.append(f"{name:<{width}}  not tried: {why}")
    return as_lines([*lines, took])
