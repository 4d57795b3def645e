"""Two states, tensor by tensor: what differs, how far, and where first."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minitrain.diff.states import State
from minitrain.proof.ulp import Gap, same_bits, same_kind, tensor_gap


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

    ``unlike`` are tensors of other dtype or shape, ``values`` the entries that are no
    tensors. The largest distances are over all tensors that have one: those in
    ``without_distance`` differ and hold a NaN.
    """

    equal: bool
    num_tensors: int
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


def compare_states(a: State, b: State) -> Comparison:
    """Compare bit by bit, in the order of A; little memory beside the files' own."""
    names_a, names_b = ({**x.tensors, **x.values} for x in (a, b))
    both = [name for name in names_a if name in names_b]
    tensors = [name for name in both if name in a.tensors and name in b.tensors]
    values = [name for name in both if name in a.values and name in b.values]
    alike = [name for name in tensors if same_kind(a.tensors[name], b.tensors[name])]
    unlike = {*both} - {*alike, *values}
    gaps = {
        name: tensor_gap(a.tensors[name], b.tensors[name])
        for name in alike
        if not same_bits(a.tensors[name], b.tensors[name])
    }
    other = [name for name in values if not _same_value(a.values[name], b.values[name])]
    only_in_a = [name for name in names_a if name not in names_b]
    only_in_b = [name for name in names_b if name not in names_a]
    furthest = _furthest(gaps)
    ulps = [gap.max_ulp for gap in gaps.values() if gap.max_ulp is not None]
    return Comparison(
        equal=not (gaps or unlike or other or only_in_a or only_in_b),
        num_tensors=len(alike),
        num_different_tensors=len(gaps),
        num_different_elements=sum(gap.num_different for gap in gaps.values()),
        max_ulp=max(ulps, default=None if gaps else 0),
        max_abs_diff=furthest[1] if gaps else 0.0,
        max_abs_diff_tensor=furthest[0],
        first=_first_element(a, b, gaps),
        only_in_a=only_in_a,
        only_in_b=only_in_b,
        unlike={
            name: f"{_kind(names_a[name])} against {_kind(names_b[name])}"
            for name in both
            if name in unlike
        },
        values={
            name: f"{a.values[name]!r} against {b.values[name]!r}" for name in other
        },
        without_distance=[name for name, gap in gaps.items() if gap.max_ulp is None],
    )


def _same_value(a: object, b: object) -> bool:
    return type(a) is type(b) and a == b


def _furthest(gaps: dict[str, Gap]) -> tuple[str | None, float | None]:
    known = {n: g.max_abs_diff for n, g in gaps.items() if g.max_abs_diff is not None}
    return max(known.items(), key=lambda item: item[1], default=(None, None))


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
