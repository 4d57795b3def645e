"""Probe this machine and its torch: every collective against known answers.

Tries each collective over gloo at 2, 3 and 4 ranks, with each reduce operation, in
float64, 32, 16 and 8 (e4m3fn), bfloat16, complex64, bool and the integers; and looks at
network and threads. Exit code 0: nothing is wrong, though some may be
unsupported, 1: something is wrong.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from minitrain.cli.command import Answer
from minitrain.core.errors import UserError
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


@dataclass(frozen=True)
class Check:
    """Result of a check: ``trouble`` may slow the machine, ``wrong`` must be fixed."""

    name: str
    verdict: Literal["fine", "trouble", "wrong"]
    detail: str


@dataclass(frozen=True)
class Examination:
    """All checks of the machine, and all probes of collectives."""

    checks: list[Check]
    probes: list["Probe"]

    @property
    def ok(self) -> bool:
        """True if collectives were probed and nothing is wrong."""
        verdicts = [check.verdict for check in self.checks]
        answers = [probe.verdict for probe in self.probes]
        return bool(answers) and "wrong" not in [*verdicts, *answers]


def answer(options: argparse.Namespace) -> Answer:
    """Check the machine and its torch; ``ok`` as :attr:`Examination.ok`."""
    print("trying every collective, about ten seconds ...", file=sys.stderr, flush=True)
    found = examine()
    return Answer(found.ok, {"ok": found.ok, **asdict(found)}, in_words(found))


def examine() -> Examination:
    """Check the machine, then try every collective at 2, 3 and 4 ranks over gloo. If a
    rank fails or a minute passes, a check is wrong and there are no probes.
    """
    from minitrain.cli.collectives import worst
    from minitrain.harness.launcher import launch

    checks = [check_torch(), check_threads(), check_interface()]
    try:
        by_rank = launch(_probe, max(WORLD_SIZES), timeout_s=TIMEOUT_S)
    except Exception as error:
        failed = Check("collectives", "wrong", f"the ranks failed: {error}")
        return Examination([*checks, failed], [])
    by_probe: dict[tuple[str, str, str, int], list[Probe]] = {}
    for probe in (probe for rank in by_rank for probe in rank):
        key = (probe.collective, probe.op, probe.dtype, probe.world_size)
        by_probe.setdefault(key, []).append(probe)
    return Examination(checks, [worst(probes) for probes in by_probe.values()])


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


def check_torch() -> Check:
    """Report the version of torch, its backends and GPUs; wrong without gloo."""
    import torch

    available = torch.distributed.is_backend_available
    names = [name for name in ("gloo", "nccl") if available(name)]
    detail = f"{torch.__version__}, backends: {', '.join(names) or 'none'}"
    detail += f", GPUs: {torch.cuda.device_count()}"
    return Check("torch", "fine" if "gloo" in names else "wrong", detail)


def check_threads() -> Check:
    """Report the threads of this process; trouble if they exceed the usable cores."""
    import torch

    cores = usable_cores()
    threads, asked = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    detail = f"{threads} in torch, OMP_NUM_THREADS={asked or 'unset'}, {cores} cores"
    detail += f"; N ranks use N x {threads} threads"
    if asked is None:
        detail += ", or N under torchrun, which sets 1"
    return Check("threads", "trouble" if threads > cores else "fine", detail)


def check_interface() -> Check:
    """Report gloo's network interfaces; wrong if one is unknown or loopback is down."""
    from minitrain.comm.store import interfaces

    try:
        return Check("network", "fine", f"ranks of one host talk over {interfaces()}")
    except UserError as error:
        return Check("network", "wrong", str(error))


def in_words(found: Examination) -> str:
    """Return lines: each check, the number of right probes, the calls that are not."""
    width = max(len(check.name) for check in found.checks)
    lines = [
        f"{check.verdict:<8}{check.name:<{width}}  {check.detail}"
        for check in found.checks
    ]
    verdicts = [probe.verdict for probe in found.probes]
    if verdicts:
        right = f"{verdicts.count('right')} of {plural(len(verdicts), 'probe')}"
        odd = [f"{verdicts.count(v)} {v}" for v in ("unsupported", "wrong")]
        lines.append(f"collectives: {right} gave the known answer, {', '.join(odd)}")
    return "\n".join([*lines, *_odd(found.probes)])


def _odd(probes: "Iterable[Probe]") -> list[str]:
    # return a line for each wrong call, with its types and world sizes; calls that
    # refuse the same types share one
    calls: dict[tuple[str, str], list[Probe]] = {}
    for probe in probes:
        if probe.verdict != "right":
            name = f"{probe.collective} {probe.op}".strip()
            calls.setdefault((probe.verdict, name), []).append(probe)
    names: dict[tuple[str, str], list[str]] = {}
    for (verdict, name), odd in calls.items():
        sizes = ", ".join(str(size) for size in sorted({p.world_size for p in odd}))
        types = ", ".join(dict.fromkeys(probe.dtype for probe in odd))
        what = f"of {types} at {sizes} ranks: {odd[0].detail}"
        names.setdefault((verdict, what), []).append(name)
    wrong_first = sorted(names, key=lambda line: line[0], reverse=True)
    return [f"{line[0]}: {', '.join(names[line])} {line[1]}" for line in wrong_first]
