"""Two states, tensor by tensor: what differs, how far, and where first."""

import struct
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from minitrain.compare.entries import PART
from minitrain.compare.names import align
from minitrain.compare.states import OnDisk, State
from minitrain.core.progress import progress
from minitrain.proof.ulp import Gap, num_nan, same_bits, same_kind, tensor_gap


@dataclass(frozen=True)
class Element:
    """The first element that differs: its value and its bits on both sides."""

    tensor: str
    index: tuple[int, ...]
    a: str
    b: str
    a_hex: str
    b_hex: str


@dataclass
class Comparison:
    """The result of comparing states A and B; ``equal`` if nothing differs.

    Counts are of what both have. ``unlike`` are tensors of other dtype or shape,
    ``values`` the entries that are no tensors. The largest distances are over all
    tensors that have one: those in ``without_distance`` differ and hold a NaN.
    ``aliases`` are names that only one side has, for a tensor that it also has by a
    name of both: no difference. ``nan`` counts the NaNs, of the same bits on both
    sides, in tensors that are equal. ``said`` is what was done to names, a clause each;
    ``num_parts`` counts DTensors, of which one rank's part alone is there. ``objects``
    of Python are not compared: a clause each.
    """

    equal: bool = True
    num_tensors: int = 0
    num_elements: int = 0
    num_values: int = 0
    num_different_tensors: int = 0
    num_different_elements: int = 0
    max_ulp: int | None = 0
    max_abs_diff: float | None = 0.0
    max_abs_diff_tensor: str | None = None
    first: Element | None = None
    only_in_a: list[str] = field(default_factory=list)
    only_in_b: list[str] = field(default_factory=list)
    unlike: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    without_distance: list[str] = field(default_factory=list)
    nan: dict[str, int] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    num_parts: int = 0
    objects: list[str] = field(default_factory=list)


def compare_states(a: State, b: State) -> Comparison:
    """Compare bit by bit, in the order of A; little memory beside the files' own."""
    objects = sorted({*a.objects.items()} | {*b.objects.items()})
    aligned = align(a, b)
    a, b = aligned.a, aligned.b
    found = Comparison(
        objects=[f"{name} ({path})" for name, path in objects], said=aligned.said
    )
    _compare_tensors(a, b, found)
    for name in (name for name in a.values if name in b.values):
        x, y = a.values[name], b.values[name]
        found.num_values += 1
        found.num_parts += name.endswith(PART)
        if not _same_value(x, y):
            found.values[name] = f"{x!r} against {y!r}"
    only = [_only_here(mine, theirs) for mine, theirs in ((a, b), (b, a))]
    both = [name for name in a.tensors if name in b.tensors]
    found.aliases = _aliases(a, only[0], both) | _aliases(b, only[1], both)
    if all(aligned.left):
        # which of them are meant by which is not known
        only = [names + left for names, left in zip(only, aligned.left, strict=True)]
    found.only_in_a, found.only_in_b = (
        [name for name in names if name not in found.aliases] for names in only
    )
    apart = found.num_different_tensors or found.unlike or found.values
    found.equal = not (apart or found.only_in_a or found.only_in_b)
    return found


def _compare_tensors(a: State, b: State, found: Comparison) -> None:
    both = [name for name in a.tensors if name in b.tensors]
    ulps: list[int] = []
    far: dict[str, float] = {}
    for name in progress(both, "tensors", total=len(both)):
        x, y = a.tensors[name], b.tensors[name]
        if not same_kind(x, y):
            found.unlike[name] = f"{_kind(x)} against {_kind(y)}"
            continue
        found.num_tensors += 1
        found.num_elements += x.numel()
        if same_bits(x, y):
            if count := num_nan(x):
                found.nan[name] = count
            continue
        gap = tensor_gap(x, y)
        found.num_different_tensors += 1
        found.num_different_elements += gap.num_different
        found.first = found.first or _element(name, x, y, gap)
        if gap.max_ulp is None:
            found.without_distance.append(name)
        else:
            ulps.append(gap.max_ulp)
        if gap.max_abs_diff is not None:
            far[name] = gap.max_abs_diff
    if found.num_different_tensors:
        found.max_ulp = max(ulps, default=None)
        found.max_abs_diff_tensor = max(far, key=lambda name: far[name], default=None)
        found.max_abs_diff = max(far.values(), default=None)
    # a tensor on one side, a value on the other
    for name in (name for name in a.tensors if name in b.values):
        found.unlike[name] = f"{_kind(a.tensors[name])} against {_kind(b.values[name])}"
    for name in (name for name in a.values if name in b.tensors):
        found.unlike[name] = f"{_kind(a.values[name])} against {_kind(b.tensors[name])}"


def _only_here(mine: State, theirs: State) -> list[str]:
    known = {*theirs.tensors, *theirs.values}
    return [name for name in (*mine.tensors, *mine.values) if name not in known]


def _aliases(state: State, names: list[str], both: list[str]) -> dict[str, str]:
    # of tied weights some formats keep one name
    own = [name for name in names if name in state.tensors]
    places = {_place(state, name): name for name in both} if own else {}
    found = {name: places.get(_place(state, name)) for name in own}
    return {name: same for name, same in found.items() if same is not None}


def _place(state: State, name: str) -> tuple[object, ...]:
    tensors = state.tensors
    if isinstance(tensors, OnDisk) and not tensors.is_held(name):
        # read from disk each time: it has no place in memory
        return (name,)
    tensor = tensors[name]
    if not tensor.numel():
        return (name,)
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _same_value(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        # a NaN is itself, and 0.0 is not -0.0
        return struct.pack("d", a) == struct.pack("d", b)
    return type(a) is type(b) and a == b


def _kind(entry: object) -> str:
    if not isinstance(entry, Tensor):
        return f"the value {entry!r}"
    return f"{str(entry.dtype).removeprefix('torch.')} {tuple(entry.shape)}"


def _element(name: str, a: Tensor, b: Tensor, gap: Gap) -> Element:
    assert gap.first is not None
    # a complex number is two elements of a gap
    flat = gap.first // 2 if a.is_complex() else gap.first
    index = tuple(int(i) for i in np.unravel_index(flat, tuple(a.shape)))
    x, y = a[index], b[index]
    return Element(name, index, _shown(x), _shown(y), _hex(x), _hex(y))


def _shown(element: Tensor) -> str:
    # any two numbers of up to 32 bits differ in nine digits
    wide = element.dtype in (torch.float64, torch.complex128)
    value = element.item()
    if isinstance(value, bool | int) or wide:
        return str(value)
    return f"{value:.9g}"


def _hex(element: Tensor) -> str:
    parts = torch.view_as_real(element) if element.is_complex() else element[None]
    size = parts.element_size()
    words = parts.contiguous().view(torch.uint8).numpy().view(f"u{size}")
    return " ".join(f"0x{int(word):0{2 * size}x}" for word in words)
