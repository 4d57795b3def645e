"""Duration of each phase of a resume."""

import time
from collections.abc import Iterator

from minitrain.comm.groups import barrier
from minitrain.train.checkpoint import Checkpoints, load_rank
from minitrain.train.observer import watches_parts
from minitrain.train.worker import REPEATED, Worker

NS_PER_MS = 1e6


def times_of_reading(
    worker: Worker, checkpoints: Checkpoints, count: int
) -> Iterator[tuple[str, int, float]]:
    for number in range(count):
        barrier()
        start = time.perf_counter_ns()
        step = checkpoints.newest()
        assert step is not None
        found = time.perf_counter_ns()
        kept = load_rank(step)
        loaded = time.perf_counter_ns()
        # with the observers of a training run
        worker.observer = watches_parts(worker)
        worker.train(range(REPEATED))
        again = time.perf_counter_ns()
        worker.restore(kept)
        restored = time.perf_counter_ns()
        named = {
            "find and check": found - start,
            "load": loaded - found,
            "first steps again": again - loaded,
            "put back": restored - again,
            "go on, together": restored - start,
        }
        yield from ((what, number, ns / NS_PER_MS) for what, ns in named.items())
