"""Checking params.yaml and the machine.

    python -m stages.check

DVC tracks individual keys, so it ignores a misspelt key silently. This stage depends on
the whole file; its output is constant, so passing it triggers no other stage.
"""

from pathlib import Path

from minitrain.core.errors import UserError, run_stage
from minitrain.core.files import nearest_file, open_atomic
from minitrain.core.params import load_params
from minitrain.core.provenance import require_torch
from minitrain.sync.catalog import guarantees_of


def main() -> None:
    params = load_params(Path("params.yaml"))
    require_torch(params.environment.torch)
    files = {"corpus.source": params.corpus.source, "model.file": params.model.file}
    for key, name in files.items():
        if not Path(name).is_file():
            near = nearest_file(Path(name))
            raise UserError(f"params.yaml: {key} = {name!r}: no such file{near}")
    if not Path(params.model.deps).exists():
        near = nearest_file(Path(params.model.deps))
        raise UserError(
            f"params.yaml: model.deps = {params.model.deps!r}: no such file or folder"
            f"{near}"
        )
    try:
        guarantees = guarantees_of(params.train.sync)
        for world_size in params.all_world_sizes():
            guarantees.require(params.train, world_size, params.train.precision)
    except UserError as error:
        raise UserError(f"params.yaml: {error}") from None
    if params.nccl.world_sizes:
        if guarantees.on_cpu:
            raise UserError(
                f"params.yaml: train.sync = {params.train.sync!r}: must be a strategy "
                "for GPUs if nccl.world_sizes is not empty; this one runs on the CPU"
            )
        # imports torch, which is slow and needed only here
        from minitrain.comm.groups import require_gpus

        require_gpus(max(params.nccl.world_sizes))
    with open_atomic(Path("data/check.txt")) as file:
        file.write("params.yaml and the machine passed the check\n")


if __name__ == "__main__":
    run_stage(main)
