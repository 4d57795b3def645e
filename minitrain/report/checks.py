"""The checks of metrics/equivalence.json: their questions and outcomes."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from minitrain.analysis.verdicts import VERDICTS, CheckVerdict

# the comparison of each check, by the question that it answers
QUESTIONS = {
    "Did training run as configured?": {
        "trained": "trained parameters before and after training: they must differ",
        "reduced_once": "buckets of every step: each tensor is in exactly one",
        "unwatched": "gradients of the first step, against DDP without the timing hook",
    },
    "Do all ranks end with the same model?": {
        "ranks": "final state of every rank, against rank 0",
        "world_sizes": "final state, against the run with the fewest processes",
    },
    "Is a run bit-identical to its replay?": {
        "reference": "the summation order of the replay, against a sum in float64",
        "data": "samples of every batch, against the replay",
        "precision": "the factor by which the loss is scaled, against the replay",
        "replay": "final state, against one process that computes shard after shard",
        "replay_gradients": "gradients at the recorded steps, against the replay",
        "replay_parameters": "parameters at the recorded steps, against the replay",
        "replay_buffers": "buffers at the recorded steps, against the replay",
        "replay_losses": "the loss of every step, against the replay",
    },
    "Does an independent witness agree?": {
        "witness_data": "samples of every rank and batch, against the text",
        "witness_hashes": "recorded hashes, against the hashes of sampled tensors",
        "witness_step": "parameters after sampled steps, against its own optimizer",
        "witness_mean": "batches without dropout, against the mean of their slices",
        "witness_mean_in_eval": "the same in eval mode, if training draws other noise",
        "witness_buffers": "buffers that remember samples: the effect on the loss",
        "witness_probe": "gradients in eval mode after training, against its own",
        "witness_precision": "the same in 16 bits: within their precision, not finer",
        "witness_gradients": "gradients of sampled steps, against its own",
        "witness_loss": "losses of sampled steps, against its own",
        "witness_spread": "sampled steps with random numbers, against other draws",
    },
    "Is a run within rounding of one process?": {
        "one_process": "final state, against one process with the whole batch",
        "one_process_data": "samples of every batch, against the one-process run",
        "one_process_early": "state after the third step, against that one process",
        "one_process_gradients": "gradients of the first step, against one process",
        "loss": "mean loss of the last quarter of the steps, against one process",
    },
}
RUNGS = {name: words for group in QUESTIONS.values() for name, words in group.items()}


class Mark(StrEnum):
    """Symbol of an outcome, which does not rely on color."""

    EQUAL = "="
    PASSED = "✓"
    NEAR = "≈"
    UNDECIDED = "?"
    BREACH = "✗"
    NOT_RUN = "-"


# verdicts of checks and of runs
MARKS = {
    "equal": Mark.EQUAL,
    "passed": Mark.PASSED,
    "proven": Mark.PASSED,
    "within tolerance": Mark.NEAR,
    "proven in eval mode": Mark.NEAR,
    "replay only": Mark.NEAR,
    "undecided": Mark.UNDECIDED,
    "breach": Mark.BREACH,
    "not run": Mark.NOT_RUN,
}
# checks that decide whether N processes are byte-equivalent to one
BYTE_CHECKS = ("ranks", "replay", "replay_gradients", "replay_parameters")


class Outcome(NamedTuple):
    """Outcome of one check; ``figures`` is its entry in equivalence.json."""

    mark: Mark
    verdict: str
    figures: Mapping[str, Any]

    def __str__(self) -> str:
        words = self.verdict
        if self.mark is Mark.NEAR:
            apart = self.figures["max_abs_diff"]
            words = "within" if apart is None else f"{apart:.1e}"
        return f"{self.mark} {words}"


NO_FIGURES = {**dict.fromkeys(("bytes_equal", "max_ulp", "max_abs_diff")), "detail": ""}
NOT_RUN = Outcome(Mark.NOT_RUN, "not run", {})


def outcomes_of(entry: Mapping[str, Any]) -> dict[str, Outcome]:
    """Return the outcome of each check in one run's entry."""
    found = {}
    for name, check in checks_of(entry).items():
        verdict = str(check["verdict"])
        found[name] = Outcome(MARKS[verdict], verdict, {**NO_FIGURES, **check})
    return found


def in_words(name: str) -> str:
    """Return the name of a check and a description of its comparison."""
    return f"{name}: {RUNGS[name]}" if name in RUNGS else name


def checks_of(entry: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the checks of one run's entry in metrics/equivalence.json."""
    return {
        name: check
        for name, check in entry.items()
        if isinstance(check, Mapping) and "verdict" in check
    }


def require_known_verdicts(entries: Mapping[str, Any]) -> None:
    """Raise ValueError for an unknown verdict on a run or a check."""
    for run, entry in entries.items():
        words = {name: check["verdict"] for name, check in checks_of(entry).items()}
        for name, word in {**words, "run": entry["verdict"]}.items():
            known = VERDICTS if name == "run" else [*CheckVerdict]
            if word not in known:
                raise ValueError(f"{run}, {name}: verdict {word!r}")


def byte_equivalent(entry: Mapping[str, Any]) -> bool | None:
    """Return whether ranks and replay are bit-identical in every check; None if none
    differs but a check is missing or was not run.
    """
    looked_at = [entry.get(name, {}) for name in BYTE_CHECKS]
    # equal bytes are still a breach if they contain NaN
    if "breach" in [check.get("verdict") for check in looked_at]:
        return False
    equal = [check.get("bytes_equal") for check in looked_at]
    if False in equal:
        return False
    return None if None in equal else True
