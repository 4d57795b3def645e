"""The times of a recording, for the step account and the detection of stragglers."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np

from minitrain.analysis.account import (
    ALL_RANKS,
    BACKWARD,
    TO_LAST,
    Columns,
    Floats,
    account,
    by_step_and_rank,
    longest_s,
    means,
    numbers,
    plain_steps,
)
from minitrain.analysis.stragglers import Stragglers, find_stragglers
from minitrain.core.errors import UserError
from minitrain.core.files import require_regular
from minitrain.recording.clock import COLUMNS, END, PARTS, path_of_times
from minitrain.recording.format import last_attempt, ranks_in
from minitrain.recording.optimizers import FIRST_STEPS

# what a rank does before it waits for another
OWN_PARTS = ("data_ms", "forward_ms", "backward_ms", "other_ms", "optimizer_ms")
# the first recorded steps, and the one after them, are warm-up
WARMUP_STEPS = FIRST_STEPS + 1


@dataclass(frozen=True)
class Times:
    """The timed steps of all ranks. ``rows``: the columns of
    :func:`minitrain.analysis.account.summarized`, with samples as ``tokens``; neither a
    recorded step nor the one after it counts. ``hosts``: IDs of the ranks' clocks.
    ``open``: ranks that did not close their file (killed, or still running).
    ``waits_within``: see find_stragglers.
    """

    rows: Columns
    hosts: frozenset[str]
    open: frozenset[int] = frozenset()
    waits_within: bool = False

    @property
    def one_clock(self) -> bool:
        """True if time stamps of all ranks can be compared: one host, and no GPU."""
        lacks_moments = np.isnan(self.rows["last_bucket_at_ns"]).any()
        return len(self.hosts) == 1 and not lacks_moments

    @cached_property
    def steps(self) -> Columns:
        """The rows of steps that count for means and samples, of all ranks."""
        return plain_steps(self.rows, WARMUP_STEPS)

    @cached_property
    def account(self) -> list[dict[str, Any]]:
        """The step account: mean milliseconds of each component, by rank."""
        return account(self.rows, WARMUP_STEPS, one_clock=self.one_clock)

    @property
    def parts(self) -> dict[str, dict[str, float | None]]:
        """Mean milliseconds of each component of a step, by rank and for ``all``."""
        names = dict.fromkeys(row["rank"] for row in self.account)
        return {name.removeprefix("rank "): means(self.account, name) for name in names}

    @cached_property
    def stragglers(self) -> Stragglers:
        """The result of the search for slow ranks."""
        return find_stragglers(self.rows, WARMUP_STEPS, waits_within=self.waits_within)

    @property
    def num_steps(self) -> int:
        """Number of steps of the rank that made the most; 0 without any."""
        _, counts = np.unique(self.rows["rank"], return_counts=True)
        return int(counts.max(initial=0))

    @property
    def num_timed(self) -> int:
        """Number of steps that count for the means: not the first ones, recorded ones,
        and those after an evaluation or a recorded one.
        """
        return len(np.unique(self.steps["step"]))

    @property
    def late_part(self) -> str | None:
        """The component in which the first slow rank is late, by the median over steps
        as in the search for slow ranks; None if none is slow.
        """
        if not self.stragglers.slow:
            return None
        mine = np.unique(self.steps["rank"]) == self.stragglers.slow[0].rank
        late = {}
        for part in OWN_PARTS:
            of = np.nan_to_num(by_step_and_rank(self.steps, self._own(part)))
            late[part] = np.median(of[:, mine][:, 0] - np.median(of[:, ~mine], axis=1))
        return max(late, key=late.__getitem__)

    def _own(self, part: str) -> Floats:
        if part == BACKWARD and not np.isnan(numbers(self.steps, TO_LAST)).any():
            return numbers(self.steps, TO_LAST)
        return numbers(self.steps, part)

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second in total, by the slowest rank's time; None without any."""
        seconds, samples = longest_s(self.steps), float(self.steps["tokens"].sum())
        return samples / seconds if samples and seconds > 0 else None


@dataclass(frozen=True)
class TimesCompared:
    """The mean step of two recordings, ``a_ms`` and ``b_ms``. ``parts``: by how many
    milliseconds a component of B is longer, largest difference first; only components
    that differ by more than their noise. ``noise_ms`` is the noise of the whole step,
    from the spread of the steps. ``one_host``: A and B ran on the same hosts.
    """

    a_ms: float
    b_ms: float
    noise_ms: float
    parts: dict[str, float]
    one_host: bool

    @property
    def differ(self) -> bool:
        """True if the mean steps differ by more than noise."""
        return abs(self.b_ms - self.a_ms) > self.noise_ms


def compare_times(a: Times | None, b: Times | None) -> TimesCompared | None:
    """Return how much longer steps of ``b`` take than of ``a``; None without any."""
    if a is None or b is None or not a.account or not b.account:
        return None
    ours, theirs = _of_all(a), _of_all(b)
    longer, noise = dict[str, float](), dict[str, float]()
    for part in {**ours, **theirs}:
        mine, other = (one.get(part, (0.0, 0.0)) for one in (ours, theirs))
        longer[part], noise[part] = other[0] - mine[0], mine[1] + other[1]
    largest = sorted(longer, key=lambda part: -abs(longer[part]))
    return TimesCompared(
        a_ms=sum(ms for ms, _ in ours.values()),
        b_ms=sum(ms for ms, _ in theirs.values()),
        noise_ms=sum(ms**2 for ms in noise.values()) ** 0.5,
        parts={p: longer[p] for p in largest if abs(longer[p]) > noise[p]},
        one_host=a.hosts == b.hosts,
    )


def _of_all(times: Times) -> dict[str, tuple[float, float]]:
    # return the mean of each component, and half the width of its interval
    return {
        row["part"]: (row["mean_ms"], (row["high_ms"] - row["low_ms"]) / 2)
        for row in times.account
        if row["rank"] == ALL_RANKS
    }


def read_times(folder: Path, *, waits_within: bool = False) -> Times | None:
    """Return the times in ``folder``, or None. UserError for a damaged file."""
    folder = last_attempt(folder)
    files = {rank: path_of_times(folder, rank) for rank in ranks_in(folder)}
    found = {rank: file for rank, file in files.items() if file.exists()}
    if not found:
        return None
    ranks, hosts, is_open = [], set(), set()
    for rank, file in found.items():
        try:
            # ignore an incomplete last line
            lines = require_regular(file).read_text("utf-8").split("\n")[:-1]
            is_open |= set() if lines[-1:] == [END] else {rank}
            hosts.add(lines[0] if lines else "")
            ranks.append(_as_timings(_cells(lines), rank))
        except ValueError as error:
            raise UserError(f"{file}: damaged: {str(error)[:80]}") from None
    rows = {name: np.concatenate([of[name] for of in ranks]) for name in ranks[0]}
    paused = rows["step"][rows["after_interruption"]]
    # while one rank evaluates, the others wait
    rows["after_interruption"] = np.isin(rows["step"], paused)
    return Times(rows, frozenset(hosts), frozenset(is_open), waits_within)


def _cells(lines: Sequence[str]) -> dict[str, Floats]:
    # return the columns of a file, without its comments and its row of names
    rows = [line.split(",") for line in lines if not line.startswith("#")][1:]
    if any(len(row) != len(COLUMNS) for row in rows):
        raise ValueError(f"a row without {len(COLUMNS)} columns")
    cells = [[float(cell or nan) for cell in row] for row in rows]
    columns = np.array(cells, np.float64).reshape(len(rows), len(COLUMNS)).T
    # time stamps are unknown on a GPU
    for name, column in zip(COLUMNS, columns, strict=True):
        if name != "last_gradient_ns" and not np.isfinite(column).all():
            raise ValueError(f"{name} is missing, or not finite")
    return dict(zip(COLUMNS, columns, strict=True))


def _as_timings(table: dict[str, Floats], rank: int) -> Columns:
    # The analysis is the laboratory's, so its columns stand for those of a recording:
    # tokens are samples, the last bucket is the last gradient, an interruption is an
    # evaluation.
    # a step of the loop has one of each optimizer, in the order of the first step
    _, first, which = np.unique(table["optimizer"], True, True)
    begins = np.flatnonzero(np.diff(first[which], prepend=inf) <= 0)
    if (count := len(begins)) < len(table["step"]):
        last = np.fmax.reduceat(table["last_gradient_ns"], begins)
        table = {name: np.add.reduceat(of, begins) for name, of in table.items()}
        table["last_gradient_ns"] = last
    same = ("data_ms", "forward_ms", "other_ms", "optimizer_ms")
    return {name: table[name] for name in same} | {
        "step": np.arange(count),
        "rank": np.full(count, rank),
        "to_last_bucket_ms": table["backward_ms"],
        "comm_exposed_ms": table["exposed_ms"],
        "backward_ms": table["backward_ms"] + table["exposed_ms"],
        "last_bucket_at_ns": table["last_gradient_ns"],
        "tokens": table["samples"],
        "kind": np.full(count, "plain"),
        "recorded": table["recorded"] > 0,
        # a pause between steps, which is not counted in them
        "after_interruption": table["evals"] > 0,
        "step_ms": sum((table[f"{part}_ms"] for part in PARTS), np.zeros(count)),
    }
