"""Side inputs and effects of a forward pass: random numbers and buffers.

With random numbers or batch norm, several processes compute a different result than one
by design. If the loss depends on other buffers, which each process updates from its own
samples, results differ too, but that is a fault.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from minitrain.proof.evidence import Rows, of_kind
from minitrain.train.config import RunConfig
from minitrain.train.rng import untouched_random_state
from minitrain.train.step_record import sha256_tensor

DRAWS = "the forward pass draws random numbers, each rank its own"
NORMALIZES = "batch norm normalizes by each rank's own samples"
# buffers of batch norm itself, without any that a subclass adds
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Forward:
    """Properties of a run's forward pass: ``why`` one process with the whole batch
    differs by design (None: it does not), and names of buffers that were ``changed``.
    """

    why: str | None
    changed: Sequence[str]

    def omits(self, state: Iterable[str]) -> str:
        """Return a clause that names the changed buffers in ``state``, or ""."""
        left_out = ", ".join(name for name in state if name in self.changed)
        why = f"without {left_out}, which each rank's forward pass changes"
        return why if left_out else ""


def forward_of(run: Rows, config: RunConfig) -> Forward:
    """Return the forward pass's random numbers and changed buffers, from the rows of
    ``run``. The model of ``config`` shows which buffers belong to batch norm.
    """
    changed, statistics = _changed_buffers(run, config)
    why = NORMALIZES if {*changed} & statistics else None
    if any(row["draws_random_numbers"] for row in of_kind(run, "forward")):
        why = DRAWS
    return Forward(why, changed)


def collectives_of(run: Rows) -> list[str]:
    """Return the sorted names of collectives called in the forward pass, maybe none."""
    rows = of_kind(run, "collectives")
    return sorted({name for row in rows for name in row["names"]})


def _changed_buffers(run: Rows, config: RunConfig) -> tuple[list[str], set[str]]:
    # all names of buffers that differ from their start, and of buffers of batch norm
    recorded = [row.get("buffers", {}) for row in of_kind(run, "tensors")]
    change = any(row["changes_buffers"] for row in of_kind(run, "forward"))
    # a pass after the first may be the one that changes them
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
    # a buffer shared by two modules is recorded under only one of its names
    same = {id(named[name]) for name in found if name in named}
    found |= {name for name, buffer in named.items() if id(buffer) in same}
    return sorted(found), _statistics(model, bool(collectives_of(run)))


def _statistics(model: nn.Module, communicates: bool) -> set[str]:
    # a subclass with its own forward may reduce its statistics over the ranks
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, _BatchNorm)
        if not communicates or type(module).forward is _BatchNorm.forward
        for name in STATISTICS
    }
