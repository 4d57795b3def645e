"""States (checkpoints, model files) by name, and alignment of two whose names differ.

A state is read from any of the :mod:`.formats`, minitrain's or foreign.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice, product
from pathlib import Path

import torch
from torch import Tensor

from minitrain.compare.formats import NESTED, NUMPY, Inert, Unread, entries
from minitrain.core.errors import UserError

# more entries than any state has: nested lists in a small file can expand to billions
MOST_ENTRIES = 1_000_000
# components that DDP, torch.compile, FSDP, checkpoint wrappers and Fabric add to names
WRAPPERS = {
    "module",
    "_orig_mod",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
    "_forward_module",
}
# depth to which a model is searched for in a checkpoint
DEEPEST = 2
PLAIN = "without the words of wrappers in names"


@dataclass(frozen=True)
class State:
    """Entries of a file or a folder by name; names of nested entries are joined by
    dots. ``tensors``: read one with :func:`loaded`; ``values``: other plain entries;
    ``objects``: class paths of Python objects, which are not unpickled; ``nested``:
    names of dicts and lists.
    """

    tensors: Mapping[str, Tensor | Unread]
    values: Mapping[str, object] = field(default_factory=dict)
    objects: Mapping[str, str] = field(default_factory=dict)
    nested: Set[str] = frozenset()

    def renamed(self, rename: Callable[[str], str | None]) -> "State":
        """Return the state with names ``rename(name)``, without entries that get None;
        the state itself if two names would be equal.
        """
        tensors = [(rename(name), of) for name, of in self.tensors.items()]
        values = [(rename(name), of) for name, of in self.values.items()]
        names = [name for name, _ in (*tensors, *values) if name is not None]
        if len({*names}) < len(names):
            return self
        return replace(
            self,
            tensors={name: of for name, of in tensors if name is not None},
            values={name: of for name, of in values if name is not None},
            nested={rename(name) or "" for name in self.nested},
        )


def read_state(path: Path) -> State:
    """Return the state at ``path``.

    Raises:
        UserError: it is empty, truncated, of an unknown format, needs code to be read,
            or has a tensor that is sparse, quantized, nested, on the meta device, or
            one rank's part (DTensor).
    """
    tensors: dict[str, Tensor | Unread] = {}
    values: dict[str, object] = {}
    objects: dict[str, str] = {}
    nested: set[str] = set()
    try:
        found = [*islice(entries(path), MOST_ENTRIES + 1)]
    except RecursionError:
        raise UserError(f"{path}: nested too deeply to be read") from None
    if len(found) > MOST_ENTRIES:
        raise UserError(f"{path}: has more than {MOST_ENTRIES:,} entries")
    for name, leaf in found:
        if leaf is NESTED:
            nested.add(name)
        elif isinstance(leaf, Inert) and not leaf.path.startswith(NUMPY):
            objects[name] = leaf.path
        elif name in tensors or name in values:
            raise UserError(f"{path}: two entries are named {name!r}")
        elif isinstance(leaf, Tensor) and not _is_plain(leaf):
            raise UserError(
                f"{path}: tensor {name} is not plain: sparse, quantized, nested, "
                "without values (meta), or one rank's part (DTensor)"
            )
        elif isinstance(leaf, Tensor | Unread):
            tensors[name] = leaf
        else:
            values[name] = leaf
    if not tensors and not values:
        raise UserError(f"{path}: holds nothing to compare")
    return State(tensors, values, objects, nested)


def _is_plain(tensor: Tensor) -> bool:
    is_other = tensor.is_quantized or tensor.is_nested or tensor.is_meta
    is_part = hasattr(tensor, "placements")
    return tensor.layout is torch.strided and not (is_other or is_part)


Aligned = tuple[State, State, list[str], list[list[str]]]


def align(a: State, b: State) -> Aligned:
    """Return both states with names changed so that they match, messages on the
    changes, and for each state, if a model was found inside of it, the names outside of
    the model that are differences.

    If no tensor has the same name in both, remove what wrappers (DDP, ...) add, then
    search for the model inside a checkpoint; names stay if its place is ambiguous.
    """
    as_they_are: Aligned = (a, b, [], [[], []])
    if {*a.tensors} & {*b.tensors}:
        return as_they_are
    sides = [state.renamed(_plain) for state in (a, b)]
    has_words = any(_plain(name) != name for name in (*a.tensors, *b.tensors))
    notes = [PLAIN] if has_words else []
    if {*sides[0].tensors} & {*sides[1].tensors}:
        return sides[0], sides[1], notes, [[], []]
    roots = _best_roots(*({*state.tensors} for state in sides))
    if roots is None:
        return as_they_are
    left = []
    for side, state, root in zip("AB", sides, roots, strict=True):
        within = _within(root)
        names = [*state.tensors, *state.values]
        left.append([name for name in names if within(name) is None])
        if root:
            notes.append(
                f"{side} is its entry {root!r}, without {len(left[-1])} others"
            )
    if not all(left):
        # an optimizer is no difference, but other tensors of the model are
        left = [_rest(*of) for of in zip(left, sides, roots, strict=True)]
    inside = [s.renamed(_within(root)) for s, root in zip(sides, roots, strict=True)]
    return inside[0], inside[1], notes, left


def _rest(left: list[str], state: State, root: str) -> list[str]:
    # other tensors in the dict of ``root``, without second names of tied weights
    start = f"{root}."
    inside = {place(state, n) for n in state.tensors if n.startswith(start)}
    while start and start[:-1] not in state.nested:
        start = start[: start[:-1].rfind(".") + 1]
    rest = (n for n in left if n in state.tensors and n.startswith(start))
    return [name for name in rest if place(state, name) not in inside]


def place(state: State, name: str) -> tuple[object, ...]:
    """Return a key for the memory of a tensor of ``state``: tied weights share it."""
    tensor = state.tensors[name]
    # one that is read on each lookup has no address of its own
    if isinstance(tensor, Unread) or not tensor.numel():
        return (name,)
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _plain(name: str) -> str:
    words = [part for part in name.split(".") if part not in WRAPPERS]
    # a name that consists of wrappers only stays
    return ".".join(words) or name


def _within(root: str) -> Callable[[str], str | None]:
    start = f"{root}." if root else ""
    return lambda name: name.removeprefix(start) if name.startswith(start) else None


def _best_roots(a: set[str], b: set[str]) -> tuple[str, str] | None:
    # the shortest pair of roots under which most names are the same; None unless all
    # others that are as good lie equally deep inside of it, as blocks in a model
    inside = [
        {root: {*filter(None, map(_within(root), names))} for root in _roots(names)}
        for names in (a, b)
    ]
    fits = {(x, y): len(inside[0][x] & inside[1][y]) for x, y in product(*inside)}
    most = max(fits.values())
    best, *others = sorted(
        (pair for pair in fits if fits[pair] == most),
        key=lambda pair: (len(pair[0]) + len(pair[1]), *pair),
    )
    return best if most and all(_is_deeper(best, other) for other in others) else None


def _is_deeper(roots: Sequence[str], other: Sequence[str]) -> bool:
    within = [_within(root)(deeper) for root, deeper in zip(roots, other, strict=True)]
    return within[0] is not None and within[0] == within[1]


def _roots(names: set[str]) -> list[str]:
    found = {""}
    for name in names:
        parts = name.split(".")
        found |= {".".join(parts[:deep]) for deep in range(1, DEEPEST + 1)}
    return sorted(found - {*names})
