"""Arms of the study: number of hosts, ranks per host, and training options."""

from dataclasses import dataclass, field
from typing import Any

BATCH = 32
# placeholder for the link of arms on a single host
ONE_HOST = "one host"
# an arm and its A/A duplicate
FOUR, AGAIN = "ddp, 2 hosts x 2", "ddp, 2 hosts x 2, again"
HIERARCHICAL = "hierarchical, 2 hosts x 2"
# fixed values, overriding params.yaml
PLAIN = {
    "sync": "ddp",
    "global_batch_size": BATCH,
    "grad_accumulation_steps": 1,
    "precision": "float32",
    "bucket_cap_mb": None,
    "overlap": True,
    "num_epochs": None,
}


@dataclass(frozen=True)
class Arm:
    """Arm with ``changes`` to the section ``train`` of params.yaml."""

    name: str
    hosts: int = 2
    ranks_per_host: int = 1
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        return self.hosts * self.ranks_per_host

    @property
    def settings(self) -> dict[str, Any]:
        """Options of the section ``train`` that an arm sets."""
        return {**PLAIN, **self.changes}

    def goes_over(self, link: str) -> bool:
        """Return true if the arm trains over ``link``; arms on one host use none."""
        return (self.hosts == 1) == (link == ONE_HOST)


def _accumulation(steps: int) -> dict[str, Any]:
    # one all-reduce for the samples of that many steps
    return {"grad_accumulation_steps": steps, "global_batch_size": steps * BATCH}


ARMS = [
    Arm("one process", hosts=1),
    Arm("ddp, one host", hosts=1, ranks_per_host=2),
    Arm("ddp"),
    Arm("flat", changes={"sync": "flat"}),
    Arm("fp16_compress", changes={"sync": "fp16_compress"}),
    Arm("powersgd", changes={"sync": "powersgd"}),
    Arm("ddp, accumulation of 4", changes=_accumulation(4)),
    Arm("ddp, accumulation of 8", changes=_accumulation(8)),
    Arm("invariant", changes={"sync": "invariant"}),
    Arm(FOUR, ranks_per_host=2),
    Arm(AGAIN, ranks_per_host=2),
    Arm(HIERARCHICAL, 2, 2, {"sync": "hierarchical"}),
    Arm("invariant, 2 hosts x 2", 2, 2, {"sync": "invariant"}),
    Arm("ddp, 4 hosts", hosts=4),
]
