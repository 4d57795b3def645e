"""Measure peak memory with and without the recorder, in new processes."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from interleaved import load_interleaved
from recorder_arms import arms_of
from recorder_settings import Recorder

from minitrain.bench.arms import close, enter, take_turns
from minitrain.comm.groups import distributed
from minitrain.core.errors import run_stage
from minitrain.core.files import write_json
from minitrain.core.params import Params
from minitrain.core.progress import progress
from minitrain.core.provenance import peak_memory_mb, provenance
from minitrain.harness.launcher import launch

STUDY = Path(__file__).resolve().parent
ROOT = STUDY.parents[1]
NUM_TURNS = 2


def main() -> None:
    study, params = load_interleaved(STUDY, Recorder)
    params = params.with_train(global_batch_size=study.global_batch_size)
    runs, count = [], study.memory_runs
    for number in progress(range(count), "runs", total=count, show=True):
        # interleaved, so that drift of the machine affects all kinds of run
        for position, arm in enumerate(("raw", "recorded")):
            with TemporaryDirectory() as folder:
                run = partial(alone, params, study, Path(folder), position)
                peaks = launch(run, study.world_size, timeout_s=600)
            peaks = [round(peak, 1) for peak in peaks]
            runs.append({"run": number, "arm": arm, "peak_mb_of_ranks": peaks})
    origin = provenance(Path(__file__))
    write_json(STUDY / "memory.json", {"runs": runs, **origin})


def alone(params: Params, study: Recorder, folder: Path, position: int) -> float:
    with distributed(timeout_s=600):
        arm = [*arms_of(study.world_size, study.steps_per_round, folder)][position]
        contestants = enter(params, ROOT / "data/shards", [arm])
        take_turns(contestants, range(NUM_TURNS), study.steps_per_round)
        close([one for one in contestants if one])
    return peak_memory_mb()


if __name__ == "__main__":
    run_stage(main)
