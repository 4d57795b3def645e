"""What a strategy can be held to, and what it cannot."""

from collections.abc import Iterable, Mapping

from minitrain.analysis.verdicts import FINE
from minitrain.proof.bits import Rung, not_run
from minitrain.proof.first_difference import Rows
from minitrain.proof.forward import forward_of
from minitrain.sync.catalog import name_of
from minitrain.sync.guarantees import Promise
from minitrain.train.config import RunConfig

NEEDS: dict[str, Promise] = {
    "reduced_once": "reduced_once",
    "replay_gradients": "replay",
    "replay_parameters": "replay",
    "replay_buffers": "replay",
    "replay_losses": "replay",
    "replay": "replay",
    "one_process_gradients": "one_process",
    "one_process_early": "one_process",
    "one_process": "one_process",
    "loss": "loss",
}
WHY_NOT: dict[str, str] = {
    "reduced_once": "does not promise that each parameter is reduced once",
    "replay": "does not promise the bits of a replay",
    "one_process": "does not promise to stay close to one process",
}


def not_promised(rungs: Iterable[str], config: RunConfig) -> dict[str, Rung]:
    """Of ``rungs`` those that the strategy does not promise, each with the reason."""
    skipped = {}
    promises = config.sync.guarantees.promises
    for name in rungs:
        promise = NEEDS.get(name)
        if promise is None:
            continue
        if promise not in promises:
            skipped[name] = not_run(f"{name_of(config.sync)} {WHY_NOT[promise]}")
        elif promise == "one_process" and config.precision != "float32":
            why = f"{config.precision} rounds more coarsely than the tolerances know"
            skipped[name] = not_run(why)
    return skipped


FEWER = (
    "the loss is no mean over samples, so ranks that see fewer of them (negatives, "
    "terms of a sum) compute another one than one process"
)


def not_comparable(
    rungs: Mapping[str, Rung], run: Rows, config: RunConfig
) -> dict[str, Rung]:
    """The rungs against one process, where the witness finds that the loss of a sample
    depends on the others of its batch: there a whole batch is another thing than its
    shards by design. A buffer that counts samples in training is no such design.
    """
    mean = rungs.get("witness_mean")
    # without a distance nothing was compared, and nothing is known
    if mean is None or mean.verdict != "not run" or mean.max_abs_diff is None:
        return {}
    probe = rungs.get("witness_probe")
    if probe and probe.verdict in FINE and forward_of(run, config).changed:
        return {}
    names = [name for name, promise in NEEDS.items() if promise == "one_process"]
    return {name: not_run(f"{FEWER}; {mean.detail}") for name in names if name in rungs}
