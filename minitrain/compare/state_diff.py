"""Bitwise comparison of two states, or of two folders of states and other files."""

import filecmp
import struct
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from minitrain.compare.formats import Inert, files_of, is_state, loaded
from minitrain.compare.states import State, align, place, read_state
from minitrain.core.errors import UserError
from minitrain.core.files import require_regular
from minitrain.core.progress import progress
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


@dataclass
class Comparison:
    """The result of comparing states A and B; ``equal`` if nothing differs.

    The counts are for entries in both. ``unlike``: tensors with another dtype or shape;
    ``values``: other entries that differ. The largest distances exclude the tensors
    ``without_distance``, which contain a NaN. ``aliases``: second names of tied
    weights, in one state only; no difference. ``notes``: lines on names that were
    changed for the comparison. ``objects``: Python objects, which are not compared.
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
    aliases: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    objects: list[str] = field(default_factory=list)


def compare_states(a: State, b: State) -> Comparison:
    """Compare two states bit by bit, in the order of A, after aligning their names
    (:func:`align`); one pair of tensors is in memory at a time.
    """
    objects = sorted({*a.objects.items()} | {*b.objects.items()})
    a, b, notes, left = align(a, b)
    found = Comparison(objects=[f"{n} ({path})" for n, path in objects], notes=notes)
    ours, theirs = ({**state.tensors, **state.values} for state in (a, b))
    both = [name for name in ours if name in theirs]
    gaps: dict[str, Gap] = {}
    for name in progress(both, "tensors", total=len(both)):
        x, y = loaded(ours[name]), loaded(theirs[name])
        if isinstance(x, Tensor) and isinstance(y, Tensor) and same_kind(x, y):
            found.num_tensors += 1
            found.num_elements += x.numel()
            if not same_bits(x, y):
                gaps[name] = tensor_gap(x, y)
                found.first = found.first or _element(name, x, y, gaps[name])
        elif isinstance(x, Tensor) or isinstance(y, Tensor):
            found.unlike[name] = f"{_kind(x)} against {_kind(y)}"
        else:
            found.num_values += 1
            if not _same_value(x, y):
                found.values[name] = f"{_brief(x)} against {_brief(y)}"
    if gaps:
        _measure(gaps, found)
    only = [[n for n in x if n not in y] for x, y in ((ours, theirs), (theirs, ours))]
    found.aliases = _aliases(a, only[0], both) | _aliases(b, only[1], both)
    only = [names + more for names, more in zip(only, left, strict=True)]
    found.only_in_a, found.only_in_b = (
        [name for name in names if name not in found.aliases] for names in only
    )
    apart = found.num_different_tensors or found.unlike or found.values
    found.equal = not (apart or found.only_in_a or found.only_in_b)
    return found


def _measure(gaps: dict[str, Gap], found: Comparison) -> None:
    # count the tensors that differ, and find the largest distances
    found.num_different_tensors = len(gaps)
    found.num_different_elements = sum(gap.num_different for gap in gaps.values())
    ulps = {n: gap.max_ulp for n, gap in gaps.items() if gap.max_ulp is not None}
    far = {n: g.max_abs_diff for n, g in gaps.items() if g.max_abs_diff is not None}
    found.without_distance = [name for name in gaps if name not in ulps]
    found.max_ulp = max(ulps.values(), default=None)
    found.max_abs_diff_tensor = max(far, key=lambda name: far[name], default=None)
    found.max_abs_diff = max(far.values(), default=None)


def _aliases(state: State, names: list[str], both: list[str]) -> dict[str, str]:
    # some formats keep only one name of tied weights
    own = [name for name in names if name in state.tensors]
    tied = [name for name in both if name in state.tensors] if own else []
    places = {place(state, name): name for name in tied}
    found = {name: places.get(place(state, name)) for name in own}
    return {name: same for name, same in found.items() if same is not None}


def _same_value(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        # NaNs with the same bits are equal, and 0.0 differs from -0.0
        return struct.pack("d", a) == struct.pack("d", b)
    return type(a) is type(b) and a == b


def _brief(value: object) -> str:
    if not isinstance(value, Inert):
        return repr(value)
    return f"NumPy data (CRC {crc32(repr(value).encode()):08x})"


def _kind(entry: object) -> str:
    if not isinstance(entry, Tensor):
        return f"the value {_brief(entry)}"
    return f"{str(entry.dtype).removeprefix('torch.')} {tuple(entry.shape)}"


def _element(name: str, a: Tensor, b: Tensor, gap: Gap) -> Element:
    assert gap.first is not None
    # a complex number is two elements of a gap
    flat = gap.first // 2 if a.is_complex() else gap.first
    index = tuple(int(i) for i in np.unravel_index(flat, tuple(a.shape)))
    x, y = (t[index].resolve_conj().resolve_neg() for t in (a, b))
    return Element(name, index, _shown(x), _shown(y), _hex(x), _hex(y))


def _shown(element: Tensor) -> str:
    # nine digits distinguish all numbers of up to 32 bits
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


@dataclass
class FoldersCompared:
    """The result of comparing two folders. ``states``: results by path in the folder;
    ``files``: for other files, whether their bytes are equal.
    """

    states: dict[str, Comparison] = field(default_factory=dict)
    files: dict[str, bool] = field(default_factory=dict)
    only_in_a: list[str] = field(default_factory=list)
    only_in_b: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Return whether every bit is the same."""
        alike = all(found.equal for found in self.states.values())
        only = self.only_in_a or self.only_in_b
        return alike and all(self.files.values()) and not only


def compare_folders(a: Path, b: Path) -> FoldersCompared:
    """Compare the states and other files that have the same path in both folders. The
    only state of several files in each folder may have another name.

    Raises:
        UserError: the folders share no state, or one of several files cannot be read.
    """
    parts = [dict(_parts(folder, folder)) for folder in (a, b)]
    ours, theirs = ({*found} for found in parts)
    large = [[name for name, is_large in found.items() if is_large] for found in parts]
    pairs = {name: (a / name, b / name) for name in sorted(ours & theirs)}
    if large[0] != large[1] and len(large[0]) == len(large[1]) == 1:
        (mine,), (other,) = large
        pairs = {f"{mine}, {other}": (a / mine, b / other)} | pairs
        ours, theirs = ours - {mine}, theirs - {other}
    found = FoldersCompared()
    found.only_in_a, found.only_in_b = sorted(ours - theirs), sorted(theirs - ours)
    for name, paths in pairs.items():
        try:
            found.states[name] = compare_states(*map(read_state, paths))
        except UserError:
            # the bytes of a large state are in other files
            if any(of.get(name, True) for of in parts):
                raise
            # a configuration, a random state that needs code to be read, a damaged file
            x, y = map(require_regular, paths)
            found.files[name] = filecmp.cmp(x, y, shallow=False)
    if not found.states:
        raise UserError(f"{a}: no training run, and holds no state that {b} has too")
    return found


def beside(state: Path) -> list[str]:
    """Return the files in the folder ``state`` that do not belong to the state in it;
    empty if ``state`` is no folder of one state.
    """
    if not (state.is_dir() and is_state(state)):
        return []
    return [name for name, is_large in _parts(state, state) if not is_large]


def _parts(
    folder: Path, top: Path, above: Set[Path] = frozenset()
) -> Iterator[tuple[str, bool]]:
    # states and files by path from ``top``, and whether it is a state of several files
    above |= {folder.resolve()}
    states = files_of(folder)
    covered = {file for files in states.values() for file in files}
    for state in sorted(states):
        yield state.relative_to(top).as_posix(), True
    for path in sorted({*folder.iterdir()} - covered):
        if path.is_dir():
            if path.resolve() not in above:  # else a link leads back
                yield from _parts(path, top, above)
        else:
            yield path.relative_to(top).as_posix(), False
