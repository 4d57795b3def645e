"""Two folders of states, as Accelerate or Fabric leave them, file by file."""

import filecmp
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from minitrain.core.errors import UserError
from minitrain.diff.formats import INDEX, is_state, shards_of
from minitrain.diff.state_diff import Comparison, compare_states
from minitrain.diff.states import read_state


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
        """Whether both hold the same, every bit of it."""
        alike = all(found.equal for found in self.states.values())
        only = self.only_in_a or self.only_in_b
        return alike and all(self.files.values()) and not only


def compare_folders(a: Path, b: Path, prefix: str = "") -> FoldersCompared:
    """Compare what has the same path in both; see :func:`read_state` for ``prefix``.

    Raises UserError where they have no state in common.
    """
    ours, theirs = ({*_parts(folder, folder)} for folder in (a, b))
    found = FoldersCompared(
        only_in_a=sorted(ours - theirs), only_in_b=sorted(theirs - ours)
    )
    for name in sorted(ours & theirs):
        try:
            states = [read_state(folder / name, prefix) for folder in (a, b)]
            found.states[name] = compare_states(*states)
        except UserError:
            if (a / name).is_dir():
                raise
            # such as a configuration, or random numbers that would need code
            found.files[name] = filecmp.cmp(a / name, b / name, shallow=False)
    if not found.states:
        raise UserError(f"{a}: no training run, and holds no state that {b} has too")
    return found


def _parts(folder: Path, top: Path) -> Iterator[str]:
    """The states and files in ``folder``, as paths from ``top``."""
    shards = {file for index in folder.glob(f"*{INDEX}") for file in shards_of(index)}
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not is_state(path):
            yield from _parts(path, top)
        elif path not in shards:
            yield path.relative_to(top).as_posix()
