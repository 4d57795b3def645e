"""Alignment of the entries of two states whose names differ."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from minitrain.compare.states import State

# what wrappers put into names: DDP, torch.compile, FSDP, activation checkpoints, Fabric
WRAPPERS = {
    "module",
    "_orig_mod",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
    "_forward_module",
}
# a model inside a checkpoint lies no deeper
DEEPEST = 2
NAMED = "the optimizer's parameters by name, where one of them has numbers"
# as the optimizers of torch list their parameters, and keep what belongs to each
GROUP = re.compile(r"(.*\b|)param_groups\.\d+\.params\.\d+")
ENTRY = re.compile(r"(.*\b|)state\.\d+\.")
PLAIN = "without the words of wrappers in names"


@dataclass(frozen=True)
class Aligned:
    """Two states whose names mean the same, and what was done to get there: ``said``,
    a clause each. ``left`` are the entries of A and of B that were left out because the
    model was found inside.
    """

    a: State
    b: State
    said: list[str]
    left: tuple[list[str], list[str]] = ([], [])


def align(a: State, b: State) -> Aligned:
    """Take wrappers' words out of the names, if no tensor has a name that both know;
    and where that is not enough, find the model inside a checkpoint.

    Where one optimizer counts its parameters and the other names them, the names stand
    for the numbers. Else nothing is changed where several entries would fit, or none.
    """
    named = _named(a, b), _named(b, a)
    said = [] if named[0] is a and named[1] is b else [NAMED]
    a, b = named
    if {*a.tensors} & {*b.tensors}:
        return Aligned(a, b, said)
    sides = [state.renamed(_plain) for state in (a, b)]
    if {*sides[0].tensors} & {*sides[1].tensors}:
        return Aligned(sides[0], sides[1], [*said, PLAIN])
    roots = _best_roots(*({*state.tensors} for state in sides))
    if roots is None:
        return Aligned(a, b, said)
    said, left = [*said, PLAIN], []
    for side, state, root in zip("AB", sides, roots, strict=True):
        within = _within(root)
        names = [*state.tensors, *state.values]
        left.append([name for name in names if within(name) is None])
        if root:
            said.append(f"{side} is its entry {root!r}, without {len(left[-1])} others")
    inside = [s.renamed(_within(root)) for s, root in zip(sides, roots, strict=True)]
    return Aligned(inside[0], inside[1], said, (left[0], left[1]))


def _named(mine: State, other: State) -> State:
    # the groups of both list their parameters in the same order
    names, listed = {}, {}
    for key, number in mine.values.items():
        name, group = other.values.get(key), GROUP.fullmatch(key)
        if group and isinstance(number, int) and isinstance(name, str):
            names[f"{group[1]}state.{number}."] = f"{group[1]}state.{name}."
            listed[key] = name

    def rename(name: str) -> str:
        entry = ENTRY.match(name)
        return names.get(entry[0], entry[0]) + name[entry.end() :] if entry else name

    found = mine.renamed(rename) if names else mine
    return found if found is mine else replace(found, values={**found.values, **listed})


def _plain(name: str) -> str:
    words = [part for part in name.split(".") if part not in WRAPPERS]
    # a name of nothing else stays
    return ".".join(words) or name


def _within(root: str) -> Callable[[str], str | None]:
    start = f"{root}." if root else ""
    return lambda name: name.removeprefix(start) if name.startswith(start) else None


def _best_roots(a: set[str], b: set[str]) -> tuple[str, str] | None:
    # the roots under which most names are of both; None where others do as well
    inside = [
        {root: {*filter(None, map(_within(root), names))} for root in _roots(names)}
        for names in (a, b)
    ]
    fits = {(x, y): len(inside[0][x] & inside[1][y]) for x, y in product(*inside)}
    most = max(fits.values())
    best = sorted((pair for pair in fits if fits[pair] == most), key=_length)
    alone = most and all(_is_deeper(best[0], other) for other in best)
    return best[0] if alone else None


def _length(roots: tuple[str, str]) -> tuple[int, str, str]:
    return len(roots[0]) + len(roots[1]), *roots


def _is_deeper(roots: Sequence[str], other: Sequence[str]) -> bool:
    # whether ``other`` is the same entry of both ``roots``, as blocks in a model
    within = [_within(root)(deeper) for root, deeper in zip(roots, other, strict=True)]
    return roots == other or (within[0] is not None and within[0] == within[1])


def _roots(names: Iterable[str]) -> list[str]:
    found = {""}
    for name in names:
        parts = name.split(".")
        found |= {".".join(parts[:deep]) for deep in range(1, DEEPEST + 1)}
    return sorted(found - {*names})
