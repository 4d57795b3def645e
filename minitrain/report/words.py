"""Sentences on speed: composed from measurements, refused where these do not decide."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from minitrain.analysis.account import CLOSED_WITHIN
from minitrain.analysis.busy import why_busy
from minitrain.analysis.comparison import ALL_CORES, NO_SYNC, ONE_PROCESS, Comparison
from minitrain.report.numbers import capitalized, ms, percent, plural, thousands, times
from minitrain.report.results import Results, num_hosts, with_hosts

# parts of the step account in the order of a step, and what to call them
PARTS = {
    "data_ms": "data",
    "wait_ms": "wait",
    "forward_ms": "forward",
    "backward_compute_ms": "backward",
    "interference_ms": "interference",
    "comm_exposed_ms": "exposed communication",
    "optimizer_ms": "optimizer",
    "optimizer_comm_ms": "communication of the optimizer",
}
COMPUTE = ("forward_ms", "backward_compute_ms", "optimizer_ms")
COMMUNICATION = (
    "wait_ms",
    "interference_ms",
    "comm_exposed_ms",
    "optimizer_comm_ms",
)


@dataclass(frozen=True)
class Finding:
    """What is known about the speed of the largest gloo run, ``run``, which was trained
    on ``num_hosts``; all that is compared was on one.

    ``no_sync_against_one`` and ``of_ceiling`` compare the same processes without
    communication (the ceiling); both are None for one process. ``account`` has the
    keys of metrics/timing.json; ``interference_ms`` is its 5-95 % interval, if known.
    ``busy`` says why the machine was too busy to judge any speed, if it was.
    """

    run: str
    num_hosts: int
    world_size: int
    threads: int
    cores: int
    sync: str
    against_one: Comparison
    against_all_cores: Comparison
    no_sync_against_one: Comparison | None
    of_ceiling: Comparison | None
    account: Mapping[str, Any] | None
    interference_ms: tuple[float, float] | None
    busy: str | None

    @property
    def strategy(self) -> str:
        """How gradients were synchronized, as a word of a sentence."""
        return "DDP" if self.sync == "ddp" else self.sync

    @property
    def subject(self) -> str:
        """The processes that are judged, as the subject of a sentence."""
        if self.world_size == 1:
            return f"one process under {self.strategy}"
        under = "" if self.sync == "ddp" else f" under {self.sync}"
        return f"{self.world_size} processes{under}"


def find(results: Results) -> Finding:
    """Compare the arms that the finding is about; UserError where one is missing."""
    run, baseline = results.largest, results.baseline
    silent = run + NO_SYNC if results.world_size > 1 else None
    return Finding(
        run=run,
        num_hosts=num_hosts(results.timing[run]),
        world_size=results.world_size,
        threads=results.provenance[run]["threads_per_process"],
        cores=results.machine["cores"],
        sync=results.provenance[run]["sync"],
        against_one=baseline.compare(run, ONE_PROCESS),
        against_all_cores=baseline.compare(run, ALL_CORES),
        no_sync_against_one=baseline.compare(silent, ONE_PROCESS) if silent else None,
        of_ceiling=baseline.compare(run, silent) if silent else None,
        account=results.accounts.get(run),
        interference_ms=results.interval(run, "interference_ms"),
        busy=why_busy(results.baseline_provenance.get("load"), baseline.spread()),
    )


def headline(finding: Finding) -> str:
    """The finding in one line: the title of the scaling picture."""
    if finding.busy:
        return f"{capitalized(finding.subject)}: the machine was busy, no speed judged"
    one = "one without" if finding.world_size == 1 else "one process"
    all_cores = f"one process on all {plural(finding.cores, 'core')}"
    return (
        f"{capitalized(finding.subject)}: {_clause(finding.against_one, one)}, "
        f"{_clause(finding.against_all_cores, all_cores)}"
    )


def _clause(compared: Comparison, other: str) -> str:
    if compared.verdict == "no difference seen":
        return f"no difference seen from {other}"
    (ratio,) = times(compared.ratio)
    return f"{compared.verdict} than {other} ({ratio} times the speed)"


def lesson_notes(finding: Finding) -> str:
    """Why N processes are faster, or slower, here: a paragraph of measured numbers.

    Without a decided verdict it gives no reason, and an account that does not close,
    or disagrees with the ceiling, or is of several hosts, is not used as one; it says
    so instead. Of a busy machine it says nothing else.
    """
    if finding.busy:
        return (
            f"The machine was busy during the {finding.against_one.num_rounds} rounds: "
            f"{finding.busy}. That disturbs some arms more than others, so no speed is "
            "judged. On a quiet machine, dvc repro --force --single-item baseline and "
            "then dvc repro measure again."
        )
    alone = finding.world_size == 1
    threads = plural(finding.threads, "thread")
    subject = finding.subject if alone else f"{finding.subject} with {threads} each"
    same = f"one process with {threads}"
    if alone:
        same = f"one process without {finding.strategy}"
    all_cores = f"one process that uses all {plural(finding.cores, 'core')}"
    one = finding.against_one
    sentences = [
        f"Measured in {one.num_rounds} rounds; a difference below the noise floor of "
        f"{percent(one.noise_floor)} counts as none: {floor_in_words(one.num_pairs)}.",
        _speed(subject, same, one),
        _speed(subject, all_cores, finding.against_all_cores),
    ]
    if finding.num_hosts > 1:
        apart = f"All ran on one host, and {finding.run} on {finding.num_hosts} hosts"
        sentences.insert(1, f"{apart}: its step account explains no speed here.")
    if alone:
        only = "Only one process was asked for: nothing here says how several would do."
        sentences.insert(0, only)
    if one.verdict == "no difference seen":
        return " ".join([*sentences, "So no reason is given."])
    return " ".join([*sentences, *_ceiling(finding), *_account(finding)])


def floor_in_words(num_pairs: int) -> str:
    """What a noise floor from so many A/A pairs is, and what it is not."""
    pairs = f"the largest that {num_pairs} A/A pairs showed in this run"
    if num_pairs == 1:
        pairs = "what the one A/A pair showed in this run"
    return f"{pairs} (in another, identical arms may differ by more)"


def _speed(subject: str, other: str, compared: Comparison) -> str:
    ratio, low, high = times(compared.ratio, compared.low, compared.high)
    numbers = (
        f"{thousands(compared.tokens_per_s_a)} against "
        f"{thousands(compared.tokens_per_s_b)} tokens per second in the median, round "
        f"by round {ratio} times the speed (5-95 % interval {low} to {high})"
    )
    if compared.verdict != "no difference seen":
        return f"{capitalized(subject)} ran {compared.verdict} than {other}: {numbers}."
    reason = (
        "the difference is below the noise floor"
        if compared.excludes_one
        else "the interval includes 1"
    )
    return (
        f"The evidence does not decide whether {subject} ran faster or slower than "
        f"{other}: {numbers}; {reason}."
    )


def _ceiling(finding: Finding) -> list[str]:
    silent, reached = finding.no_sync_against_one, finding.of_ceiling
    if silent is None or reached is None:
        return []
    busy = finding.world_size * finding.threads
    crowd = f"{busy} computing threads share {plural(finding.cores, 'core')}. "
    (ratio,) = times(silent.ratio)
    meaning = {
        "slower": "the rest is the price of communication and of waiting for it",
        "no difference seen": "no cost of communication is seen",
        "faster": "more than a ceiling allows, so it does not tell what "
        "communication costs",
    }[reached.verdict]
    return [
        f"{crowd if busy > finding.cores else ''}When the same "
        f"{finding.world_size} processes do not communicate, they run at {ratio} times "
        f"the speed of one (ideal: {finding.world_size}). {finding.strategy} reaches "
        f"{percent(reached.ratio)} of that ceiling (5-95 % interval "
        f"{percent(reached.low)} to {percent(reached.high)}): {meaning}."
    ]


def _account(finding: Finding) -> list[str]:
    account, run = finding.account, finding.run
    if finding.num_hosts > 1:
        return []
    if account is None:
        return [
            f"The step account of {run} is incomplete, so it does not explain this."
        ]
    if not account["closed"]:
        return [
            f"The step account of {run} does not close, so it is not used to explain "
            f"this: its parts add up to {ms(account['sum_ms'])}, a step without "
            f"instruments takes {ms(account['plain_step_ms'])} "
            f"(gap {account['gap_pct']:.1f} %)."
        ]
    shares = shares_of_step(account)
    compute = {key: shares[key] for key in COMPUTE if key in shares}
    detail = ", ".join(f"{PARTS[key]} {percent(compute[key])}" for key in compute)
    others = [
        _interference(finding, shares[key])
        if key == "interference_ms"
        else f"{PARTS[key]} {percent(shares[key])}"
        for key in sorted(shares.keys() - compute, key=lambda key: -shares[key])
    ]
    return [
        f"Of an average step of {run} ({ms(account['sum_ms'])}), computing takes "
        f"{percent(sum(compute.values()))} ({detail}); {', '.join(others)}.",
        *_cross_check(finding, shares),
    ]


def _cross_check(finding: Finding, shares: Mapping[str, float]) -> list[str]:
    """Two independent measurements of one thing: the account, and the ceiling."""
    if finding.of_ceiling is None:
        return []
    left = 1 - sum(shares.get(part, 0) for part in COMMUNICATION)
    reached = finding.of_ceiling.ratio
    text = (
        f"Without waiting, interference and exposed communication {percent(left)} of "
        f"that step would be left, where the rounds found {percent(reached)}"
    )
    if abs(left - reached) > CLOSED_WITHIN:
        return [f"{text}: the two disagree, so the account does not explain the speed."]
    return [f"{text}: the two agree within {percent(CLOSED_WITHIN)} of the step."]


def _interference(finding: Finding, share: float) -> str:
    text = f"interference {percent(share)}"
    low, high = finding.interference_ms or (share, share)
    if low <= 0 <= high or share < 0:
        return f"{text} (not told from zero)"
    return text


def shares_of_step(account: Mapping[str, Any]) -> dict[str, float]:
    """Each part's share of their sum, in the order of a step, without null parts."""
    return {
        part: account[part] / account["sum_ms"]
        for part in PARTS
        if account.get(part) is not None
    }


def account_headline(finding: Finding) -> str:
    """Where the time of a step goes, in one line: the title of the account picture."""
    run = with_hosts(finding.run, finding.num_hosts)
    if finding.account is None:
        return f"{run}: the step account is incomplete"
    if not finding.account["closed"]:
        return f"{run}: the step account does not close"
    shares = shares_of_step(finding.account)
    compute = sum(shares.get(part, 0) for part in COMPUTE)
    text = f"{run}: computing takes {percent(compute)} of a step"
    if finding.world_size == 1 or "comm_exposed_ms" not in shares:
        return text
    return f"{text}, exposed communication {percent(shares['comm_exposed_ms'])}"


def losses_headline(losses: Mapping[str, pd.DataFrame]) -> str:
    """Where losses start and end, and how far apart runs lie on steps they share."""
    curves = pd.concat(
        [table.set_index("step")["loss"] for table in losses.values()],
        axis="columns",
        join="inner",
    )
    first, last = curves.iloc[[0, -1], 0]
    ends = f"{first:.2f} at the first step, {last:.2f} at the last"
    text = f"Loss of {', '.join(losses)}: {ends}"
    if len(losses) == 1:
        return text
    apart = (curves.max(axis="columns") - curves.min(axis="columns")).max()
    return f"{text}, curves at most {apart:.1e} apart"
