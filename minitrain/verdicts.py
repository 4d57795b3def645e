"""What a ladder of rungs comes to: proven, replay only, undecided, or a breach."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal, get_args

from minitrain.equivalence import Rung

Verdict = Literal["proven", "replay only", "undecided", "breach"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

# equal bits: of the ranks with each other, of the run with its replay
BITS = ("replay", "replay_gradients", "replay_parameters", "replay_losses")
# code that shares nothing with the run: data and step always, of the others one
WITNESS_DATA = ("witness_data", "witness_hashes", "witness_step", "witness_mean")
WITNESS_GRADIENTS = {
    "witness_gradients": "of its steps",
    "witness_probe": "in eval mode",
}
FINE = ("equal", "within tolerance")


def verdict_of(rungs: Mapping[str, Mapping[str, Any]]) -> tuple[Verdict, str]:
    """The verdict on a run by its rungs (as dictionaries), and what it rests on."""
    verdicts = {name: rung["verdict"] for name, rung in rungs.items()}
    broken = [name for name, verdict in verdicts.items() if verdict == "breach"]
    if broken:
        return "breach", f"{broken[0]}: {rungs[broken[0]]['detail']}"
    bits = all(verdicts.get(name) == "equal" for name in BITS)
    # one rank has nobody to agree with
    bits = bits and verdicts.get("ranks", "equal") in ("equal", "not run")
    shown = [
        words for name, words in WITNESS_GRADIENTS.items() if verdicts.get(name) in FINE
    ]
    known = all(verdicts.get(name) in FINE for name in WITNESS_DATA)
    seen = f"a witness computed the gradients {' and '.join(shown)}"
    if bits and known and shown:
        return "proven", f"the bits are those of a replay, and {seen}"
    if bits:
        return "replay only", "the bits are those of a replay; no witness supports it"
    if known and shown:
        return "undecided", f"no bits were promised or compared, but {seen}"
    return "undecided", "neither bits nor a witness support it"


def as_dicts(rungs: Mapping[str, Rung]) -> dict[str, dict[str, Any]]:
    """Rungs for JSON, and for :func:`verdict_of`."""
    return {name: asdict(rung) for name, rung in rungs.items()}
