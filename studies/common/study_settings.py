"""Shared schema of studies' params.yaml; a module per study extends it.

With separate modules, a change of one study's schema does not rerun other studies.
"""

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, create_model

from minitrain.core.schema import Count, Section, Some, load

# one process does not synchronize
WorldSize = Annotated[int, Field(ge=2)]
# with fewer rounds, intervals of comparisons are too wide
Rounds = Annotated[int, Field(ge=15)]


class Interleaved(Section):
    """Interleaved arms that train in every round, on several global batch sizes."""

    world_size: WorldSize
    num_rounds: Rounds
    steps_per_round: Count

    def batch_sizes(self) -> dict[str, int]:
        """Return the samples in a global batch, by key of params.yaml."""
        raise NotImplementedError


class InterleavedAtOneSize(Interleaved):
    """Interleaved arms at one global batch size."""

    global_batch_size: Count

    def batch_sizes(self) -> dict[str, int]:
        return {"global_batch_size": self.global_batch_size}


class InterleavedAtSizes(Interleaved):
    """Interleaved arms at several global batch sizes."""

    global_batch_sizes: Some[Count]

    def batch_sizes(self) -> dict[str, int]:
        sizes = enumerate(self.global_batch_sizes)
        return {f"global_batch_sizes.{number}": size for number, size in sizes}


S = TypeVar("S", bound=Section)


def load_study(folder: Path, schema: type[S]) -> S:
    """Load the section of ``folder``/params.yaml with the name of the folder.

    Raises UserError as :func:`minitrain.core.schema.load` does.
    """
    sections: dict[str, Any] = {folder.name: (schema, ...)}
    file = create_model("File", __base__=Section, **sections)
    found: S = getattr(load(folder / "params.yaml", file), folder.name)
    return found
