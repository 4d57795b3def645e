"""Settings as arms, measured in new processes, over cables if available."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import pandas as pd
from interleaved import only_ddp
from link_rate import LOOPBACK
from network_namespaces import Networks
from network_runs import Found, Linked, Placed, compete
from rows import ROOT
from setting import NO_SYNC, Setting, name_of

from minitrain.comm.groups import distributed, is_main_process
from minitrain.core.cpu_load import load_of
from minitrain.core.params import Params, load_params
from minitrain.core.progress import progress
from minitrain.harness.launcher import launch
from minitrain.sync.catalog import PLAIN

LIMIT_S = 7200


def arm_of(setting: Setting, name: str | None = None) -> Placed:
    """Return the arm that measures ``setting``, named after it by default."""
    changes = {
        "sync": PLAIN if setting.sync == NO_SYNC else setting.sync,
        "bucket_cap_mb": setting.bucket_cap_mb,
        "grad_accumulation_steps": setting.micro_batches,
    }
    return Placed(
        name or name_of(setting),
        setting.processes,
        1,
        tuple(changes.items()),
        link=LOOPBACK if setting.sync == NO_SYNC else setting.link,
        n_layer=setting.n_layer,
        n_embd=int(setting.n_embd),
        samples=int(setting.samples),
    )


def run(
    arms: Sequence[Linked], num_rounds: int, num_steps: int
) -> tuple[pd.DataFrame, list[Found], dict[str, Any]]:
    """Return the rows of turns, what each rank measured, and the load."""
    params = only_ddp(load_params(ROOT / "params.yaml").at(ROOT))
    cabled = any(arm.link != LOOPBACK for arm in arms)
    with Networks() if cabled else nullcontext() as hosts:
        paths = hosts.paths if hosts else ()
        job = partial(be_a_rank, params, arms, num_rounds, num_steps, paths)
        most = max(arm.processes for arm in arms)
        found = launch(job, most, timeout_s=LIMIT_S)
    rows = [row for one in found for row in one.turns]
    return pd.DataFrame(rows), found, load_of([one.usage for one in found])


def be_a_rank(
    params: Params,
    arms: Sequence[Linked],
    num_rounds: int,
    num_steps: int,
    hosts: Sequence[str],
) -> Found:
    with distributed(timeout_s=600):
        rounds = progress(
            range(num_rounds), "rounds", total=num_rounds, show=is_main_process()
        )
        return compete(params, ROOT / "data/shards", arms, rounds, num_steps, hosts)
