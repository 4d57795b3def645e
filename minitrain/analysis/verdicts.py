"""Verdicts: on a check (a rung of the ladder), and on a run by all of its checks."""

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


ALONE = "one rank has nobody to agree with"
ITSELF = "it is the one process"
ONE = "one_process"
VERDICTS: tuple[RunVerdict, ...] = get_args(RunVerdict)

# equal bits: of the ranks with each other, of the run with its replay
BITS = ("replay", "replay_gradients", "replay_parameters", "replay_losses", "data")
# and what bits would prove nothing without: that something changed, that what was
# replayed is a sum
MEANING = ("trained", "reference")
# code that shares nothing with the run: data, step and mean always, of the others one
WITNESS_DATA = ("witness_data", "witness_hashes", "witness_step")
# the mean in training, or in eval mode where training draws what cannot be left out
MEAN, MEAN_IN_EVAL = "witness_mean", "witness_mean_in_eval"
# buffers that remember samples
BUFFERS = "witness_buffers"
WITNESS_GRADIENTS = {
    "witness_gradients": "of its steps",
    "witness_probe": "in eval mode",
}
FINE = (CheckVerdict.EQUAL, CheckVerdict.PASSED, CheckVerdict.WITHIN)
# what is wrong in a step makes all that follows in it wrong: parts of rungs' names, in
# the order of a step; parameters and states follow
ORDER = (
    ("data", "sample", "batch", "token"),
    ("_mean", "witness_loss"),
    ("gradient", "reduced", "reference"),
)
# two long numbers, which name no cause
LAST = "replay_losses"


def verdict_of(rungs: Mapping[str, Mapping[str, Any]]) -> tuple[RunVerdict, str]:
    """Return the verdict on a run by its rungs (as dictionaries), and its reasons.

    A rung that is missing supports nothing.
    """
    verdicts = {name: rung["verdict"] for name, rung in rungs.items()}
    fine = {name for name, verdict in verdicts.items() if verdict in FINE}
    broken = [name for name, verdict in verdicts.items() if verdict == "breach"]
    if broken:
        first = min(broken, key=cause)
        line = f"{first}: {rungs[first]['detail']}"
        mean = rungs.get(MEAN, {})
        # a distance, and no weights that explain it: samples depend on each other
        if mean.get("verdict") == "not run" and mean.get("max_abs_diff") is not None:
            line = f"{MEAN}: {mean['detail']}; {line}"
        return "breach", line
    alone = rungs.get("ranks", {}).get("detail") == ALONE
    bits = alone or verdicts.get("ranks") == "equal"
    bits = bits and all(verdicts.get(name) == "equal" for name in BITS)
    bits = bits and fine.issuperset(MEANING)
    shown = [words for name, words in WITNESS_GRADIENTS.items() if name in fine]
    training = MEAN in fine
    known = fine.issuperset(WITNESS_DATA) and (training or MEAN_IN_EVAL in fine)
    # buffers that remember samples: the witness saw none that matters, or one process
    # agrees
    known = known and (BUFFERS not in verdicts or bool(fine & {BUFFERS, ONE}))
    seen = f"a witness computed the gradients {' and '.join(shown)}"
    verdict: RunVerdict = "undecided"
    rests_on = "neither bits nor a witness support it"
    if bits and known and shown:
        verdict, rests_on = "proven", f"the bits are those of a replay, and {seen}"
        if not training:
            verdict = "proven in eval mode"
            rests_on += f"; {rungs[MEAN]['detail']}"
    elif bits:
        verdict = "replay only"
        rests_on = "the bits are those of a replay; no witness supports it"
        if why := _no_witness(rungs):
            rests_on += f": {why}"
    elif known and shown:
        rests_on = f"no bits were promised or compared, but {seen}"
    return verdict, rests_on + _unseen(rungs)


def _unseen(rungs: Mapping[str, Mapping[str, Any]]) -> str:
    # a run that was not compared with one process, not even in its loss
    one, loss = rungs.get(ONE, {}), rungs.get("loss", {})
    skipped = one.get("verdict") == "not run" and one["detail"] != ITSELF
    if skipped and loss.get("verdict") not in FINE:
        return f"; one process was not compared: {one['detail']}"
    return ""


def _no_witness(rungs: Mapping[str, Mapping[str, Any]]) -> str:
    # the first reason for which the witness supports nothing
    for name in (*WITNESS_DATA, MEAN, BUFFERS, *WITNESS_GRADIENTS):
        if name in rungs and rungs[name]["verdict"] not in FINE:
            return str(rungs[name]["detail"])
    return ""


def cause(name: str) -> int:
    """Return the place of a rung in a step: what is early explains what follows."""
    if name == LAST:
        return len(ORDER) + 1
    for number, parts in enumerate(ORDER):
        if any(part in name for part in parts):
            return number
    return len(ORDER)


def as_dicts(rungs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return rungs as dictionaries, for JSON and for :func:`verdict_of`."""
    return {name: asdict(rung) for name, rung in rungs.items()}
