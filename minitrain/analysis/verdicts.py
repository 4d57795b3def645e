"""Verdict on a run, combined from the results of its checks (rungs of the ladder).

A check's own verdict is decided where it is made: in minitrain/proof (tolerances, bits,
ladder, witness/record.py) and minitrain/compare/run_tolerance.py. stages/equivalence.py
and minitrain/check call :func:`verdict_of`. For speed verdicts, see comparison.py.
"""

from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from typing import Any, Literal, get_args

RunVerdict = Literal[
    "proven", "proven in eval mode", "replay only", "undecided", "breach"
]


class CheckVerdict(StrEnum):
    """Outcome of one check, under the same name in every file, page and terminal."""

    EQUAL = "equal"  # to the last bit
    PASSED = "passed"  # compares no bits
    WITHIN = "within tolerance"
    NOT_RUN = "not run"
    UNDECIDED = "undecided"
    BREACH = "breach"


ALONE = "single rank: nothing to compare"  # verdict_of looks for these three
ONE_MEMORY = "the ranks share one memory: nothing to compare"
ITSELF = "this run is the one process"
ONE = "one_process"
VERDICTS: tuple[RunVerdict, ...] = get_args(RunVerdict)

# checks that require equal bits, in addition to "ranks"
BITS = ("replay", "replay_gradients", "replay_parameters", "replay_losses", "data")
# equal bits prove nothing unless parameters change and the reduction is a sum
MEANING = ("trained", "reference")
# checks by independent code: data, step and mean are required, and one of the others
WITNESS_DATA = ("witness_data", "witness_hashes", "witness_step")
# checks of the mean: in training, or in eval mode if training must draw random numbers
MEAN, MEAN_IN_EVAL = "witness_mean", "witness_mean_in_eval"
# check that buffers which remember samples do not change the loss
BUFFERS = "witness_buffers"
WITNESS_GRADIENTS = {
    "witness_gradients": "of its steps",
    "witness_probe": "in eval mode",
}
FINE = (CheckVerdict.EQUAL, CheckVerdict.PASSED, CheckVerdict.WITHIN)
# an error in a step makes all that follows wrong: substrings of names of checks, in the
# order of a step; parameters and states come after these
ORDER = (
    ("data", "sample", "batch", "token"),
    ("_mean", "witness_loss"),
    ("gradient", "reduced", "reference"),
)
# reported only without other breaches: its detail, two long numbers, gives no cause
LAST = "replay_losses"


def verdict_of(rungs: Mapping[str, Mapping[str, Any]]) -> tuple[RunVerdict, str]:
    """Return the verdict on a run, and the reasons on one line. ``rungs`` are its check
    results by name, from :func:`as_dicts`; a check without a result supports nothing.
    """
    verdicts = {name: rung["verdict"] for name, rung in rungs.items()}
    fine = {name for name, verdict in verdicts.items() if verdict in FINE}
    broken = [name for name, verdict in verdicts.items() if verdict == "breach"]
    if broken:
        first = min(broken, key=order_in_step)
        line = f"{first}: {rungs[first]['detail']}"
        mean = rungs.get(MEAN, {})
        # a distance without an explanation: samples of a batch depend on each other
        if mean.get("verdict") == "not run" and mean.get("max_abs_diff") is not None:
            line = f"{MEAN}: {mean['detail']}; {line}"
        return "breach", line
    alone = rungs.get("ranks", {}).get("detail") in (ALONE, ONE_MEMORY)
    bits = alone or verdicts.get("ranks") == "equal"
    bits = bits and all(verdicts.get(name) == "equal" for name in BITS)
    bits = bits and fine.issuperset(MEANING)
    shown = [words for name, words in WITNESS_GRADIENTS.items() if name in fine]
    training = MEAN in fine
    known = fine.issuperset(WITNESS_DATA) and (training or MEAN_IN_EVAL in fine)
    # buffers that remember samples are harmless if the witness found no effect on the
    # loss, or if one process agrees
    known = known and (BUFFERS not in verdicts or bool(fine & {BUFFERS, ONE}))
    seen = f"an independent witness confirms the gradients {' and '.join(shown)}"
    verdict: RunVerdict = "undecided"
    rests_on = "no bit-exact replay and no independent check"
    if bits and known and shown:
        verdict, rests_on = "proven", f"bit-identical to its replay, and {seen}"
        if not training:
            verdict = "proven in eval mode"
            rests_on += f"; {rungs[MEAN]['detail']}"
    elif bits:
        verdict = "replay only"
        rests_on = "bit-identical to its replay; no witness supports it"
        if why := _no_witness(rungs):
            rests_on += f": {why}"
    elif rungs.get("trained", {}).get("verdict") == "not run":
        rests_on = f"no parameter changed: {rungs['trained']['detail']}"
    elif known and shown:
        rests_on = f"equal bits were not promised or not compared, but {seen}"
    return verdict, rests_on + _unseen(rungs)


def _unseen(rungs: Mapping[str, Mapping[str, Any]]) -> str:
    # names a run that was not compared with one process, not even in its loss
    one, loss = rungs.get(ONE, {}), rungs.get("loss", {})
    skipped = one.get("verdict") == "not run" and one["detail"] != ITSELF
    if skipped and loss.get("verdict") not in FINE:
        return f"; not compared with one process: {one['detail']}"
    return ""


def _no_witness(rungs: Mapping[str, Mapping[str, Any]]) -> str:
    # the first reason why the witness does not support the run
    for name in (*WITNESS_DATA, MEAN, BUFFERS, *WITNESS_GRADIENTS):
        if name in rungs and rungs[name]["verdict"] not in FINE:
            return str(rungs[name]["detail"])
    return ""


def order_in_step(name: str) -> int:
    """Return the sort key of a check's name: data, losses, gradients, then the rest."""
    if name == LAST:
        return len(ORDER) + 1
    for number, parts in enumerate(ORDER):
        if any(part in name for part in parts):
            return number
    return len(ORDER)


def as_dicts(rungs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Convert rungs (check results) to dictionaries for JSON and :func:`verdict_of`."""
    return {name: asdict(rung) for name, rung in rungs.items()}
