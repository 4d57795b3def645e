"""What a forward pass depends on, or changes, beside its samples and parameters.

Random numbers and batch norm make several processes compute something else than one, by
design. Other buffers are no reason: where they steer the loss, processes that count
each for itself train otherwise than one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from minitrain.proof.first_difference import Rows, of_kind
from minitrain.train.config import RunConfig
from minitrain.train.rng import untouched_random_state
from minitrain.train.step_record import sha256_tensor

DRAWS = "the forward pass draws random numbers, each rank its own"
CHANGES = "each rank's forward pass changes"
NORMALIZES = "batch norm normalizes by each rank's own samples"
# what batch norm keeps; a buffer that somebody adds to one is not its own
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Forward:
    """``why`` one process with the whole batch computes something else by design, if
    so, and the names of the buffers that are ``changed`` on the way.
    """

    why: str | None
    changed: Sequence[str]

    @property
    def changes(self) -> str:
        """The changed buffers in a phrase; empty without any."""
        return f"{CHANGES} {_some(self.changed)}" if self.changed else ""

    def lacks(self, state: Iterable[str]) -> str:
        """What is missing where these are left out of ``state``."""
        left_out = [name for name in state if name in self.changed]
        return f"without {_some(left_out)}, which {CHANGES}" if left_out else ""


def forward_of(run: Rows, config: RunConfig) -> Forward:
    """Tell by what ``run`` recorded, and by the model of ``config``: which buffers are
    those of batch norm no record says.
    """
    changed, statistics = _changed_buffers(run, config)
    why = NORMALIZES if {*changed} & statistics else None
    if any(row["draws_random_numbers"] for row in of_kind(run, "forward")):
        why = DRAWS
    return Forward(why, changed)


def collectives_of(run: Rows) -> list[str]:
    """Return the names of the collectives that a forward pass calls."""
    rows = of_kind(run, "collectives")
    return sorted({name for row in rows for name in row["names"]})


def _changed_buffers(run: Rows, config: RunConfig) -> tuple[list[str], set[str]]:
    # those that are not as they started, under all their names, and those of batch norm
    recorded = [row.get("buffers", {}) for row in of_kind(run, "tensors")]
    change = any(row["changes_buffers"] for row in of_kind(run, "forward"))
    # a pass may change them that is not the first one
    if not change and all(buffers == recorded[0] for buffers in recorded):
        return [], set()
    with untouched_random_state():
        model = config.start_model(0)
    named = dict(model.named_buffers(remove_duplicate=False))
    start = {name: sha256_tensor(buffer) for name, buffer in named.items()}
    found = {
        name
        for buffers in recorded
        for name, sha256 in buffers.items()
        if sha256 != start.get(name)
    }
    # a buffer that two modules share is recorded under one of its names
    same = {id(named[name]) for name in found if name in named}
    found |= {name for name, buffer in named.items() if id(buffer) in same}
    return sorted(found), _statistics(model, bool(collectives_of(run)))


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:3])}{', ...' if names[3:] else ''}"


def _statistics(model: nn.Module, communicates: bool) -> set[str]:
    # a subclass that computes otherwise may reduce its statistics over the ranks
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, _BatchNorm)
        if not communicates or type(module).forward is _BatchNorm.forward
        for name in STATISTICS
    }
