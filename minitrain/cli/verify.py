"""Compare two states, two training runs, or two recordings of any loop.

States are files of torch.save or .safetensors, folders of shards with an index, or of
torch.distributed.checkpoint, of any origin: no code in them runs. Of other folders
it compares file by file. Of two runs (folders such as data/runs/gloo-2) it compares the
recorded steps of every rank, losses and final states, finds the first step that
differs, names the probable cause, and judges by the tolerances of the equivalence
stage; what only one of them has is a difference, but for ranks of a larger world. Two
recordings of any loop (docs/recording.md) may be of other world sizes, versions and
machines: are they the same computation, by bits or within rounding? Exit code 0: equal,
or the same within rounding, 1: they differ, it is undecided, or a recording has an
alarm, 2: one of them cannot be read, or holds nothing.
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from minitrain.cli.command import Answer
from minitrain.cli.recording_words import compared, only_in_words, page_on, some
from minitrain.core.errors import UserError
from minitrain.core.files import nearest_file
from minitrain.core.printable import as_lines, printable
from minitrain.proof.words import as_dicts, printed
from minitrain.report.numbers import plural

if TYPE_CHECKING:
    from minitrain.compare.run_diff import RunsCompared
    from minitrain.compare.state_diff import Comparison, FoldersCompared

EXAMPLES = {
    "two states, one of them saved from a wrapper": "minitrain verify mine.pt other.pt",
    "two training runs": "minitrain verify data/runs/gloo-2 before/runs/gloo-2",
    "two recordings": "minitrain verify runs/one runs/two",
}

RECORDING, RUN = "a recording", "a training run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the two sides and the options of the comparison to ``parser``."""
    sort = "a state (.pt, .safetensors, a folder), a training run or a recording"
    add = parser.add_argument
    add("a", type=Path, metavar="A", help=sort)
    add("b", type=Path, metavar="B", help="another of the same kind")
    what = "of recordings: one of A run again with MINITRAIN_TWIN=1"
    add("--twin", type=Path, metavar="C", help=what)
    what = "of recordings: B starts at step K of A (default: by its parameters)"
    add("--from", dest="start", type=int, metavar="K", help=what)


def answer(options: argparse.Namespace) -> Answer:
    """Compare two states, folders, runs or recordings; raises UserError for others."""
    # torch takes seconds to import: not for --help
    from minitrain.compare.formats import is_state
    from minitrain.compare.state_diff import beside, compare_folders, compare_states
    from minitrain.compare.states import read_state

    a, b = options.a, options.b
    given = [path for path in (a, b, options.twin) if path is not None]
    for path in given:
        if not path.exists():
            raise UserError(f"{path}: does not exist{nearest_file(path, but=given)}")
    kind, other = _kind(a), _kind(b)
    if kind != other and not (is_state(a) and is_state(b)):
        raise UserError(f"{b}: is {other}; {a} is {kind}, so it must be one too")
    start = options.start
    if kind == RECORDING:
        if start is not None and (start < 0 or options.twin):
            allowed = "at least 0, a step of A at which B starts, and without --twin"
            raise UserError(f"--from = {start}: must be {allowed}")
        return compared(a, b, options.twin, start)
    if options.twin or start is not None:
        extra = "twin" if options.twin else "from"
        raise UserError(f"--{extra}: is for two recordings, and {a} is {kind}")
    if kind == RUN:
        return _answer_for_runs(a, b)
    if a.is_dir() and b.is_dir():
        folders = compare_folders(a, b)
        return Answer(folders.equal, asdict(folders), folders_in_words(folders))
    found = compare_states(*map(read_state, (a, b)))
    others = [*beside(a), *beside(b)]
    more = "\n" + printable(f"not compared: {some(others)}") if others else ""
    facts = {**asdict(found), "not_compared": others}
    return Answer(found.equal, facts, in_words(found) + more)


def _kind(path: Path) -> str:
    from minitrain.compare.run_diff import is_run
    from minitrain.recording.format import is_recording

    if is_recording(path):
        return RECORDING
    if is_run(path):
        return RUN
    return "a folder" if path.is_dir() else "a file"


def _answer_for_runs(a: Path, b: Path) -> Answer:
    from minitrain.compare.run_diff import compare_runs

    found = compare_runs(a, b)
    copied = ("same", "verdict", "losses", "world_sizes", "only_in_a", "only_in_b")
    facts = {
        "equal": found.verdict == "equal",
        **{name: getattr(found, name) for name in copied},
        "first": found.first and found.first.facts(),
        "states": {name: asdict(found.states[name]) for name in found.unlike_states},
        "tolerances": as_dicts(found.rungs),
        "page": page_on(None if found.same else found.first),
    }
    return Answer(found.same, facts, runs_in_words(found))


def runs_in_words(found: "RunsCompared") -> str:
    """Return lines: the verdict on two runs, where they differ first, and how much."""
    steps = plural(found.num_recorded, "recorded step") + " of a rank"
    losses = plural(found.num_losses, "loss", "losses")
    both = f"{steps}, {losses}, {plural(len(found.states), 'final state')}"
    only = only_in_words(found.only_in_a, found.only_in_b)
    lines = [f"{found.verdict}: {both}"]
    if only:
        lines = ["different: what only one of them has", *only]
        lines += [f"equal is what both have: {both}"] if found.equal else []
    lines += printed(found.rungs) if found.rungs else []
    if found.first:
        lines += [f"first difference in bits: {found.first}"]
    if found.losses:
        (step, pair), *_ = found.losses.items()
        more = f" (at most {found.loss_gap:.2g} of it apart)"
        lines.append(f"losses: first at step {step}: {' against '.join(pair)}{more}")
    for name in found.unlike_states:
        what_and_where = in_words(found.states[name]).splitlines()[:2]
        lines.append(f"{name}: {'; '.join(what_and_where)}")
    if found.world_sizes[0] != found.world_sizes[1]:
        sizes = " in A, ".join(map(str, found.world_sizes))
        lines.append(f"expected difference: world_size: {sizes} in B")
    if page := page_on(None if found.same else found.first):
        lines.append(f"see {page}")
    return as_lines(lines)


def folders_in_words(found: "FoldersCompared") -> str:
    """Return the differences of two folders, a line for each state and other file."""
    compared = [*found.states.values(), *found.files.values()]
    count = plural(len(compared), "state or file", "states and files")
    lines = [f"equal: {count}" if found.equal else f"different, of {count}"]
    for name, state in found.states.items():
        what = [*_differences(state)[:2], *_asides(state)]
        lines += [f"{name}: {'; '.join(what)}"]
    for name, equal in found.files.items():
        lines += [f"{name}: {'equal' if equal else 'different'} bytes, not read"]
    lines += only_in_words(found.only_in_a, found.only_in_b)
    return as_lines(lines)


def in_words(found: "Comparison") -> str:
    """Return the differences of two states, the most important first; a line each."""
    return as_lines([*_differences(found), *_asides(found)])


def _asides(found: "Comparison") -> Iterator[str]:
    # yield lines that do not count as differences
    for clause in found.notes:
        yield f"names: {clause}"
    if found.objects:
        yield f"not compared (Python objects): {some(found.objects)}"
    for name, same in found.aliases.items():
        yield f"{name}: another name of {same}, which only one of them has"


def _differences(found: "Comparison") -> list[str]:
    if found.equal:
        values = found.num_values
        more = f" and {plural(values, 'value')}" if values else ""
        return [f"equal: {plural(found.num_tensors, 'tensor')}{more}, every bit"]
    lines = [f"different: {_how_much(found)}"]
    if first := found.first:
        place = f"{first.tensor}[{', '.join(map(str, first.index))}]"
        lines += [
            f"first difference: {place}",
            f"  A: {first.a} ({first.a_hex})",
            f"  B: {first.b} ({first.b_hex})",
        ]
    if found.max_ulp is not None and found.num_different_tensors:
        lines.append(f"max ULP: {found.max_ulp}")
    if found.max_abs_diff is not None and found.num_different_tensors:
        where = f" in {found.max_abs_diff_tensor}" if found.max_abs_diff_tensor else ""
        lines.append(f"max |A - B|: {found.max_abs_diff:.6g}{where}")
    if found.without_distance:
        lines.append(f"NaN, so without a distance: {some(found.without_distance)}")
    lines += only_in_words(found.only_in_a, found.only_in_b)
    for name, what in (found.unlike | found.values).items():
        lines.append(f"{name}: {what}")
    return lines


def _how_much(found: "Comparison") -> str:
    both = plural(found.num_tensors, "tensor")
    if found.num_different_tensors:
        elements = plural(found.num_different_elements, "element")
        return f"{found.num_different_tensors} of {both}, {elements} in all"
    unlike = {
        "names": found.only_in_a or found.only_in_b,
        "shapes or types": found.unlike,
        "values": found.values,
    }
    only = " and ".join(what for what, there in unlike.items() if there)
    equal = f"equal is what both have: {both}"
    return f"only {only}; {equal if found.num_tensors else 'no tensor was compared'}"
