"""A module that starts itself as ranks, here or on several hosts, and is each one."""

import importlib.util
import math
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from minitrain.comm.store import RUN_ID, names_of_a_rank
from minitrain.core.errors import UserError
from minitrain.harness.host_rendezvous import Gathering, gathered
from minitrain.harness.hosts import Hosts
from minitrain.harness.launcher import launch
from minitrain.harness.restarts import with_restarts
from minitrain.harness.torchrun import torchrun, torchrun_rank


def run_as_ranks(
    module: str,
    body: Callable[[str], None],
    world_size: int,
    *,
    threads_per_process: int,
    preflight: Callable[[], None] = lambda: None,
    max_restarts: int = 0,
    hosts: Hosts | None = None,
    timeout_s: float = 120,
) -> None:
    """Run ``body`` as ``world_size`` ranks; it is given the name of the launcher.

    In a rank that torchrun started, this runs ``body``. Anywhere else it calls
    ``preflight``, then starts ``python -m module`` with the arguments of this process
    under torchrun, or, on a torch build without torchrun, ``body`` through
    :func:`launch`; all ranks again where one was lost, up to ``max_restarts`` times
    (:mod:`minitrain.harness.restarts`). Where this host is one of several
    ``hosts``, it waits ``timeout_s`` seconds for the others, and what is wrong on one
    ends the run on all. Raises UserError for an environment that some other program
    left behind.
    """
    if RUN_ID in os.environ:
        _require_a_rank_of(world_size)
        with torchrun_rank():
            body("torchrun")
        return
    has_torchrun = importlib.util.find_spec("torch.distributed.run") is not None
    threads: dict[str, Any] = {"threads_per_process": threads_per_process}

    def start(gathering: Gathering | None = None) -> None:
        if has_torchrun:
            torchrun(module, sys.argv[1:], world_size, gathering=gathering, **threads)
        else:
            # ranks that hang are found; nobody knows how long training takes
            launch(body, world_size, "launch", **threads, timeout_s=math.inf)

    if hosts is None:
        preflight()
        return with_restarts(start, max_restarts)
    if not has_torchrun:
        raise UserError("--nnodes: this torch has no torchrun, which hosts need")
    # before they wait for each other
    hosts.ranks_here(world_size)
    with gathered(hosts, timeout_s, world_size) as gathering:
        gathering.everywhere(preflight)
        with_restarts(partial(start, gathering), max_restarts)


def _require_a_rank_of(world_size: int) -> None:
    known = {"WORLD_SIZE": [str(world_size)], "RANK": [*map(str, range(world_size))]}
    for name in names_of_a_rank():
        value = os.environ.get(name)
        if value is None or value not in known.get(name, [value]):
            raise UserError(
                f"environment: {name} = {value or 'nothing'} does not fit a run of "
                f"{world_size}; where torchrun did not start this process, unset "
                f"{RUN_ID}"
            )
