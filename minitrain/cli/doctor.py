"""Probe this machine and its torch: every collective against known answers.

Tries each collective over gloo at 2, 3 and 4 ranks, with each reduce operation, in
float64, 32, 16 and 8 (e4m3fn), bfloat16, complex64, bool and the integers; and reports
threads and network. Exit code 0: nothing is wrong, though some may be unsupported, 1:
something is wrong, 2: the ranks failed.
"""

import argparse
import os
import sys
import warnings
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from minitrain.cli.command import Answer
from minitrain.core.progress import progress
from minitrain.core.provenance import usable_cores
from minitrain.report.numbers import plural

# torch takes seconds to import, so functions import it: not for --help
if TYPE_CHECKING:
    from minitrain.cli.collectives import Probe

EXAMPLES = {
    "what is odd, a line each": "minitrain doctor",
    "every probe, for a program": "minitrain doctor --json",
}
WORLD_SIZES = (2, 3, 4)
TIMEOUT_S, GROUP_TIMEOUT_S = 60, 10


def answer(options: argparse.Namespace) -> Answer:
    """Examine machine and torch; ``ok`` if no probe is wrong."""
    print("trying every collective, about ten seconds ...", file=sys.stderr, flush=True)
    facts, probes = machine(), examine()
    ok = bool(probes) and all(probe.verdict != "wrong" for probe in probes)
    lines = [f"{name}: {value}" for name, value in facts.items()]
    found = {"ok": ok, "machine": facts, "probes": [asdict(probe) for probe in probes]}
    return Answer(ok, found, "\n".join([*lines, in_words(probes)]))


def machine() -> dict[str, Any]:
    """Return facts about torch, threads and network by name. Raises UserError if gloo's
    network interface is unknown, or loopback is down.
    """
    import torch

    from minitrain.comm.store import interfaces

    available = torch.distributed.is_backend_available
    asked = os.environ.get("OMP_NUM_THREADS")
    return {
        "torch": torch.__version__,
        "backends": ", ".join(filter(available, ("gloo", "nccl"))),
        "GPUs": torch.cuda.device_count(),
        "cores": usable_cores(),
        "threads of a process": torch.get_num_threads(),
        "OMP_NUM_THREADS": asked or "unset (under torchrun it is 1)",
        "network of a host's ranks": interfaces(),
    }


def examine() -> "list[Probe]":
    """Try every collective at 2, 3 and 4 ranks over gloo; return the worst of the
    ranks' results of each probe. Raises RankError if a rank fails, or a minute passes.
    """
    from minitrain.cli.collectives import worst
    from minitrain.harness.launcher import launch

    by_probe: dict[tuple[str, str, str, int], list[Probe]] = {}
    for of_rank in launch(_probe, max(WORLD_SIZES), timeout_s=TIMEOUT_S):
        for probe in of_rank:
            key = (probe.collective, probe.op, probe.dtype, probe.world_size)
            by_probe.setdefault(key, []).append(probe)
    return [worst(probes) for probes in by_probe.values()]


def _probe() -> "list[Probe]":
    import torch.distributed as dist

    from minitrain.cli.collectives import probe_all
    from minitrain.comm.groups import distributed

    # deprecated names are still in use
    warnings.simplefilter("ignore", FutureWarning)
    found: list[Probe] = []
    limit = timedelta(seconds=GROUP_TIMEOUT_S)
    with distributed() as (rank, _):
        for size in progress(WORLD_SIZES, "numbers of ranks", show=rank == 0):
            group = dist.new_group(list(range(size)), timeout=limit)
            if rank < size:
                found += probe_all(group)
    return found


def in_words(probes: "list[Probe]") -> str:
    """Return lines: the number of right probes, then the calls that are not, with types
    and world sizes; calls that refuse the same types share a line.
    """
    verdicts = [probe.verdict for probe in probes]
    right = f"{verdicts.count('right')} of {plural(len(verdicts), 'probe')}"
    odd = [f"{verdicts.count(v)} {v}" for v in ("unsupported", "wrong")]
    calls: dict[tuple[str, str], list[Probe]] = {}
    for probe in probes:
        if probe.verdict != "right":
            name = f"{probe.collective} {probe.op}".strip()
            calls.setdefault((probe.verdict, name), []).append(probe)
    names: dict[tuple[str, str], list[str]] = {}
    for (verdict, name), of_call in calls.items():
        sizes = ", ".join(str(size) for size in sorted({p.world_size for p in of_call}))
        types = ", ".join(dict.fromkeys(probe.dtype for probe in of_call))
        what = f"of {types} at {sizes} ranks: {of_call[0].detail}"
        names.setdefault((verdict, what), []).append(name)
    wrong_first = sorted(names, key=lambda line: line[0], reverse=True)
    return "\n".join(
        [
            f"collectives: {right} gave the known answer, {', '.join(odd)}",
            *(f"{x[0]}: {', '.join(names[x])} {x[1]}" for x in wrong_first),
        ]
    )
