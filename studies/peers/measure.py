"""Benchmark of minitrain's loop, a raw DDP loop, Accelerate and Lightning Fabric.

Same model, batches and optimizer in the same processes, interleaved. After all turns,
every arm's state is hashed: arms that synchronize must have equal bits, or else they
did not do the same work.
"""

from functools import partial
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
from interleaved import load_interleaved
from loops import NO_SYNC, RAW, arms_of
from peers_settings import Peers

from minitrain.bench.arms import Contestant, Row, close, enter, take_turns
from minitrain.comm.groups import distributed, is_main_process
from minitrain.core.errors import EvidenceError, run_stage
from minitrain.core.files import open_atomic, write_json
from minitrain.core.params import Params
from minitrain.core.progress import progress
from minitrain.core.provenance import provenance
from minitrain.harness.launcher import launch
from minitrain.train.step_record import sha256_tensor

STUDY = Path(__file__).resolve().parent
ROOT = STUDY.parents[1]
LIBRARIES = ("torch", "accelerate", "lightning-fabric")


def main() -> None:
    study, params = load_interleaved(STUDY, Peers)
    rows: list[Row] = []
    states: dict[str, Any] = {}
    for size in study.global_batch_sizes:
        run = partial(compete, params.with_train(global_batch_size=size), study)
        ranks = launch(run, study.world_size, timeout_s=3600)
        rows += [row | {"global_batch_size": size} for row in ranks[0][0]]
        names = ranks[0][1]
        states[str(size)] = {name: [rank[1][name] for rank in ranks] for name in names}
    for batch, arms in states.items():
        others = [name for name, ranks in arms.items() if {*ranks} != {arms[RAW][0]}]
        if others != [NO_SYNC]:
            raise EvidenceError(f"batch {batch}: other bits than {RAW}: {others}")
    with open_atomic(STUDY / "rounds.csv") as file:
        pd.DataFrame(rows).to_csv(file, index=False)
    steps = study.num_rounds * (1 + study.steps_per_round)
    versions = {name: version(name) for name in LIBRARIES}
    proof = {"steps": steps, "libraries": versions, "states_sha256_of_ranks": states}
    write_json(STUDY / "proof.json", {**proof, **provenance(Path(__file__))})


def compete(params: Params, study: Peers) -> tuple[list[Row], dict[str, str]]:
    numbers, size = study.num_rounds, params.train.global_batch_size
    with distributed(timeout_s=600):
        rounds = progress(
            range(numbers), f"batch {size}", total=numbers, show=is_main_process()
        )
        arms = list(arms_of(study.world_size))
        contestants = enter(params, ROOT / "data/shards", arms)
        rows = take_turns(contestants, rounds, study.steps_per_round)
        states = {one.arm.name: state_sha256(one) for one in contestants if one}
        close(contestants)
    return rows, states


def state_sha256(contestant: Contestant) -> str:
    state = contestant.state_dict().items()
    lines = [f"{name} {sha256_tensor(tensor)}\n" for name, tensor in state]
    return sha256("".join(lines).encode()).hexdigest()


if __name__ == "__main__":
    run_stage(main)
