"""Let the model speak before and after training: the same dice for every run.

python -m stages.sample
"""

from pathlib import Path

import torch

from minitrain.core.errors import run_stage
from minitrain.core.files import write_json
from minitrain.core.params import load_params
from minitrain.speech.before_after import before_and_after

RUNS = Path("data/runs")


def main() -> None:
    params = load_params(Path("params.yaml"))
    # sums depend on the number of threads, and a draw may depend on a sum
    torch.set_num_threads(params.train.threads_per_process)
    # the states of all ranks are equal, as the equivalence has found
    states = {run: RUNS / run / "states/state-rank-0.pt" for run in params.runs()}
    write_json(Path("metrics/samples.json"), before_and_after(params, states))


if __name__ == "__main__":
    run_stage(main)
