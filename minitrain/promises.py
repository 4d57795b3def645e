"""What a strategy can be held to, and what it cannot."""

from collections.abc import Iterable, Mapping

from minitrain.equivalence import Rung, not_run
from minitrain.sync import Promise, Strategy

NEEDS: dict[str, Promise] = {
    "reduced_once": "reduced_once",
    "replay_gradients": "replay",
    "replay_parameters": "replay",
    "replay_buffers": "replay",
    "replay": "replay",
    "one_process_gradients": "one_process",
    "one_process_early": "one_process",
    "one_process": "one_process",
    "loss": "loss",
}
WHY_NOT: dict[Promise, str] = {
    "reduced_once": "does not show its buckets",
    "replay": "does not promise the bits of a replay",
    "one_process": "does not promise to stay close to one process",
    "loss": "is held to more than its loss",
}


def not_promised(
    rungs: Iterable[str], strategy: type[Strategy], precision: str
) -> dict[str, Rung]:
    """Of ``rungs`` those that ``strategy`` does not promise, each with the reason."""
    skipped = {}
    for name in rungs:
        promise = NEEDS.get(name)
        if promise is None:
            continue
        if promise not in strategy.promises:
            skipped[name] = not_run(f"{strategy.__name__} {WHY_NOT[promise]}")
        elif promise == "one_process" and precision != "float32":
            why = f"{precision} rounds more coarsely than the tolerances know"
            skipped[name] = not_run(why)
    return skipped


def unproven(rungs: Mapping[str, Rung], strategy: type[Strategy]) -> dict[str, Rung]:
    """A verdict for a strategy that promises no bits and was asked for nothing else.

    Dropout, batch norm or 16 bits leave nothing to compare with one process: then
    nobody has proven the run right, and it must not look as if.
    """
    if "replay" in strategy.promises:
        return {}
    asked = [rungs[name] for name in ("one_process", "loss") if name in rungs]
    if any(rung.verdict != "not run" for rung in asked):
        return {}
    why = f"nothing that {strategy.__name__} promises could be asked"
    return {"proven": Rung(None, None, None, "undecided", why)}
