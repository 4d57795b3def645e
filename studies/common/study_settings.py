"""What the params.yaml of studies may say: here what they share, then a module each.

So a study is run again when what it asks for itself changes, and not another's.
"""

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, create_model

from minitrain.core.schema import Count, Section, Some, load

# one process synchronizes with nobody
WorldSize = Annotated[int, Field(ge=2)]
# below, the interval of a comparison says little
Rounds = Annotated[int, Field(ge=15)]


class Interleaved(Section):
    """Interleaved arms: in each round all train, on global batches of some sizes."""

    world_size: WorldSize
    num_rounds: Rounds
    steps_per_round: Count

    def batch_sizes(self) -> dict[str, int]:
        """Samples in a global batch, by the key that says it."""
        raise NotImplementedError


class InterleavedAtOneSize(Interleaved):
    """All of them at one size of the global batch."""

    global_batch_size: Count

    def batch_sizes(self) -> dict[str, int]:
        return {"global_batch_size": self.global_batch_size}


class InterleavedAtSizes(Interleaved):
    """All of them at each of several sizes of the global batch."""

    global_batch_sizes: Some[Count]

    def batch_sizes(self) -> dict[str, int]:
        sizes = enumerate(self.global_batch_sizes)
        return {f"global_batch_sizes.{number}": size for number, size in sizes}


S = TypeVar("S", bound=Section)


def load_study(folder: Path, schema: type[S]) -> S:
    """The section of ``folder``/params.yaml that bears the folder's name.

    Raises UserError as :func:`minitrain.core.schema.load` does.
    """
    sections: dict[str, Any] = {folder.name: (schema, ...)}
    file = create_model("File", __base__=Section, **sections)
    found: S = getattr(load(folder / "params.yaml", file), folder.name)
    return found
