"""Verdict on a run, decided from the results of its checks (rungs of the ladder).

A check's own verdict is decided where it is made: in minitrain/proof (bits, tolerances,
ladder, witness) and minitrain/compare/run_tolerance.py. minitrain/proof/words.py states
the reasons for a verdict on a run. For speed verdicts, see comparison.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal, get_args

from minitrain.analysis.rungs import FINE, CheckVerdict, Reason, Rung

RunVerdict = Literal[
    "proven", "proven in eval mode", "replay only", "undecided", "breach"
]
VERDICTS: tuple[RunVerdict, ...] = get_args(RunVerdict)

RANKS, TRAINED, ONE, LOSS = "ranks", "trained", "one_process", "loss"
# reasons why ranks need not be compared with each other
ALONE = (Reason.SINGLE_RANK, Reason.ONE_MEMORY)
# checks that require equal bits, in addition to RANKS
BITS = ("replay", "replay_gradients", "replay_parameters", "replay_losses", "data")
# equal bits prove nothing unless parameters change and the reduction is a sum
MEANING = (TRAINED, "reference")
# checks by independent code: data, step and mean are required, and one of the others
WITNESS_DATA = ("witness_data", "witness_hashes", "witness_step")
# checks of the mean: in training, or in eval mode if training must draw random numbers
MEAN, MEAN_IN_EVAL = "witness_mean", "witness_mean_in_eval"
# check that buffers which remember samples do not change the loss
BUFFERS = "witness_buffers"
WITNESS_GRADIENTS = ("witness_gradients", "witness_probe")
# an error in a step makes all that follows wrong: substrings of names of checks, in the
# order of a step; parameters and states come after these
ORDER = (
    ("data", "sample", "batch", "token"),
    ("_mean", "witness_loss"),
    ("gradient", "reduced", "reference"),
)
# reported only without other breaches: its detail, two long numbers, gives no cause
LAST = "replay_losses"


class Basis(Enum):
    """What the verdict on a run rests on."""

    FAILED_CHECK = auto()
    REPLAY_AND_WITNESS = auto()
    REPLAY = auto()
    # no replay, but independent code agrees
    WITNESS = auto()
    # nothing was trained, so nothing was tested
    UNTRAINED = auto()
    NOTHING = auto()


@dataclass(frozen=True)
class Ruling:
    """Verdict on a run and its basis, with names of checks.

    Args:
        verdict: Verdict on the run.
        basis: What it rests on.
        because: Checks whose detail gives the reason for the verdict.
        witnesses: Checks by independent code that confirm the gradients.
        is_compared: False if a run without a breach was not compared with one process,
            not even in its loss, although it is not that process.
    """

    verdict: RunVerdict
    basis: Basis
    because: tuple[str, ...] = ()
    witnesses: tuple[str, ...] = ()
    is_compared: bool = True


def verdict_of(rungs: Mapping[str, Rung]) -> Ruling:
    """Return the verdict on a run with the check results ``rungs``, by name."""
    verdicts = {name: rung.verdict for name, rung in rungs.items()}
    fine = {name for name, verdict in verdicts.items() if verdict in FINE}
    broken = [name for name, v in verdicts.items() if v is CheckVerdict.BREACH]
    if broken:
        return _breach(rungs, min(broken, key=order_in_step))
    is_alone = RANKS in rungs and rungs[RANKS].reason in ALONE
    required = BITS if is_alone else (RANKS, *BITS)
    bits = all(verdicts.get(name) is CheckVerdict.EQUAL for name in required)
    bits = bits and fine.issuperset(MEANING)
    shown = tuple(name for name in WITNESS_GRADIENTS if name in fine)
    is_known = fine.issuperset(WITNESS_DATA) and bool(fine & {MEAN, MEAN_IN_EVAL})
    # buffers that remember samples are harmless if the witness found no effect on the
    # loss, or if one process agrees
    is_known = is_known and (BUFFERS not in rungs or bool(fine & {BUFFERS, ONE}))
    given = shown, _is_compared(rungs)
    if bits and is_known and shown:
        if MEAN in fine:
            return Ruling("proven", Basis.REPLAY_AND_WITNESS, (), *given)
        return Ruling("proven in eval mode", Basis.REPLAY_AND_WITNESS, (MEAN,), *given)
    if bits:
        return Ruling("replay only", Basis.REPLAY, _no_witness(rungs), *given)
    if verdicts.get(TRAINED) is CheckVerdict.NOT_RUN:
        return Ruling("undecided", Basis.UNTRAINED, (TRAINED,), *given)
    basis = Basis.WITNESS if is_known and shown else Basis.NOTHING
    return Ruling("undecided", basis, (), *given)


def _breach(rungs: Mapping[str, Rung], first: str) -> Ruling:
    # samples of a batch depend on each other
    is_coupled = MEAN in rungs and rungs[MEAN].is_unexplained
    because = (MEAN, first) if is_coupled else (first,)
    return Ruling("breach", Basis.FAILED_CHECK, because)


def _is_compared(rungs: Mapping[str, Rung]) -> bool:
    # with one process, or at least in its loss, or it is that process itself
    one, loss = rungs.get(ONE), rungs.get(LOSS)
    if one is None or one.verdict is not CheckVerdict.NOT_RUN:
        return True
    return one.reason is Reason.IS_REFERENCE or bool(loss and loss.verdict in FINE)


def _no_witness(rungs: Mapping[str, Rung]) -> tuple[str, ...]:
    # the first check by which the witness does not support the run
    names = (*WITNESS_DATA, MEAN, BUFFERS, *WITNESS_GRADIENTS)
    lacking = [n for n in names if n in rungs and rungs[n].verdict not in FINE]
    return tuple(lacking[:1])


def order_in_step(name: str) -> int:
    """Return the sort key of a check's name: data, losses, gradients, then the rest."""
    if name == LAST:
        return len(ORDER) + 1
    for number, parts in enumerate(ORDER):
        if any(part in name for part in parts):
            return number
    return len(ORDER)
