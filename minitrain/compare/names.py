"""Which entry of one state is meant by which of another, where names differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minitrain.compare.states import OnDisk, State

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
    """Where no tensor has a name that both know, take wrappers' words out of the names;
    and where that is not enough, find the model inside a checkpoint.

    Nothing is changed where several entries would fit, or none.
    """
    if {*a.tensors} & {*b.tensors}:
        return Aligned(a, b, [])
    sides = unwrapped(a), unwrapped(b)
    said = ["without the words of wrappers in names"]
    if {*sides[0].tensors} & {*sides[1].tensors}:
        return Aligned(*sides, said)
    roots = _best_roots(*sides)
    if roots is None:
        return Aligned(a, b, [])
    inside = [within(state, root) for state, root in zip(sides, roots, strict=True)]
    left = [_outside(state, root) for state, root in zip(sides, roots, strict=True)]
    for side, root, others in zip("AB", roots, left, strict=True):
        if root:
            said.append(f"{side} is its entry {root!r}, without {len(others)} others")
    return Aligned(inside[0], inside[1], said, (left[0], left[1]))


def _outside(state: State, root: str) -> list[str]:
    names = [*state.tensors, *state.values]
    return [name for name in names if root and not name.startswith(f"{root}.")]


def unwrapped(state: State) -> State:
    """``state`` with wrappers' words taken out of its names; as it is where two names
    would become one.
    """

    def plain(name: str) -> str:
        return ".".join(part for part in name.split(".") if part not in WRAPPERS)

    names = {plain(name): name for name in state.tensors}
    values = {plain(name): value for name, value in state.values.items()}
    same = len(names) == len(state.tensors) and len(values) == len(state.values)
    return _renamed(state, names, values) if same and "" not in names else state


def within(state: State, root: str) -> State:
    """What lies in the entry ``root`` of ``state``, by its names there."""
    if not root:
        return state
    start = f"{root}."
    names = {n.removeprefix(start): n for n in state.tensors if n.startswith(start)}
    values = {
        n.removeprefix(start): v for n, v in state.values.items() if n.startswith(start)
    }
    return _renamed(state, names, values)


def _renamed(
    state: State, names: Mapping[str, str], values: Mapping[str, object]
) -> State:
    tensors = state.tensors
    if isinstance(tensors, OnDisk):
        return State(tensors.renamed(names), values, state.objects)
    renamed = {new: tensors[name] for new, name in names.items()}
    return State(renamed, values, state.objects)


def _best_roots(a: State, b: State) -> tuple[str, str] | None:
    """The roots under which most names are of both; None where others do as well."""
    found = [
        (len({*within(a, x).tensors} & {*within(b, y).tensors}), x, y)
        for x in _roots(a)
        for y in _roots(b)
    ]
    most = max(fits for fits, _, _ in found)
    best = sorted((len(x) + len(y), x, y) for fits, x, y in found if fits == most)
    _, x, y = best[0]
    return (
        (x, y) if most and all(_is_deeper((x, y), pair) for _, *pair in best) else None
    )


def _is_deeper(roots: Sequence[str], other: Sequence[str]) -> bool:
    """Whether ``other`` is the same entry of both ``roots``, as blocks in a model."""
    more = []
    for root, deeper in zip(map(_parts, roots), map(_parts, other), strict=True):
        if deeper[: len(root)] != root:
            return False
        more.append(deeper[len(root) :])
    return more[0] == more[1]


def _parts(name: str) -> list[str]:
    return name.split(".") if name else []


def _roots(state: State) -> list[str]:
    found = {""}
    for name in state.tensors:
        parts = name.split(".")
        found |= {".".join(parts[:deep]) for deep in range(1, DEEPEST + 1)}
    return sorted(found - {*state.tensors})
