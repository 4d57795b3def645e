"""Check params.yaml and the machine before anything else runs.

    python -m stages.check

DVC follows single keys, so a misspelt one would change nothing and nobody would
notice. This stage depends on the whole file; what it writes never changes, so passing
it rebuilds nothing.
"""

from pathlib import Path

from minitrain.errors import run_stage
from minitrain.files import open_atomic
from minitrain.params import load_params
from minitrain.provenance import require_torch


def main() -> None:
    params = load_params(Path("params.yaml"))
    require_torch(params.environment.torch)
    if params.nccl.world_sizes:
        # torch takes seconds to import: only who asks for GPUs pays for it
        from minitrain.ddp import require_gpus

        require_gpus(max(params.nccl.world_sizes))
    with open_atomic(Path("data/check.txt")) as file:
        file.write("params.yaml and the machine passed the check\n")


if __name__ == "__main__":
    run_stage(main)
