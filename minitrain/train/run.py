"""Training run of one rank: set up, train, write the output files."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from minitrain.comm.collective_calls import everyone, only_first
from minitrain.comm.groups import (
    distributed,
    host_number,
    local_device,
    require_gpus,
    start_up,
)
from minitrain.comm.heartbeat import my_heartbeat
from minitrain.core.cpu_load import load_of, taken
from minitrain.core.errors import UserError
from minitrain.core.params import Params
from minitrain.core.provenance import require_torch
from minitrain.model.factory import try_model
from minitrain.sync.strategy import num_bytes, trained
from minitrain.train.checkpoint import Checkpoints
from minitrain.train.config import RunConfig, config_of
from minitrain.train.eval_pass import add_probes, unwatched_gradients
from minitrain.train.identity import checkpoints_of, same_on_all_hosts
from minitrain.train.observer import StepObserver, watches_parts
from minitrain.train.outputs import write_run, write_state
from minitrain.train.precision import Precision
from minitrain.train.resume import begin_with, run_through
from minitrain.train.step_record import TrainResult
from minitrain.train.worker import Worker

# injects a fault into a worker before its first step
Inject = Callable[[Worker], None]


@dataclass(frozen=True)
class Job:
    """Parameters of a run, its input folder ``shards`` and output folder ``out``.
    ``resume``: folder with checkpoints to start from, of another world size, or None.
    """

    params: Params
    backend: str
    world_size: int
    shards: Path
    out: Path
    script: Path
    resume: Path | None = None

    @property
    def name(self) -> str:
        """Name of the run, from backend and world size, such as gloo-2."""
        return f"{self.backend}-{self.world_size}"

    def checkpoints(self, config: RunConfig) -> Checkpoints:
        """Return the checkpoints that this run reads and writes."""
        run = self.params, self.shards, self.name, self.world_size
        if self.resume is None or config.sync.guarantees.logical_shards:
            return checkpoints_of(*run)
        # the bits differ from a run that starts at step 0
        began: dict[str, Any] = {"began with": self.resume.name}
        return replace(checkpoints_of(*run, **began), same_bits=False)


def preflight(job: Job, ranks_here: int | None = None) -> None:
    """Check ``job`` before any process is launched: torch, GPUs, data, and a pass of
    the model. ``ranks_here`` is the number of ranks on this host; None for all. Raises
    UserError if a check fails.
    """
    require_torch(job.params.environment.torch)
    if job.backend == "nccl":
        require_gpus(job.world_size if ranks_here is None else ranks_here)
    if not job.shards.exists():
        raise UserError(
            f"{job.shards}: no shards for {job.world_size} processes; {job.world_size} "
            "must stand in params.yaml, in gloo.world_sizes or nccl.world_sizes, and "
            "`dvc repro shard` then makes them"
        )
    torch.set_num_threads(job.params.train.threads_per_process)
    config = config_of(job.params, job.shards, job.world_size)
    batches = config.batches([0], config.num_shards(job.world_size))
    with Precision(config.precision).autocast():
        try_model(
            config.start_model(0),
            batches.micro_batches(0)[0],
            may_leave_unused=config.tuning.find_unused_parameters,
        )


def train_rank(job: Job, launcher: str) -> None:
    """Run one rank of ``job``, from joining the process group to writing the output.
    ``launcher``, a name, is only recorded.
    """
    threads = job.params.train.threads_per_process
    torch.set_num_threads(threads)
    limit = job.params.launch.timeout_s
    run = job.params, job.shards, job.name, job.world_size
    same = same_on_all_hosts(*run, job.resume)
    with distributed(job.backend, timeout_s=limit, same=same) as (rank, world_size):
        device = local_device(job.backend)
        config = config_of(job.params, job.shards, world_size)
        # only on one rank, because code may change while ranks start
        checkpoints = only_first(lambda: job.checkpoints(config))
        if job.resume is not None:
            begin_with(checkpoints, job.resume, config)
        result = run_rank(
            config,
            device=device,
            observer=watches_parts,
            states=job.out / "states",
            checkpoints=checkpoints,
            show=job.name if rank == 0 else "",
        )
        used = everyone(lambda: (host_number(), result.usage))
        hosts = {host: load_of(u for h, u in used if h == host) for host, _ in used}
        facts = {
            "launcher": launcher,
            "backend": job.backend,
            "world_size": world_size,
            "threads_per_process": threads,
            "num_steps": config.steps,
            "sync": job.params.train.sync,
            "model_params": result.num_parameters,
            "gradient_bytes": result.gradient_bytes,
            "went_on_from_step": result.went_on_from,
            "began_with": str(job.resume) if job.resume else None,
            # the host where other processes used most
            "load": max(hosts.values(), key=taken),
        }
        with start_up():
            write_run(job.out, result, facts, job.script, device)
        only_first(checkpoints.forget)


def run_rank(
    config: RunConfig,
    *,
    device: torch.device | None = None,
    observer: Callable[[Worker], StepObserver] = StepObserver,
    inject: Inject | None = None,
    states: Path | None = None,
    checkpoints: Checkpoints | None = None,
    show: str = "",
) -> TrainResult:
    """Train one rank of the process group and return its results. Collective.

    Args:
        device: Device of this rank; None for the CPU.
        observer: Called with the worker; returns its observer.
        inject: Function that injects a fault into the worker, to test the checks.
        states: Folder on rank 0's host for the final state; None to return it.
        checkpoints: Checkpoints to continue from and to write; None for none.
        show: Name of a progress bar; empty for none.
    """
    place = my_heartbeat()
    place.enter("setup")
    with start_up():
        # without injected faults: it would detect some that other checks must detect
        unwatched = None if inject else unwatched_gradients(config, device)
        worker = Worker(config, device=device)
    worker.observer = seen = observer(worker)
    result = seen.result
    if inject is not None:
        inject(worker)
    result.went_on_from = run_through(worker, config.steps, checkpoints, show=show)
    result.usage = seen.usage()
    place.enter("write")
    # a large state takes longer to write than a step
    with start_up():
        worker.sync.finish()
        state = worker.sync.state_dict()
        if states is not None:
            # at once, before anything else can fail
            write_state(states, state)
            state = {}
        place.enter("write")
        # copies, because the passes below may change buffers
        result.state = {name: tensor.clone() for name, tensor in state.items()}
        add_probes(result, worker)
    place.enter("write")
    result.hashes += [unwatched] if unwatched else []
    worker.close()
    result.num_parameters = sum(p.numel() for p in worker.model.parameters())
    result.gradient_bytes = num_bytes(trained(worker.model).values())
    result.values = seen.recorder.values
    return result
