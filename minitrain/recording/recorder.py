"""Recorder of a training loop, added to it in two lines (``minitrain.record``).

It records the first three steps of each optimizer and then every so many. At other
steps its hooks only count passes and steps, and time the phases. The hooks change no
value: results are bit-identical to a run without a recorder (not in a perturbed run).
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from minitrain.core.errors import EvidenceError, UserError
from minitrain.core.printable import print_note
from minitrain.recording import hooks
from minitrain.recording.alarm import Alarm, position_of
from minitrain.recording.clock import RecordingClock, path_of_times
from minitrain.recording.format import (
    Row,
    Writer,
    attempt_of,
    folder_of_attempt,
    line_of,
    refuse_second,
)
from minitrain.recording.optimizers import Optimizers, Stepped, unwrapped
from minitrain.recording.passes import Passes
from minitrain.recording.rank_exchange import RankExchange
from minitrain.recording.rows import StepRows, header_of, rank_and_size
from minitrain.recording.stalls import StallWatch
from minitrain.recording.twin import is_twin, perturb

FAILS = "the first pass is in no_sync() and the graph is static"
COMPILED = "not recorded: torch.compile runs several as one"
STATIC_GRAPH = "torch needs a first pass that synchronizes; else it fails in backward"
# limit in seconds to wait for the last rows of other ranks after an error
AFTER_AN_ERROR_S = 1.0


class Recorder:
    """Record what the training of a model computes, in one file per rank.

    Use it as a context manager, or call ``start`` and ``stop``; the loop needs no other
    change. Model and optimizers may be wrapped before or after. Steps 0, 1 and 2 of
    each optimizer and each ``every``-th are recorded. At recorded steps the ranks are
    compared, and each problem is reported in one line on stderr.

    MINITRAIN_TWIN=1 in the environment makes this a perturbed run: all initial weights
    are changed by one unit in the last place, to measure the effect of rounding alone.

    Args:
        model: the model, or a wrapper of it.
        optimizer: an optimizer, or a list. None: all optimizers that hold parameters of
            the model, including those made later.
        folder: where to write; must not have a recording yet.
        every: number of steps from one recorded step to the next.
        on_alarm: "raise" ends the run on all ranks with EvidenceError; for that the
            ranks wait for each other at recorded steps. Notes, which may be intended,
            do not.
        timeout_s: seconds after which a missing rank, or a step that does not end, is
            reported. Also the longest that ranks wait for each other at a recorded
            step, with sharded parameters or ``on_alarm="raise"``.
        also: other modules that must be equal on all ranks, such as a moving average of
            the weights: ``{"ema": module}``.
        modules: also record hashes and sketches (short projections) of the inputs and
            outputs of each module in the model, so that ``verify`` names the first
            module that differs. Not available under torch.compile.

    Raises:
        UserError: an argument is invalid, or the folder has a recording.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | None,
        folder: str | Path,
        *,
        every: int = 10,
        on_alarm: Literal["print", "raise"] = "print",
        timeout_s: float = 30.0,
        also: Mapping[str, nn.Module] | None = None,
        modules: bool = False,
    ) -> None:
        also = also or {}
        _require(model, every, on_alarm, timeout_s, also)
        self._inner = hooks.innermost(model)
        self._rank = rank_and_size()[0]
        self._folder = folder_of_attempt(Path(folder), self._rank)
        self._every = every
        self._raises, self._timeout_s = on_alarm == "raise", timeout_s
        self._called = hooks.called_modules(self._inner)
        self._passes = Passes(self._inner, modules)
        self._rows = StepRows(self._inner, also, self._passes)
        self._optimizers = Optimizers(
            unwrapped(optimizer), self._inner, self._step_begins, self._step_ended
        )
        self._handles: list[RemovableHandle] = []
        # an error that the caller already handles does not end the run
        self._error_at_start: BaseException | None = None
        self._writer: Writer | None = None
        self._exchange: RankExchange | None = None
        self._stalls: StallWatch | None = None
        self._state: Literal["new", "recording", "ended"] = "new"
        self._due = True
        self.left: SystemExit | None = None  # by sys.exit, since the last step

    def start(self) -> None:
        """Add the hooks. UserError if called twice, or if the folder has a recording.
        The header is written later, when the model is wrapped: see :meth:`connected`.
        """
        if self._state != "new":
            raise UserError(
                f"{self._folder}: the recorder was started before; "
                "minitrain.record(...) makes another, for another folder"
            )
        self._rank = rank_and_size()[0]
        refuse_second(self._folder, self._rank)
        self._error_at_start = sys.exception()
        self._clock = RecordingClock(self._folder, self._rank)
        begins, ended = hooks.Tap(self._pass_begins), hooks.Tap(self._pass_ended)
        for one in self._called:
            self._handles += [
                one.register_forward_pre_hook(begins, prepend=True, with_kwargs=True),
                one.register_forward_hook(ended),
            ]
        self._optimizers.start()
        # hooks do nothing before: a scripted model, for example, takes only some
        self._state = "recording"

    def stop(self) -> None:
        """Write the last row, and wait up to ``timeout_s`` for the other ranks' rows.
        While an exception propagates (in ``finally``), write no last row. A second call
        does nothing. Raises EvidenceError for an alarm, if ``on_alarm`` is "raise".
        """
        error = sys.exception()
        self.close(failed=error is not None and error is not self._error_at_start)

    def close(self, failed: bool) -> None:
        """Stop recording. A run that ``failed`` gets no last row: it is unfinished."""
        if self._state != "recording":
            return
        self._listen_no_more()
        self._clock.phase = "end"
        try:
            if not failed:
                self._write_end()
            elif self._exchange is not None:
                # other ranks' rows may show why, but the caller's error comes first
                with suppress(EvidenceError):
                    self._exchange.look(min(self._timeout_s, AFTER_AN_ERROR_S))
        finally:
            self._close_files()

    def _write_end(self) -> None:
        exchange = self.connected()
        steps = {str(one.number): one.steps for one in self._optimizers.seen}
        sharded = hooks.is_sharded(self._inner)
        together = not sharded or (
            # the script may have destroyed the group, which gathering needs
            torch.distributed.is_initialized()
            and exchange.meet_at_the_end(sum(steps.values()))
        )
        self._tell(self._rows.end(steps, together), exchange)
        exchange.look(self._timeout_s)
        if self._rank == 0 and self._optimizers.steps:
            which = f"the first three and each {self._every}-th"
            which = "all of them" if self._every == 1 else which
            print_note(
                f"minitrain: recorded {max(steps.values())} steps, {which} in full: "
                f"minitrain show {self._folder}; minitrain verify {self._folder} OTHER"
            )

    def loss(self, loss: Tensor | float) -> None:
        """Record the loss of a step; of several calls, one per micro-batch, the mean.
        Call it before ``optimizer.step()``: a later loss is not recorded.
        """
        if self._state == "recording" and self._due:
            self._passes.loss(loss)

    def summary(self) -> dict[str, Any]:
        """Return :func:`minitrain.show` of the recording so far, on this host."""
        # importing it takes time, which most runs do not need
        from minitrain.recording.shown import show

        return show(self._folder)

    def __enter__(self) -> "Recorder":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _pass_begins(self, module: nn.Module, args: Any, options: Any) -> None:
        passes = self._passes
        if not self._is_ours(module):
            return
        if not hooks.is_training_pass(module):
            if not hooks.is_recomputation():
                self._clock.evaluates()
            return
        if passes.forwards == 0 and (one := next(self._inner.parameters())).is_cuda:
            self._clock.use_events(one.device)
        self._clock.pass_begins(args, options)
        passes.forwards += 1
        if not self._due:
            return
        wrapper = passes.wrappers.around(module)
        exchange = self.connected()
        if passes.forwards == 1 and hooks.fails_without_sync(wrapper):
            exchange.tell([Alarm("static graph", 0, FAILS, STATIC_GRAPH)])
        if passes.calls is not None and hooks.is_compiled(module):
            passes.calls = None
            exchange.tell([Alarm("modules", 0, COMPILED, severe=False)])
        passes.listen(self._optimizers)
        passes.begins(wrapper, module, args, options)
        self._clock.restart()

    def _pass_ended(self, module: nn.Module, args: Any, outputs: Any) -> None:
        if self._is_ours(module) and hooks.is_training_pass(module):
            if self._due:
                self._passes.ended()
            then = self._passes.look_for_draws if self._due else None
            self._clock.pass_ended(outputs, then)

    def _is_ours(self, module: nn.Module) -> bool:
        # a compiled model goes on calling hooks that were removed, and a copy that
        # shares them is another model
        is_one = any(module is one for one in self._called)
        is_heard = is_one and self._state == "recording"
        return is_heard and not hooks.is_within_itself(module)

    def _step_begins(self, stepped: Stepped) -> None:
        self._clock.step_begins(stepped.by_closure)
        self.left = None
        exchange = self.connected()
        if stepped.is_due(self._every):
            together = self._meet(stepped, exchange, has_ended=False)
            self._rows.step_begins(stepped, self._optimizers, together)
        self._clock.restart()

    def _step_ended(self, stepped: Stepped) -> None:
        is_recorded = stepped.number in self._rows.begun
        self._clock.step_ended(stepped.number, stepped.steps - 1, is_recorded)
        exchange = self.connected()
        together = not is_recorded or self._meet(stepped, exchange, has_ended=True)
        row = self._rows.step_ended(stepped, together)
        if row is not None:
            self._tell(row, exchange)
        self._due = self._optimizers.are_due(self._every)
        if not self._due:
            self._passes.forget()
        waits = row is not None and self._raises
        exchange.look(self._timeout_s if waits else 0.0)
        self._clock.restart()

    def _meet(
        self, stepped: Stepped, exchange: RankExchange, *, has_ended: bool
    ) -> bool:
        # return true if the tensors of a step can be hashed: sharded ones only when
        # all ranks have reached it
        if not hooks.is_sharded(self._inner):
            return True
        step = stepped.steps - has_ended
        at = position_of({"kind": "step", "optimizer": stepped.number, "step": step})
        at = f"the end of {at}" if has_ended else at
        return exchange.meet(f"{at}, with {stepped.parts()}", step)

    def _tell(self, row: Row, exchange: RankExchange) -> None:
        line = line_of(row)
        # a step without its tensors must not pass for a recorded one
        if exchange.is_whole and self._writer is not None:
            self._writer.append(line)
        # the others do not need modules, which no rule reads
        modules = row.pop("modules", None)
        exchange.send(row, line_of(row) if modules else line)

    def connected(self) -> RankExchange:
        """Return the exchange with other ranks. The first call, at a pass, a step or
        the end, waits for them and writes the header; its error ends the recording.
        """
        if self._exchange is not None:
            return self._exchange
        # the process group may have been made since the start
        self._rank = rank_and_size()[0]
        self._clock.path = path_of_times(self._folder, self._rank)
        try:
            hooks.require_whole(self._inner)
            # not at the end of a run without a step, which is too late
            if is_twin() and self._state == "recording":
                perturb(self._inner.parameters())
            self._exchange = exchange = RankExchange(
                self._timeout_s, self._raises, attempt_of(self._folder)
            )
            # hashing sharded parameters needs all ranks
            if hooks.is_sharded(self._inner) and not exchange.has_all:
                raise UserError(
                    "record: each rank holds a part of the parameters, and not all "
                    f"began to record within {self._timeout_s:g} s: every rank has to"
                )
            self._writer = Writer(self._folder, self._rank)
            exchange.write = write = self._writer.append
            self._stalls = StallWatch(
                self._folder, self._rank, self._clock, self._timeout_s, write
            )
            self._tell(header_of(self._inner, self._every), exchange)
            exchange.tell(exchange.missing)
            # the wait belongs to no step
            self._clock.restart()
        except BaseException:
            self._listen_no_more()
            self._close_files()
            raise
        return exchange

    def is_awaited(self) -> bool:
        """Return true if all ranks record, and wait for each other's shards."""
        has_all = self._exchange is not None and self._exchange.has_all
        return has_all and hooks.is_sharded(self._inner)

    def _listen_no_more(self) -> None:
        self._state = "ended"
        self._optimizers.stop()
        self._passes.forget()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _close_files(self) -> None:
        if self._stalls is not None:
            self._stalls.close()
        if self._exchange is not None:
            self._exchange.close()
        if self._writer is not None:
            self._writer.close()
            self._clock.close()


def _require(model: Any, every: Any, on_alarm: Any, timeout_s: Any, also: Any) -> None:
    if not isinstance(also, Mapping):
        kind = type(also).__name__
        raise UserError(f"record: also is a {kind}: must be a dict of modules by name")
    for name, module in {"model": model, **also}.items():
        if not isinstance(module, nn.Module):
            kind = type(module).__name__
            raise UserError(f"record: {name} is a {kind}: must be a torch.nn.Module")
        if module is not model and any(map(hooks.is_in_parts, module.parameters())):
            raise UserError(f"record: {name} is sharded: each rank must hold all of it")
    kind = type(model).__name__
    parameters = [*model.parameters()]
    is_lazy = any(map(nn.parameter.is_lazy, [*parameters, *model.buffers()]))
    is_count = isinstance(every, int) and not isinstance(every, bool) and every > 0
    is_time = isinstance(timeout_s, int | float) and timeout_s > 0
    is_known = on_alarm in ("print", "raise")
    for is_wrong, what in (
        (not parameters, f"model {kind} has no parameters: nothing to record"),
        (is_lazy, f"model {kind} is lazy: call it once before"),
        (not is_count, f"every = {every!r}: must be an integer, at least 1"),
        (not is_known, f"on_alarm = {on_alarm!r}: must be print or raise"),
        (not is_time, f"timeout_s = {timeout_s!r}: must be above 0"),
    ):
        if is_wrong:
            raise UserError(f"record: {what}")


# the public name
record = Recorder
