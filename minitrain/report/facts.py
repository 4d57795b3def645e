"""The facts of the report: results of the stages, and quantities derived from them.

Facts are numbers, names and enums; ``templates/sentences.md`` makes sentences of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from minitrain.analysis.account import AGREE_WITHIN, ALL_RANKS, PARTS
from minitrain.analysis.busy import why_busy
from minitrain.analysis.comparison import Comparison, Rounds
from minitrain.core.arms import BaselineArm, Kind, baseline_arms
from minitrain.core.provenance import require_one_machine
from minitrain.report.checks import NOT_RUN, QUESTIONS, Mark, Outcome, outcomes_of
from minitrain.report.numbers import plural
from minitrain.report.study_results import WHOLE, Hosts, LadderStudy, bare_allreduce

# name of the group of checks that answer none of the questions
OTHER = "Other checks"
COMPUTE = ("forward_ms", "backward_compute_ms", "optimizer_ms")
COMMUNICATION = ("wait_ms", "interference_ms", "comm_exposed_ms", "optimizer_comm_ms")
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Facts:
    """Input of the report. A run of W processes is named ``gloo-W`` or ``nccl-W``.

    ``provenance``, ``first_texts``, ``equivalence``, ``timing`` and ``losses`` have one
    entry per configured run, in that order. ``account`` (times of the components of a
    step) has the columns run, rank, part (a key of the account in timing.json),
    mean_ms, low_ms, high_ms. A step uses ``batch_size`` of ``num_samples``. ``bugs`` is
    the result of the study ``zoo`` (injected bugs), with ``since``, the later changes
    of its code. Raises UserError if the timings come from more than one machine.
    """

    seed: int
    batch_size: int
    num_samples: int
    params_sha256: str
    gloo_world_sizes: list[int]
    baseline: Rounds
    baseline_provenance: Json
    provenance: Mapping[str, Json]
    first_texts: Mapping[str, list[str]]
    equivalence: Mapping[str, Json]
    timing: Mapping[str, Json]
    account: pd.DataFrame
    losses: Mapping[str, pd.DataFrame]
    ladder_study: LadderStudy
    hosts_study: Hosts
    collectives_study: pd.DataFrame
    bugs: Json

    def __post_init__(self) -> None:
        named = {"baseline": self.baseline_provenance, **self.provenance}
        # only runs with nccl use the GPU
        machines = {
            n: {"machine": {**p["machine"], "gpu": None}} for n, p in named.items()
        }
        require_one_machine(machines)

    @property
    def world_size(self) -> int:
        """Number of processes of the largest gloo run."""
        return max(self.gloo_world_sizes)

    @property
    def run(self) -> str:
        """Name of the largest gloo run."""
        return f"gloo-{self.world_size}"

    @property
    def made(self) -> Json:
        """Provenance of the largest gloo run: its machine, time, code and settings."""
        return self.provenance[self.run]

    @property
    def strategy(self) -> str:
        """Name of the largest gloo run's synchronization strategy, for a sentence."""
        return strategy_name(self.made["sync"])

    @property
    def machine(self) -> Json:
        """Facts about the machine that measured (of several hosts, rank 0's)."""
        return dict(self.baseline_provenance["machine"])

    def hosts(self, run: str) -> int:
        """Return the number of hosts of ``run``."""
        return int(self.timing[run]["num_hosts"])

    def label(self, run: str) -> str:
        """Return the name of ``run``, with the number of hosts if above one."""
        hosts = self.hosts(run)
        return run if hosts == 1 else f"{run} ({plural(hosts, 'host')})"

    @property
    def on_several_hosts(self) -> list[str]:
        """Runs on more than one host; the recorded machine is rank 0's."""
        return [run for run in self.timing if self.hosts(run) > 1]

    def compare(self, kind: Kind, other: Kind) -> Comparison:
        """Compare the speed of two arms of the largest gloo run, both on one host."""
        arms = baseline_arms([self.world_size])
        names = {arm.kind: arm.name for arm in arms if arm.is_result}
        return self.baseline.compare(names[kind], names[other])

    @cached_property
    def against_one(self) -> Comparison:
        """Speed of :attr:`run` relative to one process (threads as in one rank)."""
        return self.compare(Kind.SYNC, Kind.ONE_PROCESS)

    @cached_property
    def against_all_cores(self) -> Comparison:
        """Speed of ``run`` relative to one process on all cores: the fair baseline."""
        return self.compare(Kind.SYNC, Kind.ALL_CORES)

    @cached_property
    def of_ceiling(self) -> Comparison | None:
        """Speed of :attr:`run` relative to no communication; None for one process."""
        return self.compare(Kind.SYNC, Kind.NO_SYNC) if self.world_size > 1 else None

    @property
    def instrument_cost(self) -> Comparison:
        """Speed of :attr:`run` with timestamps and hook, relative to without them."""
        return self.baseline.compare(f"{self.run}-timed", self.run)

    @cached_property
    def busy(self) -> str | None:
        """Reason why no speed is available (the machine was busy), or None."""
        return why_busy(self.baseline_provenance.get("load"), self.baseline.spread())

    def busy_during(self, run: str) -> Any:
        """Return why timings of ``run`` are discarded (machine busy), None if kept."""
        return self.timing[run]["machine_busy"]

    @cached_property
    def scaling(self) -> pd.DataFrame:
        """Table: arm, processes, threads, tokens_per_s_p5, _p50, _p95 (NaN if busy)."""
        table = self.baseline.scaling().round(1)
        if self.busy:
            table.loc[:, table.columns.str.startswith("tokens")] = np.nan
        return table

    @property
    def arms(self) -> dict[str, BaselineArm]:
        """The timed configurations (arms) of the speed comparison, by name."""
        return {arm.name: arm for arm in baseline_arms(self.gloo_world_sizes)}

    @property
    def bare(self) -> Json | None:
        """Study row of an all-reduce of about the gradients' size; None if missing."""
        if self.hosts(self.run) > 1 or self.made["sync"] not in WHOLE:
            return None
        study, size = self.collectives_study, self.made["gradient_bytes"]
        return bare_allreduce(study, self.machine, self.world_size, size)

    @cached_property
    def accounts(self) -> dict[str, Json]:
        """Step account (mean ms by component) of every run with usable timings."""
        return {
            run: timing["account"]
            for run, timing in self.timing.items()
            if timing["account"]["step_ms"] is not None and not self.busy_during(run)
        }

    @cached_property
    def shares(self) -> dict[str, float]:
        """Shares of step time of :attr:`run` by component; empty if none was timed."""
        account = self.accounts.get(self.run)
        return shares_of(account) if account else {}

    @property
    def compute(self) -> dict[str, float]:
        """Shares of step time of the components that compute; 0 if unknown."""
        return {part: self.shares.get(part, 0.0) for part in COMPUTE}

    @property
    def others(self) -> dict[str, float]:
        """Shares of step time of the components not in ``COMPUTE``, largest first."""
        others = {p: share for p, share in self.shares.items() if p not in COMPUTE}
        return dict(sorted(others.items(), key=lambda item: -item[1]))

    @property
    def left_by_account(self) -> float:
        """Share of a step that remains without communication, by the account."""
        return 1 - sum(self.shares.get(part, 0.0) for part in COMMUNICATION)

    @property
    def account_agrees(self) -> bool:
        """True if account and ceiling, measured independently, agree within 5 %."""
        if self.of_ceiling is None:
            return False
        return abs(self.left_by_account - self.of_ceiling.ratio) <= AGREE_WITHIN

    def interval(self, run: str, part: str) -> tuple[float, float]:
        """Return the 5-95 % bounds, in ms, of the mean of ``part`` over all ranks."""
        table = self.account
        row = table[(table["run"] == run) & (table["part"] == part)]
        bounds = row.loc[row["rank"] == ALL_RANKS, ["low_ms", "high_ms"]].to_numpy()
        return float(bounds[0][0]), float(bounds[0][1])

    @property
    def ddp_log(self) -> list[Json]:
        """Forward and backward time, by DDP's log and by our clock; maybe empty."""
        log = self.timing[self.run]["ddp_says"]
        parts = [log["forward_ms"], log["backward_ms"]]
        known = all(part["difference_pct"] is not None for part in parts)
        return parts if known and not self.busy_during(self.run) else []

    @property
    def ddp_log_agrees(self) -> bool:
        """True if DDP's log and our clock agree within 5 %."""
        limit = 100 * AGREE_WITHIN
        return all(abs(part["difference_pct"]) <= limit for part in self.ddp_log)

    def verdict(self, run: str) -> Any:
        """Return the verdict on ``run`` in metrics/equivalence.json."""
        return self.equivalence[run]["verdict"]

    @cached_property
    def checks(self) -> dict[str, dict[str, Outcome]]:
        """Outcomes by run, then by check; only checks that the run has."""
        return {run: outcomes_of(entry) for run, entry in self.equivalence.items()}

    @cached_property
    def matrix(self) -> dict[str, dict[str, Outcome]]:
        """Outcomes by check, then by run; ``NOT_RUN`` if a run has no such check."""
        names = dict.fromkeys(name for found in self.checks.values() for name in found)
        runs = self.checks
        return {n: {run: runs[run].get(n, NOT_RUN) for run in runs} for n in names}

    def by_question(self) -> dict[str, dict[str, dict[str, Outcome]]]:
        """Return :attr:`matrix` by question; under "" are checks that no run ran."""
        groups: dict[str, dict[str, Any]] = {one: {} for one in (*QUESTIONS, OTHER, "")}
        questions = {name: one for one, names in QUESTIONS.items() for name in names}
        for name, outcomes in self.matrix.items():
            ran = {outcome.mark for outcome in outcomes.values()} != {Mark.NOT_RUN}
            groups[questions.get(name, OTHER) if ran else ""][name] = outcomes
        return groups

    def with_outcome(self, mark: str) -> list[str]:
        """Return "RUN CHECK" for each outcome whose symbol is ``mark``."""
        pairs = ((name, run) for name, runs in self.matrix.items() for run in runs)
        return [f"{run} {n}" for n, run in pairs if self.matrix[n][run].mark == mark]

    def byte_mark(self, check: str) -> Mark:
        """Return the symbol of ``check`` in :attr:`run`; UNDECIDED if without bits."""
        mark = self.checks[self.run].get(check, NOT_RUN).mark
        # a passed check compared no bits
        return Mark.UNDECIDED if mark is Mark.PASSED else mark

    @cached_property
    def common_losses(self) -> pd.DataFrame:
        """Losses with one column per run, over the steps that all runs have."""
        curves = [t.set_index("step")["loss"] for t in self.losses.values()]
        return pd.concat(curves, axis="columns", join="inner", keys=[*self.losses])


def strategy_name(sync: str) -> str:
    """Return the name of a strategy as sentences write it: DDP for ``ddp``."""
    return "DDP" if sync == "ddp" else sync


def shares_of(account: Json) -> dict[str, float]:
    """Return the share of step time of each component, in the order of a step."""
    known = {part: account[part] for part in PARTS if part in account}
    return {part: value / account["step_ms"] for part, value in known.items()}


def exposed_comm_pct(account: Json) -> float | None:
    """Return the percentage of exposed communication in a step, None if unknown."""
    share = shares_of(account).get("comm_exposed_ms")
    return None if share is None else 100 * share


def most_apart(losses: pd.DataFrame) -> float:
    """Return the largest difference between runs (columns) at the same step (row)."""
    return float((losses.max(axis="columns") - losses.min(axis="columns")).max())
