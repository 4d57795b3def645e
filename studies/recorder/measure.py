"""Measure one DDP loop with and without the recorder, interleaved in the same
processes.

After all turns every arm's state is hashed: recording must not change a bit.
"""

from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from interleaved import load_interleaved
from recorded_loop import FIRST, HandWritten
from recorder_arms import RAW, arms_of
from recorder_settings import Recorder

from minitrain.bench.arms import Row, close, enter, take_turns
from minitrain.comm.groups import distributed, is_main_process
from minitrain.core.errors import EvidenceError, run_stage
from minitrain.core.files import open_atomic, write_json
from minitrain.core.params import Params
from minitrain.core.progress import progress
from minitrain.core.provenance import provenance
from minitrain.harness.launcher import launch
from minitrain.recording.format import read_recording
from minitrain.train.step_record import sha256_tensor

STUDY = Path(__file__).resolve().parent
ROOT = STUDY.parents[1]


def main() -> None:
    study, params = load_interleaved(STUDY, Recorder)
    params = params.with_train(global_batch_size=study.global_batch_size)
    with TemporaryDirectory() as folder:
        run = partial(compete, params, study, Path(folder))
        ranks = launch(run, study.world_size, timeout_s=3600)
        sizes = {}
        for path in sorted(Path(folder).glob("*/rank-0.jsonl")):
            refuse_alarms(path.parent)
            sizes[path.parent.name] = path.stat().st_size
    states = {name: [rank[2][name] for rank in ranks] for name in ranks[0][2]}
    others = [name for name, of in states.items() if {*of} != {states[RAW][0]}]
    if others:
        raise EvidenceError(f"other bits than {RAW}: {others}")
    for name, rows in zip(("rounds", "steps"), ranks[0][:2], strict=True):
        with open_atomic(STUDY / f"{name}.csv") as file:
            pd.DataFrame(rows).to_csv(file, index=False)
    steps = FIRST + study.num_rounds * (1 + study.steps_per_round)
    found = {"steps": steps, "every": study.steps_per_round}
    found |= {"bytes_of_rank_0": sizes, "states_sha256_of_ranks": states}
    write_json(STUDY / "machine.json", {**found, **provenance(Path(__file__))})


def compete(
    params: Params, study: Recorder, folder: Path
) -> tuple[list[Row], list[Row], dict[str, str]]:
    count, num_steps = study.num_rounds, study.steps_per_round
    with distributed(timeout_s=600):
        arms = list(arms_of(study.world_size, study.steps_per_round, folder))
        rounds = progress(range(count), "rounds", total=count, show=is_main_process())
        contestants = enter(params, ROOT / "data/shards", arms)
        rows = take_turns(contestants, rounds, num_steps)
        hand = [one for one in contestants if isinstance(one, HandWritten)]
        steps = [row for one in hand for row in one.steps(num_steps)]
        states = {one.arm.name: state_sha256(one) for one in contestants if one}
        close(contestants)
    return rows, steps, states


def refuse_alarms(folder: Path) -> None:
    """Raise an error for a finding of the recorder: the timed run must be correct."""
    for rank, recorded in read_recording(folder).ranks.items():
        for alarm in (one for one in recorded.alarms if one["kind"] == "alarm"):
            raise EvidenceError(f"{folder.name}, rank {rank}: {alarm['line']}")


def state_sha256(contestant: Any) -> str:
    state = contestant.state_dict().items()
    lines = [f"{name} {sha256_tensor(tensor)}\n" for name, tensor in state]
    return sha256("".join(lines).encode()).hexdigest()


if __name__ == "__main__":
    run_stage(main)
