"""Trace a few training steps on every rank, and write one file for Perfetto.

Model, strategy and other options are those of params.yaml. An inconsistent trace is not
written.
"""

import os
from pathlib import Path

import torch
from chrome_trace import chrome_trace, write_trace
from study_settings import load_study
from trace_check import require_right
from trace_settings import Trace
from tracing import TracedRank, trace_steps

from minitrain.comm.groups import distributed, local_device
from minitrain.core.errors import run_stage
from minitrain.core.files import write_json
from minitrain.core.params import load_params
from minitrain.core.provenance import provenance
from minitrain.harness.launcher import launch
from minitrain.sync.catalog import guarantees_of
from minitrain.train.config import config_of
from minitrain.train.run import Job, preflight
from minitrain.train.worker import Worker

STUDY = Path(__file__).resolve().parent
ROOT = STUDY.parents[1]


def main() -> None:
    study = load_study(STUDY, Trace)
    params = load_params(ROOT / "params.yaml").at(ROOT)
    train, size = params.train, study.world_size
    guarantees_of(train.sync).require(train, size, train.precision)
    shards = ROOT / f"data/shards/world-{size}"
    job = Job(params, study.backend, size, shards, STUDY, Path(__file__))
    preflight(job)
    threads = train.threads_per_process
    ranks = launch(
        be_a_rank, size, job, study, threads_per_process=threads, timeout_s=900
    )
    about = {"sync": train.sync, "shortest_op_us": study.shortest_op_us}
    trace = chrome_trace(ranks, about)
    require_right(trace)
    gpu = torch.cuda.get_device_name() if study.backend == "nccl" else None
    write_trace(STUDY / "trace.json.gz", trace)
    write_json(STUDY / "machine.json", provenance(Path(__file__), gpu))


def be_a_rank(job: Job, study: Trace) -> TracedRank:
    if study.backend == "gloo":
        # torch's profiler prints when it starts and stops, and may warn about a GPU
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    torch.set_num_threads(job.params.train.threads_per_process)
    with distributed(job.backend, timeout_s=job.params.launch.timeout_s):
        config = config_of(job.params, job.shards, job.world_size)
        worker = Worker(config, device=local_device(job.backend))
        traced = trace_steps(
            worker, study.first_step, study.num_steps, study.shortest_op_us
        )
        worker.close()
    return traced


if __name__ == "__main__":
    run_stage(main)
