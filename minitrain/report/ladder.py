"""The equivalence ladder in words: what each rung compares, and what was proven."""

from collections.abc import Mapping
from typing import Any

from minitrain.proof.words import verdict_in_words
from minitrain.report.numbers import plural
from minitrain.report.results import Results

# rungs whose bits decide whether N processes computed what one process computes
BYTE_RUNGS = ("ranks", "replay", "replay_gradients", "replay_parameters")

# of a rung that a run has not
NOT_RUN = {"verdict": "not run"}


def byte_equivalent(ladder: Mapping[str, Any]) -> bool | None:
    """Whether ranks and replay agree to the last bit on every rung.

    None (unknown) where none differs but a rung is missing or was not run.
    """
    looked_at = [ladder.get(rung, {}) for rung in BYTE_RUNGS]
    # equal bytes can be a breach too: NaN is equal to nothing
    if "breach" in [rung.get("verdict") for rung in looked_at]:
        return False
    equal = [rung.get("bytes_equal") for rung in looked_at]
    if False in equal:
        return False
    return None if None in equal else True


def rungs(ladder: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The rungs of one run's entry in metrics/equivalence.json, nothing else."""
    return {
        name: rung
        for name, rung in ladder.items()
        if isinstance(rung, Mapping) and "verdict" in rung
    }


# the answer to "the same?", by the verdict on the run that the findings are about
ANSWERS = {
    "proven": "Yes, to the last bit: {run} is proven",
    "replay only": "The bits of its replay, and no witness: {run} is replay only",
    "undecided": "Not decided: {run} is undecided",
    "breach": "No: {run} is a breach",
}


def same_headline(results: Results) -> str:
    """Whether the runs computed the same, in one line."""
    run = results.largest
    verdict, label = results.verdict(run), results.label(run)
    if broken := _by_verdict(results).get("breach"):
        return f"No: {', '.join(broken)} breached"
    if results.world_size == 1:
        text = f"Only one process ran: {label} is {verdict}"
    else:
        text = ANSWERS[verdict].format(run=label)
    others = [one for one in results.equivalence if results.verdict(one) != verdict]
    also = [f"{results.label(one)} is {results.verdict(one)}" for one in others]
    return "; ".join([text, *also])


def equivalence_sentences(results: Results) -> str:
    """The verdict on the largest run and what it rests on; what all runs' rungs say."""
    by_verdict = _by_verdict(results)
    if broken := by_verdict.get("breach"):
        return f"The runs are not equivalent: {', '.join(broken)} breached."
    passed = by_verdict.pop("passed", [])
    if not by_verdict:
        return "Nothing was compared, so nothing is proven."
    counts = [f"{len(by_verdict.get('equal', []))} equal to the last bit"]
    if near := by_verdict.get("within tolerance"):
        counts.append(f"{len(near)} within their tolerance")
    if undecided := by_verdict.get("undecided"):
        counts.append(f"{len(undecided)} undecided ({', '.join(undecided)})")
    if skipped := by_verdict.get("not run"):
        counts.append(f"{len(skipped)} not run")
    total = plural(sum(map(len, by_verdict.values())), "comparison")
    run = results.largest
    rests_on = results.rests_on(run) or "nobody recorded what it rests on"
    lead = (
        f"The verdict on {results.label(run)} is {results.verdict(run)}: {rests_on}. "
    )
    if any(run.endswith(" world_sizes") for run in by_verdict.get("equal", [])):
        lead += "The bits do not depend on the number of processes. "
    checks = f"{plural(len(passed), 'check')} passed, and " if passed else ""
    return f"{lead}No breach was found: {checks}of {total}, {', '.join(counts)}."


def _by_verdict(results: Results) -> dict[str, list[str]]:
    """Run and name of every rung, by what came of it; what a run has not, and another
    has, is not run, as in the matrix.
    """
    ladders = {run: rungs(ladder) for run, ladder in results.equivalence.items()}
    names = dict.fromkeys(name for ladder in ladders.values() for name in ladder)
    found: dict[str, list[str]] = {}
    for run, ladder in ladders.items():
        for name in names:
            said = verdict_in_words(ladder.get(name, NOT_RUN))
            found.setdefault(said, []).append(f"{run} {name}")
    return found
