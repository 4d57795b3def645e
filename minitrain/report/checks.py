"""The checks of metrics/equivalence.json: what each compares, and its outcome."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from minitrain.analysis.verdicts import VERDICTS, CheckVerdict

# what each check compares
RUNGS = {
    "trained": "parameters after training, against before: they must differ",
    "reduced_once": "buckets of every step: each tensor is in one, and in one only",
    "reference": "the order that the replay adds in, against a sum in float64",
    "unwatched": "gradients of the first step, against DDP without the timing hook",
    "ranks": "final state of every rank, against rank 0",
    "data": "samples of every batch, against the replay",
    "precision": "the factor by which the loss is scaled, against the replay",
    "replay": "final state, against one process that computes shard after shard",
    "replay_gradients": "gradients at the recorded steps, against the same replay",
    "replay_parameters": "parameters at the recorded steps, against the same replay",
    "replay_buffers": "buffers at the recorded steps, against the same replay",
    "replay_losses": "the loss of every step, against the same replay",
    "witness_data": "who computed which samples, against the text: by the witness",
    "witness_hashes": "hashes that were recorded, against those of the tensors",
    "witness_step": "parameters after sampled steps, against the witness's optimizer",
    "witness_mean": "batches in training without dropout, against their parts",
    "witness_mean_in_eval": "the same in eval mode, where training draws more",
    "witness_buffers": "buffers that remember samples: whether the loss uses them",
    "witness_probe": "gradients in eval mode at the end, against the witness's",
    "witness_precision": "the same in 16 bits: as close as these are, and no closer",
    "witness_gradients": "gradients of sampled steps, against the witness's",
    "witness_loss": "losses of sampled steps, against the witness's",
    "witness_spread": "sampled steps with random numbers, against other draws",
    "one_process": "final state, against one process that takes the whole batch",
    "one_process_data": "samples of every batch, against the one-process run",
    "one_process_early": "state after the third step, against that one process",
    "one_process_gradients": "gradients of the first step, against that one process",
    "loss": "mean loss of the last quarter of the steps, against one process",
    "world_sizes": "final state, against that of the fewest processes",
}


class Mark(StrEnum):
    """The sign of an outcome, for readers who cannot see its color."""

    EQUAL = "="
    PASSED = "✓"
    NEAR = "≈"
    UNDECIDED = "?"
    BREACH = "✗"
    NOT_RUN = "-"


# of a check, and of a run
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
# checks whose bits decide whether N processes computed what one process computes
BYTE_CHECKS = ("ranks", "replay", "replay_gradients", "replay_parameters")


class Outcome(NamedTuple):
    """The outcome of one check, and ``figures``, its entry in equivalence.json."""

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
    """Return the name of a check, and what it compares."""
    return f"{name}: {RUNGS[name]}" if name in RUNGS else name


def checks_of(entry: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the checks of one run's entry in metrics/equivalence.json."""
    return {
        name: check
        for name, check in entry.items()
        if isinstance(check, Mapping) and "verdict" in check
    }


def require_known_verdicts(entries: Mapping[str, Any]) -> None:
    """Raise ValueError for a verdict on a run or a check that is not known."""
    for run, entry in entries.items():
        words = {name: check["verdict"] for name, check in checks_of(entry).items()}
        for name, word in {**words, "run": entry["verdict"]}.items():
            known = VERDICTS if name == "run" else [*CheckVerdict]
            if word not in known:
                raise ValueError(f"{run}, {name}: verdict {word!r}")


def byte_equivalent(entry: Mapping[str, Any]) -> bool | None:
    """Return whether ranks and replay agree to the last bit in every check.

    None (unknown) if none differs but a check is missing or was not run.
    """
    looked_at = [entry.get(name, {}) for name in BYTE_CHECKS]
    # equal bytes can be a breach too: NaN is equal to nothing
    if "breach" in [check.get("verdict") for check in looked_at]:
        return False
    equal = [check.get("bytes_equal") for check in looked_at]
    if False in equal:
        return False
    return None if None in equal else True
