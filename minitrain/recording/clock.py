"""The clock of a recording: the time of each phase of a step, by hooks of torch.

From the end of an optimizer step to the end of the next, without the recorder's own
work between phases: data until the forward pass begins; forward, with the loss, until a
gradient reaches the model's output; backward until the last gradient of this rank;
exposed communication until backward returns, after DDP's own callback; other, such as
clipping, until the optimizer begins; optimizer. These add up to the step. With gradient
accumulation, each phase is summed over the passes of a step.
"""

import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any, Literal, TextIO

import torch
from torch import Tensor

from minitrain.comm.torch_private import at_the_end_of_backward
from minitrain.core.printable import print_note
from minitrain.data.cut import tensors_of
from minitrain.recording.hooks import uncompiled

PARTS = ("data", "forward", "backward", "exposed", "other", "optimizer")
COLUMNS = (
    *("step", "optimizer", *(f"{part}_ms" for part in PARTS)),
    *("last_gradient_ns", "samples", "recorded", "evals"),
)
# the last line of the file of a rank that ended its recording
END = "# end"
# "end": the rank waits for the others' end of the recording
Phase = Literal[
    "end",
    "data",
    "evaluation",
    "forward",
    "backward",
    "communication",
    "other",
    "optimizer",
]
# clocks count from the boot of their host, so they can be compared within one boot
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def path_of_times(folder: Path, rank: int) -> Path:
    """Return the path of the times of ``rank``: a CSV file with :data:`COLUMNS`."""
    return folder / f"times-{rank}.csv"


def host() -> str:
    """Return an ID; clocks of processes with equal IDs can be compared."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else socket.gethostname()


@dataclass
class Timed:
    """Times of a step: ``spans`` (phase, begin, end), and ``last_gradient_ns`` (None on
    a GPU); numbers of ``samples``, and of evaluation passes (``evals``).
    """

    spans: list[tuple[str, Any, Any]] = field(default_factory=list)
    last_gradient_ns: int | None = None
    samples: int = 0
    evals: int = 0


class RecordingClock:
    """Time the phases of one rank's steps, and append a row per step to its file.

    The recorder calls it as a training pass begins and ends, and as an optimizer does;
    :meth:`restart` excludes the recorder's own work. ``phase``: the current phase,
    begun at ``stamped_s`` (``time.monotonic``) after ``steps`` steps; ``thread`` runs
    the passes. On GPUs stamps are CUDA events, read once they have happened.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = path_of_times(folder, rank)
        self._file: TextIO | None = None
        self._now: Callable[[], Any] = time.perf_counter_ns
        self._on_gpu = self._in_backward = False
        self._unread: deque[tuple[list[Any], Timed]] = deque()
        self._timed, self._at = Timed(), self._now()
        self.phase: Phase = "data"
        self.steps, self.stamped_s, self.thread = 0, time.monotonic(), 0

    def use_events(self, device: torch.device) -> None:
        """Switch to CUDA events, for a model on a GPU; call it in phase "data"."""
        self.mark("data", "data")
        # of that GPU, which need not be the current one
        self._now, self._on_gpu = partial(_event, device), True
        self.restart()

    def restart(self) -> None:
        """Exclude the time since the last stamp: it belongs to no phase."""
        self._at = self._now()

    def mark(self, part: str, then: "Phase") -> None:
        """Add the time since the last stamp to ``part``, and begin phase ``then``."""
        now = self._now()
        self._timed.spans.append((part, self._at, now))
        self._at, self.phase, self.stamped_s = now, then, time.monotonic()

    def evaluates(self) -> None:
        """Count a forward pass outside training, and begin phase "evaluation"."""
        self._timed.evals += 1
        self.phase, self.stamped_s = "evaluation", time.monotonic()

    def pass_begins(self, args: Any, options: Any) -> None:
        """Begin phase "forward", and count samples: rows of the first tensor given."""
        self._in_backward, self.thread = False, get_ident()
        self.mark("data", "forward")
        first = next((t for t in tensors_of([args, options]) if t.dim()), None)
        self._timed.samples += 0 if first is None else first.size(0)

    def pass_ended(self, outputs: Any, then: Callable[[], None] | None) -> None:
        """End a forward pass. ``then`` is called when its backward pass begins."""
        self.mark("forward", "forward")
        self._at_backward = then
        for tensor in tensors_of(outputs):
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(self._backward_begins)

    # else a compiled loss would have it compiled, too
    @uncompiled
    def _backward_begins(self, gradient: Tensor) -> None:
        if not self._in_backward:
            self._in_backward = True
            self.mark("forward", "backward")
            if self._at_backward is not None:
                self._at_backward()
            # before DDP's, which queues its callback with the last gradient
            at_the_end_of_backward(self._last_gradient)

    def _last_gradient(self) -> None:
        self.mark("backward", "communication")
        if not self._on_gpu:
            self._timed.last_gradient_ns = time.perf_counter_ns()
        at_the_end_of_backward(self._backward_ended)

    def _backward_ended(self) -> None:
        self._in_backward = False
        self.mark("exposed", "other")

    def step_begins(self, by_closure: bool) -> None:
        """End phase "other", and begin "optimizer"; with a closure, stay in "data"."""
        then: Phase = "data" if by_closure else "optimizer"
        self.mark("data" if by_closure and self.phase == "data" else "other", then)

    def step_ended(self, optimizer: int, step: int, recorded: bool) -> None:
        """End a step, and write its row (on a GPU once its stamps are known). Times of
        ``recorded`` steps include the recorder's hooks within the passes.
        """
        self.mark("optimizer", "data")
        self.steps += 1
        self._unread.append(([step, optimizer, recorded], self._timed))
        self._timed = Timed()
        try:
            self._write()
        except RuntimeError as error:
            # no time between events on two GPUs, for example
            self._stop(str(error).partition("\n")[0])

    def close(self) -> None:
        """Write the remaining rows and the end, and close the file."""
        # after an error on the GPU no event can be waited for, or read
        with suppress(RuntimeError):
            if self._on_gpu and self._unread:
                self._unread[-1][1].spans[-1][2].synchronize()
            self._write()
        if self._file is not None:
            with suppress(OSError):
                self._file.write(f"{END}\n")
                self._file.close()
            self._file = None

    def _write(self) -> None:
        while self._unread:
            (step, optimizer, recorded), timed = self._unread[0]
            if self._on_gpu and not timed.spans[-1][2].query():
                return
            self._unread.popleft()
            times = dict.fromkeys(PARTS, 0.0)
            for part, begin, end in timed.spans:
                times[part] += _ms(begin, end)
            cells = [step, optimizer, *(f"{times[part]:.4f}" for part in PARTS)]
            cells += ["" if (at := timed.last_gradient_ns) is None else at]
            self._append([*cells, timed.samples, int(recorded), timed.evals])

    def _append(self, cells: list[Any]) -> None:
        try:
            if self._file is None:
                # line buffering keeps the rows of a run that is killed
                self._file = open(self.path, "x", buffering=1)  # noqa: SIM115
                self._file.write(f"# host {host()}\n{','.join(COLUMNS)}\n")
            self._file.write(",".join(map(str, cells)) + "\n")
        except OSError as error:
            self._stop(error)

    def _stop(self, error: object) -> None:
        print_note(f"minitrain: steps are timed no more: {error}")
        # takes no further rows
        self._unread = deque(maxlen=0)


def _event(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _ms(begin: Any, end: Any) -> float:
    if isinstance(begin, int):
        return (end - begin) / 1e6
    return float(begin.elapsed_time(end))
