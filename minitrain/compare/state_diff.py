"""Two states, tensor by tensor: what differs, how far, and where first."""

import struct
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from minitrain.compare.entries import PART
from minitrain.compare.names import align
from minitrain.compare.states import OnDisk, State, hand_back
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


@dataclass(frozen=True)
class Comparison:
    """What differs between states A and B; ``equal`` where nothing does.

    Counts are of what both have. ``unlike`` are tensors of other dtype or shape,
    ``values`` the entries that are no tensors. The largest distances are over all
    tensors that have one: those in ``without_distance`` differ and hold a NaN.
    ``aliases`` are names that only one side has, for a tensor that it also has by a
    name of both: no difference. ``nan`` counts the NaNs, of the same bits on both
    sides, in tensors that are equal. ``said`` is what was done to names, a clause each;
    ``num_parts`` counts DTensors, of which one rank's part alone is there. ``objects``
    of Python are not compared: a clause each.
    """

    equal: bool
    num_tensors: int
    num_elements: int
    num_values: int
    num_different_tensors: int
    num_different_elements: int
    max_ulp: int | None
    max_abs_diff: float | None
    max_abs_diff_tensor: str | None
    first: Element | None
    only_in_a: list[str]
    only_in_b: list[str]
    unlike: dict[str, str]
    values: dict[str, str]
    without_distance: list[str]
    nan: dict[str, int]
    aliases: dict[str, str]
    said: list[str]
    num_parts: int
    objects: list[str] = field(default_factory=list)


def compare_states(a: State, b: State) -> Comparison:
    """Compare bit by bit, in the order of A; little memory beside the files' own."""
    objects = [
        f"{name} ({path})"
        for name, path in sorted({*a.objects.items()} | {*b.objects.items()})
    ]
    aligned = align(a, b)
    a, b = aligned.a, aligned.b
    both = [name for name in a.tensors if name in b.tensors]
    gaps, kinds, nan, num_elements = _tensors(a, b, both)
    unlike = kinds | _mixed(a, b)
    values = [name for name in a.values if name in b.values]
    other = [name for name in values if not _same_value(a.values[name], b.values[name])]
    only = [_only_here(mine, theirs) for mine, theirs in ((a, b), (b, a))]
    aliases = _aliases(a, only[0], both) | _aliases(b, only[1], both)
    if all(aligned.left):
        # which of them are meant by which is not known
        only = [names + left for names, left in zip(only, aligned.left, strict=True)]
    only_in_a, only_in_b = ([n for n in names if n not in aliases] for names in only)
    far = {n: g.max_abs_diff for n, g in gaps.items() if g.max_abs_diff is not None}
    furthest = max(far.items(), key=lambda item: item[1], default=(None, None))
    ulps = [gap.max_ulp for gap in gaps.values() if gap.max_ulp is not None]
    return Comparison(
        equal=not (gaps or unlike or other or only_in_a or only_in_b),
        num_tensors=len(both) - len(kinds),
        num_elements=num_elements,
        num_values=len(values),
        num_different_tensors=len(gaps),
        num_different_elements=sum(gap.num_different for gap in gaps.values()),
        max_ulp=max(ulps, default=None if gaps else 0),
        max_abs_diff=furthest[1] if gaps else 0.0,
        max_abs_diff_tensor=furthest[0],
        first=_first_element(a, b, gaps),
        only_in_a=only_in_a,
        only_in_b=only_in_b,
        unlike=unlike,
        values={
            name: f"{a.values[name]!r} against {b.values[name]!r}" for name in other
        },
        without_distance=[name for name, gap in gaps.items() if gap.max_ulp is None],
        nan=nan,
        aliases=aliases,
        said=aligned.said,
        num_parts=sum(name.endswith(PART) for name in values),
        objects=objects,
    )


def _tensors(
    a: State, b: State, both: list[str]
) -> tuple[dict[str, Gap], dict[str, str], dict[str, int], int]:
    gaps: dict[str, Gap] = {}
    kinds: dict[str, str] = {}
    nan: dict[str, int] = {}
    num_elements = 0
    for name in progress(both, "tensors", total=len(both)):
        x, y = a.tensors[name], b.tensors[name]
        if not same_kind(x, y):
            kinds[name] = f"{_kind(x)} against {_kind(y)}"
        else:
            num_elements += x.numel()
            if not same_bits(x, y):
                gaps[name] = tensor_gap(x, y)
            elif count := num_nan(x):
                nan[name] = count
        for tensor in (x, y):
            hand_back(tensor)
    return gaps, kinds, nan, num_elements


def _mixed(a: State, b: State) -> dict[str, str]:
    # a tensor on one side, a value on the other
    names = [name for name in a.tensors if name in b.values]
    names += [name for name in a.values if name in b.tensors]
    return {n: f"{_kind(_entry(a, n))} against {_kind(_entry(b, n))}" for n in names}


def _entry(state: State, name: str) -> object:
    return state.tensors[name] if name in state.tensors else state.values[name]


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
        # read anew each time: memory says nothing of it
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


def _first_element(a: State, b: State, gaps: dict[str, Gap]) -> Element | None:
    if not gaps:
        return None
    name, gap = next(iter(gaps.items()))
    assert gap.first is not None
    whole = a.tensors[name]
    # a complex number is two elements of a gap
    flat = gap.first // 2 if whole.is_complex() else gap.first
    index = tuple(int(i) for i in np.unravel_index(flat, tuple(whole.shape)))
    x, y = whole[index], b.tensors[name][index]
    return Element(name, index, _shown(x), _shown(y), _hex(x), _hex(y))


def _shown(element: Tensor) -> str:
    # nine digits tell any two numbers of up to 32 bits apart
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
