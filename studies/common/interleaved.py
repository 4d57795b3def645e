"""Loading of settings for a comparison of interleaved arms."""

from pathlib import Path
from typing import TypeVar

from study_settings import Interleaved, load_study

from minitrain.core.errors import UserError
from minitrain.core.params import Params, load_params

T = TypeVar("T", bound=Interleaved)


def only_ddp(params: Params) -> Params:
    """Return ``params`` for stock DDP with default settings."""
    return params.with_train(
        sync="ddp",
        fused_optimizer=False,
        grad_accumulation_steps=1,
        precision="float32",
        bucket_cap_mb=None,
        overlap=True,
        find_unused_parameters=False,
    )


def load_interleaved(
    folder: Path, schema: type[T], micro_batches: int = 1
) -> tuple[T, Params]:
    """Load the study in ``folder``, and the project's params.yaml with stock DDP.

    ``micro_batches`` is the largest number of micro-batches per process. Raises
    UserError for a file that does not match its schema, and for missing shards.
    """
    study = load_study(folder, schema)
    root = folder.parents[1]
    params = only_ddp(load_params(root / "params.yaml").at(root))
    section = f"{folder / 'params.yaml'}: {folder.name}"
    processes, made = study.world_size, params.all_world_sizes()
    if processes not in made:
        raise UserError(
            f"{section}.world_size = {processes}: must be one of those that the "
            f"pipeline has shards for ({', '.join(map(str, made))}): gloo.world_sizes"
        )
    for key, size in study.batch_sizes().items():
        divisor = processes * micro_batches
        if size % divisor:
            cut = f" with {micro_batches} micro-batches each" * (micro_batches > 1)
            raise UserError(
                f"{section}.{key} = {size}: must be a multiple of {divisor}, for "
                f"{processes} processes{cut}"
            )
    return study, params
