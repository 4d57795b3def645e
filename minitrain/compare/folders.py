"""Two folders of states, as Accelerate or Fabric leave them, file by file."""

import filecmp
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from minitrain.compare.formats import files_of, is_state
from minitrain.compare.state_diff import Comparison, compare_states
from minitrain.compare.states import read_state
from minitrain.core.errors import UserError
from minitrain.core.files import require_regular


@dataclass
class FoldersCompared:
    """``states`` by their path in the folder; ``files`` are those that could only be
    compared byte by byte: whether they are equal.
    """

    states: dict[str, Comparison] = field(default_factory=dict)
    files: dict[str, bool] = field(default_factory=dict)
    only_in_a: list[str] = field(default_factory=list)
    only_in_b: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Return whether both hold the same, every bit of it."""
        alike = all(found.equal for found in self.states.values())
        only = self.only_in_a or self.only_in_b
        return alike and all(self.files.values()) and not only


def compare_folders(a: Path, b: Path, prefix: str = "") -> FoldersCompared:
    """Compare what has the same path in both; see :func:`read_state` for ``prefix``.
    Where each has one state of several files, these two, also by other names.

    Raises UserError where they have no state in common.
    """
    parts = [dict(_parts(folder, folder)) for folder in (a, b)]
    ours, theirs = ({*found} for found in parts)
    large = [[name for name, is_large in found.items() if is_large] for found in parts]
    found = FoldersCompared()
    if large[0] != large[1] and len(large[0]) == len(large[1]) == 1:
        states = [read_state(folder, prefix) for folder in (a, b)]
        found.states[f"{large[0][0]}, {large[1][0]}"] = compare_states(*states)
        ours, theirs = ours - {*large[0]}, theirs - {*large[1]}
    found.only_in_a, found.only_in_b = sorted(ours - theirs), sorted(theirs - ours)
    for name in sorted(ours & theirs):
        try:
            states = [read_state(folder / name, prefix) for folder in (a, b)]
            found.states[name] = compare_states(*states)
        except UserError:
            if any(name in names for names in large):
                # its bytes are in other files
                raise
            # such as a configuration, or random numbers that would need code
            x, y = (require_regular(folder / name) for folder in (a, b))
            found.files[name] = filecmp.cmp(x, y, shallow=False)
    if not found.states:
        raise UserError(f"{a}: no training run, and holds no state that {b} has too")
    return found


def beside(state: Path) -> list[str]:
    """Return files in the folder of a state that are no part of it."""
    if not (state.is_dir() and is_state(state)):
        return []
    return [name for name, is_large in _parts(state, state) if not is_large]


def _parts(folder: Path, top: Path) -> Iterator[tuple[str, bool]]:
    """The states and files in ``folder``, as paths from ``top``, and whether it is a
    state of several files.
    """
    states = files_of(folder)
    covered = {file for files in states.values() for file in files}
    for state in sorted(states):
        yield state.relative_to(top).as_posix(), True
    for path in sorted({*folder.iterdir()} - covered):
        if path.is_dir():
            yield from _parts(path, top)
        else:
            yield path.relative_to(top).as_posix(), False
