"""Sentences on where the time of a step goes, refused where its parts do not add up."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from minitrain.analysis.account import CLOSED_WITHIN
from minitrain.report.numbers import ms, percent
from minitrain.report.results import with_hosts

if TYPE_CHECKING:
    # words are made of these sentences
    from minitrain.report.words import Finding

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


def account_headline(finding: "Finding") -> str:
    """Where the time of a step goes, in one line: the title of the account picture."""
    run, account = with_hosts(finding.run, finding.num_hosts), finding.account
    if account is None:
        return f"{run}: not every part of a step was timed"
    if not account["closed"]:
        return (
            f"{run}: the parts of a step add up to {ms(account['sum_ms'])}, a step "
            f"takes {ms(account['plain_step_ms'])}: too far apart to explain it"
        )
    shares = shares_of_step(account)
    compute = sum(shares.get(part, 0) for part in COMPUTE)
    text = f"{run}: computing takes {percent(compute)} of a step"
    if finding.world_size == 1 or "comm_exposed_ms" not in shares:
        return text
    return f"{text}, exposed communication {percent(shares['comm_exposed_ms'])}"


def account_sentences(finding: "Finding") -> list[str]:
    """What the parts of a step explain of the speed: nothing where they do not add up,
    or were timed on several hosts.
    """
    account, run = finding.account, finding.run
    if finding.num_hosts > 1:
        return []
    if account is None:
        return [
            f"Not every part of a step of {run} was timed, so its parts do not explain "
            "its speed."
        ]
    if not account["closed"]:
        return [
            f"The timed parts of a step of {run} add up to {ms(account['sum_ms'])}, "
            f"while a step without instruments takes {ms(account['plain_step_ms'])}: "
            f"{abs(account['gap_pct']):.1f} % apart, more than "
            f"{percent(CLOSED_WITHIN)}, so they do not explain its speed."
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


def _cross_check(finding: "Finding", shares: Mapping[str, float]) -> list[str]:
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


def _interference(finding: "Finding", share: float) -> str:
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
