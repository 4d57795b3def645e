"""Compare two state files, or two training runs, bit by bit.

Files are .pt (torch.save) or .safetensors, ours or not; none is trusted to run code. Of
two runs (folders such as data/runs/gloo-2) it finds the first recorded step that
differs, and names the probable cause. Exit code 0: equal, 1: they differ, 2: one of
them cannot be read.
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from minitrain.cli.answer import Answer
from minitrain.errors import UserError
from minitrain.report.numbers import plural

if TYPE_CHECKING:
    from minitrain.compare import Comparison

NAMES_SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the two sides and what to take off names."""
    parser.add_argument("a", type=Path, metavar="A")
    parser.add_argument("b", type=Path, metavar="B")
    parser.add_argument(
        "--strip-prefix",
        default="",
        metavar="PREFIX",
        help="taken off the names in both files, such as 'module.'",
    )


def answer(options: argparse.Namespace) -> Answer:
    """Read both sides and compare them."""
    if options.a.is_dir() and options.b.is_dir():
        return _answer_for_runs(options.a, options.b)
    for mine, other in ((options.a, options.b), (options.b, options.a)):
        if mine.is_dir():
            what = "is a file" if other.exists() else "does not exist"
            raise UserError(f"{other}: {what}; {mine} is a run, so it must be one too")
    # torch takes seconds to import: not for --help
    from minitrain.compare import compare_states
    from minitrain.states import read_state

    a, b = (read_state(path, options.strip_prefix) for path in (options.a, options.b))
    found = compare_states(a, b)
    return Answer(found.equal, found.as_dict(), in_words(found))


def _answer_for_runs(a: Path, b: Path) -> Answer:
    from minitrain.compare_runs import compare_runs

    found = compare_runs(a, b)
    if found is None:
        text = "equal: every recorded step that both have, on every rank that both have"
        return Answer(True, {"equal": True, "first": None}, text)
    return Answer(
        False, {"equal": False, "first": asdict(found)}, f"different at {found}"
    )


def in_words(found: "Comparison") -> str:
    """What differs, the most telling first; a line each."""
    if found.equal:
        return f"equal: {plural(found.num_tensors, 'tensor')}, every bit"
    of = plural(found.num_tensors, "tensor")
    elements = plural(found.num_different_elements, "element")
    lines = [f"different: {found.num_different_tensors} of {of}, {elements} in all"]
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
        lines.append(f"NaN, so without a distance: {_some(found.without_distance)}")
    if found.only_in_a:
        lines.append(f"only in A: {_some(found.only_in_a)}")
    if found.only_in_b:
        lines.append(f"only in B: {_some(found.only_in_b)}")
    for name, what in (found.unlike | found.values).items():
        lines.append(f"{name}: {what}")
    return "\n".join(lines)


def _some(names: list[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
