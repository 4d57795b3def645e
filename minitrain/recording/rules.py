"""Rules between the ranks of a data-parallel run, checked on their rows.

A rule is a pure function that yields an alarm, or a note for what may be intended. A
row is a line of a recording; ``rows`` has the row of each rank for one step, in rank
order, and ``before`` the rows of the previous recorded step (None at the first). A
fault is reported once, at its root: not parameters that differ because gradients do.

To add a rule, write a generator ``(rows, before) -> Iterable[Alarm]`` in
rules_of_steps.py or rules_of_gradients.py, and add it to ``RULES``; for an alarm,
perhaps add a page to ``alarm.PAGES``. Each ``rule`` text is reported once per
severity, so only rules for the same fault share one, like those of "inputs". New keys
of rows go into rows.py and fields.py (``FIELDS``, or ``MAY_HAVE`` if optional).
"""

from collections.abc import Callable, Iterable, Sequence
from math import dist, hypot, inf, isfinite

from minitrain.recording import rules_of_gradients as of_gradients
from minitrain.recording import rules_of_steps as of_steps
from minitrain.recording.alarm import (
    Alarm,
    Row,
    Rows,
    against,
    alarm,
    all_names,
    first_unlike,
    hashes,
    in_ranks,
    note,
    unlike,
)
from minitrain.recording.format import Recording

# a run of at most so many passes need not train: it tries or profiles a model
MOST_OF_A_TRIAL = 3
NOT_BROADCAST = "rank 0's weights are not broadcast, or were changed after that"
# distance, as a share of the model, from which rounding is an alarm
FAR = 1e-4
# rules whose faults make parameters differ
LEADS = {"gradients", "learning rates", "optimizer settings"}


def alarms_of(rows: Rows, before: Rows | None) -> list[Alarm]:
    """Return the findings of all rules at one step; ``before``: the rows of the
    previous recorded step, None at the first. Ranks at different steps are a finding.
    """
    places = [position_of(row) for row in rows]
    if ranks := unlike(places):
        step = max(int(row.get("step", 0)) for row in rows)
        cause = "different numbers of batches, or of steps, on ranks"
        return [Alarm("steps", step, f"at {against(places, ranks)}", cause, ranks)]
    found = [one for rule in RULES for one in rule(rows, before)]
    if not any(one.rule in LEADS and one.ranks and one.severe for one in found):
        noted = any(one.rule == "gradients" for one in found)
        found += parameters(rows, before, by_rounding=noted)
    return found


def position_of(row: Row) -> str:
    """Return where in the run a row was made, as text: "step 3", or "the end"."""
    if row["kind"] != "step":
        return {"recording": "the start", "end": "the end"}.get(row["kind"], "?")
    optimizer = row.get("optimizer", 0)
    return f"step {row['step']}" + (f" of optimizer {optimizer}" if optimizer else "")


def alarms_at_start(headers: Rows) -> list[Alarm]:
    """Return an alarm if models, or their initial weights, differ between ranks."""
    models = [{n: str(v) for n, v in one["parameters"].items()} for one in headers]
    name, ranks = first_unlike(models)
    if ranks:
        what = against([one.get(name, "not there") for one in models], ranks)
        cause = "ranks build different models: other settings, or other code"
        return [Alarm("model", 0, what, cause, ranks, name)]
    name, ranks = first_unlike([one["start"] for one in headers])
    what = "differ from the other ranks before the first step"
    return [Alarm("parameters", 0, what, NOT_BROADCAST, ranks, name)] if ranks else []


def alarms_at_end(
    ends: Rows, before: Sequence[Rows] = (), start: Rows = ()
) -> Iterable[Alarm]:
    """Yield findings on ``ends``, the last row of each rank. ``before``: the rows of
    the last recorded step of each optimizer; ``start``: the headers.
    """
    counts = [sum(end["steps"].values()) for end in ends]
    ends = [{"step": max(counts)} | {**end} for end in ends]
    if ranks := unlike([tuple(sorted(end["steps"].items())) for end in ends]):
        what = against([f"{count} steps" for count in counts], ranks)
        cause = "different numbers of batches on ranks"
        yield alarm(ends, "steps", what, cause, ranks=ranks)
        return
    yield from of_steps.evaluation_mode(ends)
    yield from also(ends)
    yield from _unseen(ends, start)
    yield from parted_at_the_end(ends, before)


def _unseen(ends: Rows, start: Rows) -> Iterable[Alarm]:
    # steps without passes, or passes without steps: the recorder missed the others
    steps, passes = ends[0]["step"], max(end["forwards"] for end in ends)
    if steps and not passes:
        what = f"{steps} steps and no forward pass of the training"
        cause = "the model is in eval(), or not called itself: data is not recorded"
        yield note(ends, "steps", what, cause)
    if passes and not steps:
        pairs = zip(ends, start, strict=False)
        still = all(hashes(end, "parameters") == first["start"] for end, first in pairs)
        severe = bool(start) and still and passes > MOST_OF_A_TRIAL
        what = f"{passes} passes and no step"
        what += ", and no parameter has changed" * severe
        cause = "no optimizer holds parameters of the model: made for a copy of it?"
        yield alarm(ends, "steps", what, cause, severe=severe)


def parameters(
    rows: Rows, before: Rows | None, by_rounding: bool = False
) -> Iterable[Alarm]:
    """Yield an alarm if parameters differ between ranks after the step; if they did
    ``before``, or gradients differ ``by_rounding``, only once beyond :data:`FAR`.
    """
    name, ranks = _unlike(rows)
    if not ranks:
        return
    where = {"ranks": ranks, "tensor": name}
    was, far = before and _unlike(before)[1], apart(rows)
    if far > FAR and (by_rounding or was) and not apart(before or rows[:1]) > FAR:
        what = f"about {far:.1g} of the model apart"
        cause = "gradients apart by rounding, for long; or another fault as well"
        yield alarm(rows, "parameters", what, cause, **where)
    # no second report of them, or of the gradients
    elif not (was or by_rounding):
        what, cause = _since(rows, before, name)
        yield alarm(rows, "parameters", what, cause, **where)


def _unlike(rows: Rows) -> tuple[str, list[int]]:
    return first_unlike([hashes(row, "parameters") for row in rows])


def apart(rows: Rows) -> float:
    """Return the largest distance of a rank's parameters from rank 0's, as a share of
    the norm of rank 0's, estimated from sketches; infinity if one is not finite.
    """
    first = rows[0]["parameters"]
    found = 0.0
    for row in rows[1:]:
        names = [name for name in first if name in row["parameters"]]
        pairs = [(first[name], row["parameters"][name]) for name in names]
        unlike_ones = [(a, b) for a, b in pairs if a["hash"] != b["hash"]]
        gap = hypot(*(dist(a["sketch"], b["sketch"]) for a, b in unlike_ones))
        size = hypot(*(a["norm"] for a, _ in pairs))
        if gap:
            found = max(found, gap / size if isfinite(gap) and size else inf)
    return found


def _since(rows: Rows, before: Rows | None, name: str) -> tuple[str, str]:
    # return since when parameters differ, and why, if gradients are not the cause
    step, since = rows[0]["step"], "differ from the other ranks since"
    if first_unlike([row["before"] for row in rows])[1]:
        if before is None:
            return "differ from the other ranks before the step", NOT_BROADCAST
        last = before[0]["step"]
        if last + 1 == step:
            cause = "changed between two steps, and not by this optimizer"
            return f"{since} step {last} was done", cause
        cause = "steps between that were not recorded: every=1 finds the step and its "
        return f"{since} a step after {last}", f"{cause}cause"
    if unlike([hashes(row, "gradients").get(name) for row in rows]):
        cause = "the optimizer averages, or shares, other tensors and not this one"
        return f"{since} this step", cause
    # ranks may divide the state
    tables = [row["moments"] for row in before or ()]
    of_all = [n for n in all_names(tables) if all(n in table for table in tables)]
    _, ranks = first_unlike([{n: table[n] for n in of_all} for table in tables])
    who = f" of {in_ranks(ranks)}" if ranks else ""
    cause = f"the optimizer, or its state{who}, is another one: restored on some ranks "
    return f"{since} this step, whose gradients are the same", f"{cause}only?"


def parted_at_the_end(ends: Rows, before: Sequence[Rows]) -> Iterable[Alarm]:
    """Yield an alarm if the final parameters of ranks differ, unless this was reported
    for ``before``, the rows of the last recorded step of each optimizer.
    """
    if not all("parameters" in end for end in ends):
        return
    name, ranks = _unlike(ends)
    far = apart(ends)
    parted = any(_unlike(rows)[1] for rows in before)
    # ranks that had parted were reported, or their gradients differ by rounding
    told = parted and (far <= FAR or any(apart(rows) > FAR for rows in before))
    if ranks and not told:
        what = "differ from the other ranks at the end, about "
        what += f"{far:.1g} of the model apart"
        cause = "a step after the last recorded one: every=1 finds it and its cause"
        yield alarm(ends, "parameters", what, cause, ranks=ranks, tensor=name)


def buffers(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Check that buffers are equal on all ranks as the first forward pass of the step
    begins. If not, yields an alarm if a wrapper such as DDP broadcasts them, or a note.
    """
    name, ranks = first_unlike([hashes(row, "buffers") for row in rows])
    if ranks:
        what = "differ from the other ranks as the forward pass begins"
        cause = "no wrapper broadcasts them: each rank keeps its own"
        severe = all(row["broadcast_buffers"] for row in rows)
        if severe:
            cause = "rank 0's buffers are not broadcast before the forward pass"
        where = {"ranks": ranks, "tensor": name, "severe": severe}
        yield alarm(rows, "buffers", what, cause, **where)


def also(rows: Rows, before: Rows | None = None) -> Iterable[Alarm]:
    """Yield an alarm if modules recorded as ``also`` differ between ranks."""
    have = [rank for rank, row in enumerate(rows) if "also" in row]
    name, found = first_unlike([rows[rank]["also"] for rank in have])
    if found:
        what = "differ from the other ranks, outside the model"
        cause = "made, loaded or updated in another way on ranks, or on one alone"
        ranks = [have[number] for number in found]
        yield alarm(rows, "also", what, cause, ranks=ranks, tensor=name)


# These run at each step, and a comment gives the text of a rule if it is another than
# the name. Not in the table: `parameters`, which runs only if none of LEADS explains a
# difference; `padding` and `batch_again`, as they need earlier rows (see Judge); rules
# of the start and the end. Modules stalls, rank_exchange and recorder report "stall",
# "ranks", "loss", "modules" and "static graph" themselves.
RULES: tuple[Callable[[Rows, Rows | None], Iterable[Alarm]], ...] = (
    of_steps.evaluation_mode,
    of_steps.unread,  # "inputs"
    of_steps.same_samples,  # "inputs", "number of samples"
    of_steps.forward_passes,  # "steps"
    of_steps.learning_rates,
    of_steps.settings,  # "optimizer settings"
    buffers,
    of_steps.wrappers,
    of_gradients.gradients,  # also "mean", "averaged in step" and others
    of_steps.carried,  # "zero_grad"
    of_steps.touched,  # "clipping"
    of_gradients.no_gradient,
    of_steps.not_finite,
    of_steps.unmoved,
    of_steps.not_held,
    of_steps.synchronized_often,  # "synchronization"
    of_steps.random_numbers,
    also,
)


class Judge:
    """Apply the rules to a run: :meth:`see` gets headers, steps and ends in order.

    Each fault is reported once. A note does not suppress a later alarm of its rule.
    ``is_apart``: ranks have sent rows of different steps. They never catch up, so
    nothing more is compared.
    """

    def __init__(self) -> None:
        self.is_apart = False
        # the rows of the recorded step before, by optimizer
        self._before: dict[int, Rows] = {}
        # tensors reported so far, by rule and severity
        self._told: dict[tuple[str, bool], set[str]] = {}
        # the first step that read a batch, by the hash of the batch
        self._read: dict[int, int] = {}
        self._start: Rows = ()
        # rows of the first step of any optimizer
        self._first: Rows = ()
        self._in_first_epoch = True

    def see(self, rows: Rows) -> list[Alarm]:
        """Return the new findings on ``rows``, the next row of each rank."""
        return self.new([] if self.is_apart else self._all(rows))

    def _all(self, rows: Rows) -> Iterable[Alarm]:
        kinds = {row["kind"] for row in rows}
        if kinds == {"recording"}:
            self._start = rows
            return alarms_at_start(rows)
        if kinds == {"end"}:
            return alarms_at_end(rows, [*self._before.values()], self._start)
        places = {(row["kind"], row.get("optimizer"), row.get("step")) for row in rows}
        self.is_apart = len(places) > 1
        if self.is_apart:
            return alarms_of(rows, None)
        before = self._before.get(rows[0]["optimizer"])
        self._before[rows[0]["optimizer"]] = rows
        self._first = self._first or rows
        found = [*alarms_of(rows, before), *self._read_again(rows)]
        return [*found, *self._padding(rows)]

    def _padding(self, rows: Rows) -> Iterable[Alarm]:
        # in the first epoch: a later one may end with these samples by chance
        if self._in_first_epoch:
            yield from of_steps.padding(rows, self._first)
            first, now = (
                {sample for row in some for sample in of_steps.samples(row)}
                for some in (self._first, rows)
            )
            self._in_first_epoch = rows is self._first or first.isdisjoint(now)

    def _read_again(self, rows: Rows) -> Iterable[Alarm]:
        # look at all earlier steps: a batch may return an epoch later
        steps = {}
        for rank, row in enumerate(rows):
            if of_steps.samples(row):
                key = hash(
                    (
                        rank,
                        row["optimizer"],
                        *of_steps.samples(row),
                        *of_steps.beside(row),
                    )
                )
                steps[rank] = self._read.setdefault(key, row["step"])
        ranks = [rank for rank, step in steps.items() if step < rows[rank]["step"]]
        return of_steps.batch_again(rows, ranks, steps[ranks[-1]]) if ranks else []

    def new(self, found: Iterable[Alarm]) -> list[Alarm]:
        """Return those findings in ``found`` that were not reported before."""
        new = []
        for one in found:
            key = one.rule, one.severe
            told = self._told.get(key)
            # a note on a few tensors must not suppress one on many
            if told is None or len({*one.tensors} - told) > len(told):
                self._told[key] = {*(told or ()), *one.tensors}
                new.append(one)
        return new


def alarms_in(recording: Recording) -> dict[str, bool]:
    """Map each line of :func:`findings_in` to true for an alarm, false for a note."""
    return {
        row["line"].removeprefix("minitrain: "): row["kind"] == "alarm"
        for row in findings_in(recording)
    }


def findings_in(recording: Recording) -> list[Row]:
    """Return all findings on a recording as rows, each once: from applying the rules
    now, if no rank is missing, and those recorded in the run, such as a stall.
    """
    ranks = [recording.ranks[rank] for rank in sorted(recording.ranks)]
    found = []
    if not recording.missing:
        judge = Judge()
        found += judge.see([one.header for one in ranks])
        for key in ranks[0].steps:
            rows = [one.steps[key] for one in ranks if key in one.steps]
            if len(rows) == len(ranks):
                found += judge.see(rows)
        if all(one.end for one in ranks):
            found += judge.see([one.end for one in ranks if one.end])
    again = {(one.rule, one.severe) for one in found}
    lines: dict[str, Row] = {one.line: one.row() for one in found}
    for row in (row for one in ranks for row in one.alarms):
        if (row["rule"], row["kind"] == "alarm") not in again:
            lines[row["line"]] = row
    return [*lines.values()]
