"""A module that starts itself as ranks, here or on several hosts, and is each one.

Ranks that were lost start again, from the newest checkpoint; mistakes do not. A code
error looks like a lost rank at first. It comes back at the same step, and then it is
raised.
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
from minitrain.harness.host_rendezvous import Gathering, gathered
from minitrain.harness.hosts import Hosts
from minitrain.harness.launcher import launch, torchrun
from minitrain.harness.rank import as_rank

# addresses, ports and process numbers: another each time
CHANGING = re.compile(r"0x[0-9a-f]+|\d{4,}")
# nothing that the code does: a rank that is killed twice at one step may be killed by
# a scheduler or by the OOM killer
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
    """Run ``body`` as ``world_size`` ranks; it is given the name of the launcher.

    In a rank that torchrun started, this runs ``body``. Anywhere else it calls
    ``preflight``, then starts ``python -m module`` with the arguments of this process
    under torchrun, or, on a torch build without torchrun, ``body`` through
    :func:`launch`; all ranks again where one was lost, up to ``max_restarts`` times
    (:func:`with_restarts`). If this host is one of several ``hosts``, it waits
    ``timeout_s`` seconds for the others.
    Raises UserError in a rank of a run of another size.
    """
    # what another torchrun left alone is no rank
    if RUN_ID in os.environ and all(name in os.environ for name in names_of_a_rank()):
        _count_all_hosts()
        if os.environ["WORLD_SIZE"] != str(world_size):
            raise UserError(
                f"environment: WORLD_SIZE = {os.environ['WORLD_SIZE']} does not fit a "
                f"run of {world_size}; where torchrun did not start this process, "
                f"unset {RUN_ID}"
            )
        with as_rank():
            body("torchrun")
        return
    has_torchrun = importlib.util.find_spec("torch.distributed.run") is not None

    def start(gathering: Gathering | None = None) -> None:
        options: dict[str, Any] = {"threads_per_process": threads_per_process}
        if has_torchrun:
            options["gathering"] = gathering
            return torchrun(module, sys.argv[1:], world_size, **options)
        # ranks that hang are found; how long training takes is not known
        launch(body, world_size, "launch", timeout_s=math.inf, **options)

    preflight()
    if hosts is None:
        return with_restarts(start, max_restarts)
    if not has_torchrun:
        raise UserError("--nnodes: this torch has no torchrun, which hosts need")
    with gathered(hosts, timeout_s, world_size) as gathering:
        with_restarts(partial(start, gathering), max_restarts)


def _count_all_hosts() -> None:
    # torchrun, which knows of the ranks of this host alone, counts them from 0
    if our_store() is None or HOSTS not in os.environ:
        return
    number, count = map(int, os.environ[HOSTS].split())
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    rank = number * here + int(os.environ["LOCAL_RANK"])
    os.environ |= {"RANK": f"{rank}", "WORLD_SIZE": f"{count * here}"}
    os.environ |= {"GROUP_RANK": f"{number}", "GROUP_WORLD_SIZE": f"{count}"}


def with_restarts(attempt: Callable[[], None], max_restarts: int) -> None:
    """Call ``attempt``, and again when it loses a rank, up to ``max_restarts`` times.

    Prints on stderr what happened before each. Raises the last RankError: that of one
    too many, or of two in a row that are the same at the same step.
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
            note(f"{line}; starting again ({count} of {max_restarts})")
