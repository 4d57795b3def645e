"""Prove data-parallel training of your own model: the ladder.

MODEL is FILE.py:NAME or module:NAME, a function that returns a new torch.nn.Module: the
build(model, vocab_size) of the pipeline, or one without arguments. It is trained for a
few steps with several processes, replayed by one, and checked by an independent
witness. Models of Hugging Face's convention (input_ids and labels in, .loss out) with
256 tokens or more need nothing else: they read the bytes of a text, by default those of
their own file. Others bring --batches and --loss.
"""

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from minitrain.cli.command import Answer, Names
from minitrain.core.errors import RankError, UserError
from minitrain.core.params import OptimizerName, PrecisionName
from minitrain.core.printable import as_lines, print_note
from minitrain.core.progress import progress
from minitrain.proof.words import as_dicts
from minitrain.report.numbers import plural
from minitrain.sync.catalog import STRATEGIES, guarantees_of

if TYPE_CHECKING:
    from minitrain.check.data_parallel import Ladder

# a check by strategy, or why there is none: refused, or failed in a rank
Tried = dict[str, "Ladder | UserError | RankError"]
EXAMPLES = {
    "a model of Hugging Face's convention reads its own file": (
        "minitrain check my_model.py:build --steps 5"
    ),
    "another one brings what it reads, and its loss": (
        "minitrain check net.py:build --batches net.py:batches --loss net.py:loss"
    ),
}
ALL = "all"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the model, its data and its training to ``parser``."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="FILE.py:NAME or module:NAME, which builds it")
    what = "a size of the section model, or an argument by name (as often as needed)"
    add("--arg", action="append", default=[], metavar="KEY=VALUE", help=what)
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--text", type=Path, metavar="FILE", help="a line is a sample")
    what = "FILE.py:NAME of global batches: a list, a DataLoader, or a function"
    data.add_argument("--batches", metavar="NAME", help=what)
    add("--loss", metavar="NAME", help="FILE.py:NAME of loss(model, batch), a mean")
    add("--count", metavar="NAME", help="FILE.py:NAME of count(batch): targets")
    add("--world-size", type=int, default=2, metavar="W", help="processes (2)")
    what = "a strategy, all of them, or package.module:Class (ddp)"
    strategies = Names([ALL, *STRATEGIES])
    add("--sync", default="ddp", choices=strategies, metavar="NAME", help=what)
    optimizers, precisions = get_args(OptimizerName), get_args(PrecisionName)
    add("--optimizer", default="adamw", choices=optimizers, help="(adamw)")
    add("--precision", default="float32", choices=precisions, help="(float32)")
    what = "steps, at least 2 (3; 2 of a large model that reads text)"
    add("--steps", type=int, metavar="N", help=what)
    add("--batch-size", type=int, default=8, metavar="B", help="lines a batch (8)")
    add("--timeout-s", type=float, default=300, metavar="S", help="limit (300)")


def answer(options: argparse.Namespace) -> Answer:
    """Check the model with one strategy or all; ``ok``: none failed, :func:`holds`."""
    begun = time.monotonic()
    given, shortened = _given(options)
    ranks = plural(options.world_size, "process", "processes")
    steps = f"training {plural(given['steps'], 'step')} with {ranks}"
    every = f": {len(STRATEGIES)} strategies, one after the other"
    every = every if options.sync == ALL else ""
    print_note(f"{steps}, and again with one; a witness computes in float64{every} ...")
    tried = _try_all(options.sync, given)
    seconds = time.monotonic() - begun
    ladders = {n: x for n, x in tried.items() if not isinstance(x, Exception)}
    text = f"{in_words(tried)}\n{seconds:.0f} s"
    text += f", {shortened}" if shortened else ""
    breaches = [name for ladder in ladders.values() for name in ladder.breaches]
    if not options.count and "witness_mean" in breaches:
        text += "\n--count NAME gives a count of yours"
    facts = {
        "strategies": {name: _facts(ladder) for name, ladder in ladders.items()},
        "refused": {n: str(x) for n, x in tried.items() if isinstance(x, UserError)},
        "failed": {n: str(x) for n, x in tried.items() if isinstance(x, RankError)},
        "seconds": seconds,
        "shortened": shortened or None,
    }
    ok = all(_holds(name, ladder) for name, ladder in ladders.items())
    return Answer(ok and not facts["failed"], facts, text)


def _holds(name: str, ladder: "Ladder") -> bool:
    # it is no fault to be undecided if the strategy does not promise equal bits
    is_free = "replay" not in guarantees_of(name).promises
    return ladder.holds or (ladder.verdict == "undecided" and is_free)


def _try_all(sync: str, given: dict[str, Any]) -> Tried:
    # torch takes seconds to import: not for --help
    from minitrain.check.data_parallel import ANY_VERDICT, check_data_parallel
    from minitrain.sync.compressed import FIRST_POWERSGD_STEP

    tried: Tried = {}
    given |= {"accept": ANY_VERDICT, "show": sync != ALL}
    steps, least = given["steps"], {"powersgd": FIRST_POWERSGD_STEP + 2}
    names = [*STRATEGIES] if sync == ALL else [sync]
    for name in progress(names, "strategies", show=sync == ALL):
        try:
            if steps < least.get(name, steps):
                raise UserError(f"steps = {steps}: at least {least[name]} for {name}")
            tried[name] = check_data_parallel(sync=name, **given)
        except (UserError, RankError) as error:
            tried[name] = error
    first, *others = tried.values()
    # if none could be tried, the other arguments are wrong: ddp asks least of them
    if isinstance(first, Exception) and all(isinstance(x, Exception) for x in others):
        raise first
    return tried


def _given(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    # return arguments of check_data_parallel, and how its text was shortened, if it was
    from minitrain.check import inputs
    from minitrain.check.arguments import read_batches

    arguments = dict(map(_argument, options.arg))
    factory, block_size = inputs.find_factory(options.model, arguments)
    copied = ("world_size", "optimizer", "precision", "timeout_s")
    given = {"factory": factory, **{name: vars(options)[name] for name in copied}}
    for name in ("loss", "count"):
        if written := vars(options)[name]:
            given[name] = inputs.find(written, f"--{name}")
    shortened = ""
    if options.batches:
        steps = inputs.STEPS if options.steps is None else options.steps
        # once for all strategies; a number of steps below 1 is refused later
        batches = inputs.find(options.batches, "--batches")
        batches = read_batches(batches, max(1, steps))
    else:
        text = options.text or Path(options.model.rpartition(":")[0])
        if not text.is_file():
            raise UserError(f"{text}: no file to read; --text or --batches names one")
        size = options.batch_size
        if size < 1:
            raise UserError(f"--batch-size = {size}: must be 1 or more")
        steps, longest, shortened = inputs.reading_for(factory, size, options.steps)
        longest = min(longest, block_size or longest)
        batches = inputs.text_batches(text, size, steps, longest)
    return given | {"steps": steps, "batches": batches}, shortened


def _argument(written: str) -> tuple[str, Any]:
    key, equals, value = written.partition("=")
    if not (key and equals):
        raise UserError(f"--arg = {written!r}: must be KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _facts(ladder: "Ladder") -> dict[str, Any]:
    return {
        "verdict": ladder.verdict,
        "rests_on": ladder.rests_on,
        "rungs": as_dicts(ladder.rungs),
        "communicates": [*ladder.communicates],
        "first_difference": ladder.divergence and ladder.divergence.facts(),
    }


def in_words(tried: Tried) -> str:
    """Return the only check (a Ladder) in full, or a line per strategy: its verdict, or
    why it was not tried or failed.
    """
    first, *others = tried.values()
    if not others:
        return str(first)
    width, lines = max(map(len, tried)), []
    for name, found in tried.items():
        if isinstance(found, Exception):
            what = "failed" if isinstance(found, RankError) else "not tried"
            lines.append(f"{name:<{width}}  {what}: {found!s}")
            continue
        lines.append(f"{name:<{width}}  {found.verdict}: {found.rests_on}")
        if found.divergence is not None:
            lines.append(f"{'':<{width}}  first difference: {found.divergence}")
    return as_lines(lines)
