"""Self-launching modules: one script is both launcher and rank, on one or more hosts.

Lost ranks are restarted from the newest checkpoint; user errors are not. A bug first
looks like a lost rank; when it recurs at the same step, it is raised.
"""

import importlib.util
import math
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from minitrain.comm.store import HOSTS, RUN_ID, names_of_a_rank, our_store
from minitrain.core.errors import RankError, UserError
from minitrain.core.printable import note
from minitrain.harness.host_rendezvous import HostRendezvous, join_hosts
from minitrain.harness.hosts import Hosts
from minitrain.harness.launcher import launch, torchrun
from minitrain.harness.rank import as_rank

# addresses, ports and pids, which differ between attempts
CHANGING = re.compile(r"0x[0-9a-f]+|\d{4,}")
# not caused by the code: a scheduler or the OOM killer may kill twice at one step
FROM_OUTSIDE = ("killed by SIGKILL", "killed by SIGTERM", "stopped")


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
    """Run ``body`` as ``world_size`` ranks; its argument is the launcher's name.

    In a rank started by torchrun, runs ``body``. In any other process, calls
    ``preflight``, then starts ``python -m module`` with the arguments of this process
    under torchrun, or ``body`` through :func:`launch` on a torch build without
    torchrun. If a rank is lost, restarts all up to ``max_restarts`` times (see
    :func:`with_restarts`). Waits ``timeout_s`` seconds for the other ``hosts``, if any.

    Raises:
        UserError: this rank belongs to a run of another size.
    """
    # both are needed: torchrun variables can be inherited by a process that is no rank
    if RUN_ID in os.environ and all(name in os.environ for name in names_of_a_rank()):
        _count_all_hosts()
        if os.environ["WORLD_SIZE"] != str(world_size):
            raise UserError(
                f"environment: WORLD_SIZE = {os.environ['WORLD_SIZE']} does not match "
                f"a run of {world_size}; if torchrun did not start this process, unset "
                f"{RUN_ID}"
            )
        with as_rank():
            body("torchrun")
        return
    has_torchrun = importlib.util.find_spec("torch.distributed.run") is not None

    def start(rendezvous: HostRendezvous | None = None) -> None:
        options: dict[str, Any] = {"threads_per_process": threads_per_process}
        if has_torchrun:
            options["rendezvous"] = rendezvous
            return torchrun(module, sys.argv[1:], world_size, **options)
        # no limit on the duration of training; hangs are detected by heartbeat
        launch(body, world_size, "launch", timeout_s=math.inf, **options)

    preflight()
    if hosts is None:
        return with_restarts(start, max_restarts)
    if not has_torchrun:
        raise UserError("--nnodes: requires torchrun, which this torch build omits")
    with join_hosts(hosts, timeout_s, world_size) as rendezvous:
        with_restarts(partial(start, rendezvous), max_restarts)


def _count_all_hosts() -> None:
    # torchrun numbers the ranks of each host from 0; make them global
    if our_store() is None or HOSTS not in os.environ:
        return
    number, count = map(int, os.environ[HOSTS].split())
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    rank = number * here + int(os.environ["LOCAL_RANK"])
    os.environ |= {"RANK": f"{rank}", "WORLD_SIZE": f"{count * here}"}
    os.environ |= {"GROUP_RANK": f"{number}", "GROUP_WORLD_SIZE": f"{count}"}


def with_restarts(attempt: Callable[[], None], max_restarts: int) -> None:
    """Call ``attempt``, repeating it up to ``max_restarts`` times if it loses a rank.

    Prints the failure on stderr before each restart. Raises the RankError if it repeats
    the previous one at the same step, or no restart is left.
    """
    before: tuple[str, int | None] | None = None
    for count in range(1, max_restarts + 2):
        try:
            return attempt()
        except RankError as error:
            what = error.what or str(error)
            now = CHANGING.sub("", what), error.step
            same = now == before and not what.startswith(FROM_OUTSIDE)
            if same or count > max_restarts:
                raise
            before = now
            line = " ".join(str(error).split())
            note(f"{line}; restarting ({count} of {max_restarts})")
