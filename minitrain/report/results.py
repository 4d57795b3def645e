"""What the stages measured, gathered for the report."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from minitrain.analysis.comparison import Baseline, ddp_arm
from minitrain.core.errors import UserError
from minitrain.core.provenance import require_one_machine
from minitrain.report.numbers import plural
from minitrain.report.studied import Studied


@dataclass(frozen=True)
class Results:
    """Everything that the report is made of; RUN is ``gloo-W`` or ``nccl-W``.

    ``provenance``, ``first_texts``, ``equivalence``, ``timing`` and ``losses`` hold one
    entry per run that params ask for, in that order. ``account`` has the columns run,
    part (a key of the account in timing.json), mean_ms, low_ms, high_ms. A step takes
    ``batch_size`` of ``num_samples``. ``samples`` is what the stage ``sample`` wrote.
    ``bugs`` is what the zoo found, None where other
    code found it. Raises UserError when the timings come from more than one machine.
    """

    seed: int
    batch_size: int
    num_samples: int
    params_sha256: str
    gloo_world_sizes: list[int]
    baseline: Baseline
    baseline_provenance: Mapping[str, Any]
    provenance: Mapping[str, Mapping[str, Any]]
    first_texts: Mapping[str, list[str]]
    equivalence: Mapping[str, Mapping[str, Any]]
    timing: Mapping[str, Mapping[str, Any]]
    account: pd.DataFrame
    losses: Mapping[str, pd.DataFrame]
    samples: Mapping[str, Any]
    studied: Studied
    studied_hosts: Studied
    studied_collectives: pd.DataFrame
    bugs: Mapping[str, Any] | None

    def __post_init__(self) -> None:
        named = {"baseline": self.baseline_provenance, **self.provenance}
        # runs with nccl use the GPU of the machine, the others do not
        machines = {
            n: {"machine": {**p["machine"], "gpu": None}} for n, p in named.items()
        }
        require_one_machine(machines)

    @property
    def world_size(self) -> int:
        """Processes of the largest gloo run."""
        return max(self.gloo_world_sizes)

    @property
    def largest(self) -> str:
        """Name of the largest gloo run, which the findings are about."""
        return ddp_arm(self.world_size)

    @property
    def on_several_hosts(self) -> list[str]:
        """The runs that were; their machine is that of rank 0."""
        return [run for run, timing in self.timing.items() if num_hosts(timing) > 1]

    @property
    def machine(self) -> Mapping[str, Any]:
        """Fingerprint of the machine on which everything was measured."""
        machine: Mapping[str, Any] = self.baseline_provenance["machine"]
        return machine

    @property
    def accounts(self) -> dict[str, Mapping[str, Any]]:
        """The step account of every run in which no part is missing."""
        accounts = {run: timing["account"] for run, timing in self.timing.items()}
        return {run: of for run, of in accounts.items() if of["closed"] is not None}

    def label(self, run: str) -> str:
        """``run`` as tables and sentences name it, with its hosts where it had several:
        what its steps took is not to be held against the baseline, which has one.
        """
        return with_hosts(run, num_hosts(self.timing[run]))

    def verdict(self, run: str) -> str:
        """What the evidence says of ``run``, as metrics/equivalence.json has it."""
        return str(self.equivalence[run].get("verdict", "undecided"))

    def rests_on(self, run: str) -> str | None:
        """The sentence on what that verdict rests on."""
        return self.equivalence[run].get("rests_on")

    def interval(self, run: str, part: str) -> tuple[float, float] | None:
        """5-95 % interval of a part's mean in ms; None where there is none."""
        table = self.account
        row = table[(table["run"] == run) & (table["part"] == part)]
        bounds = row[["low_ms", "high_ms"]].dropna().to_numpy()
        return (float(bounds[0][0]), float(bounds[0][1])) if len(bounds) else None


def num_hosts(timing: Mapping[str, Any]) -> int:
    """On how many hosts a run was, by its entry of metrics/timing.json."""
    # one that says nothing is older than runs on several
    return int(timing.get("num_hosts", 1))


def with_hosts(run: str, hosts: int) -> str:
    """``gloo-4``, or ``gloo-4 (2 hosts)``."""
    return run if hosts == 1 else f"{run} ({plural(hosts, 'host')})"


def only_runs(found: Mapping[str, Any], runs: list[str], source: str) -> dict[str, Any]:
    """The entries of ``found`` for ``runs``; UserError naming the first one missing."""
    for run in runs:
        if run not in found:
            held = ", ".join(found) or "none"
            raise UserError(f"{source}: no run {run}; it holds {held}")
    return {run: found[run] for run in runs}
