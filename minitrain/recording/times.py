"""The times of a recording, for the step account and the verdict on stragglers."""

from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from statistics import median

import pandas as pd

from minitrain.analysis.account import ALL_RANKS, account, means, plain_steps
from minitrain.analysis.stragglers import Stragglers, find_stragglers
from minitrain.core.errors import UserError
from minitrain.recording.clock import COLUMNS, END, path_of_times
from minitrain.recording.format import ranks_in
from minitrain.recording.optimizers import FIRST_STEPS

# what a rank does before it waits for another
OWN_PARTS = ("data_ms", "forward_ms", "backward_ms", "other_ms", "optimizer_ms")
# one that follows the first recorded steps is no warm-up any more
WARMUP_STEPS = FIRST_STEPS + 1


@dataclass(frozen=True)
class Times:
    """The steps of all ranks that were timed: the columns of
    :func:`minitrain.analysis.account.summarized`, with ``samples`` in place of tokens.
    ``hosts`` name the clocks of the ranks. A step that was recorded is ``bracketed``,
    so that neither it nor the one after it counts. ``open`` are the ranks that did not
    close their file: killed, or at work.
    """

    rows: pd.DataFrame
    hosts: frozenset[str]
    open: frozenset[int] = frozenset()

    @property
    def one_clock(self) -> bool:
        """Whether the moments of all ranks can be compared."""
        has_moments = bool(self.rows["last_bucket_at_ns"].notna().all())
        return len(self.hosts) == 1 and has_moments

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The steps that are summarized, of all ranks."""
        return plain_steps(self.rows, WARMUP_STEPS)

    @cached_property
    def account(self) -> pd.DataFrame:
        """The step account."""
        return account(self.rows, WARMUP_STEPS, one_clock=self.one_clock)

    @property
    def parts(self) -> dict[str, dict[str, float | None]]:
        """Mean milliseconds of each part of a step, by rank and of ``all`` of them."""
        table = self.account
        names = [str(rank) for rank in table["rank"].unique()]
        return {name.removeprefix("rank "): means(table, name) for name in names}

    @cached_property
    def stragglers(self) -> Stragglers:
        """The verdict on slow ranks."""
        return find_stragglers(self.rows, WARMUP_STEPS)

    @property
    def num_steps(self) -> int:
        """Steps of the rank that made the most."""
        return int(self.rows.groupby("rank").size().max())

    @property
    def num_timed(self) -> int:
        """Steps behind the means: without the first, those that were recorded, and
        those after an evaluation or a recorded one.
        """
        return int(self.steps["step"].nunique())

    @property
    def late_part(self) -> str | None:
        """The part of a step that makes the slowest rank slow; None if none is."""
        slow, parts = self.stragglers.slow, self.parts
        if not slow:
            return None
        mine = parts.pop(str(slow[0].rank))
        del parts[ALL_RANKS]
        late = {}
        for part in OWN_PARTS:
            others = [of.get(part) or 0.0 for of in parts.values()]
            late[part] = (mine.get(part) or 0.0) - median(others)
        return max(late, key=late.__getitem__)

    @property
    def samples_per_s(self) -> float | None:
        """Samples of all ranks in a second, of the rank that took the longest."""
        steps = self.steps
        seconds = steps.groupby("rank")["step_ms"].sum().max() / 1e3
        samples = float(steps["tokens"].sum())
        return samples / seconds if samples and seconds > 0 else None


@dataclass(frozen=True)
class TimesCompared:
    """The mean step of two recordings, ``a_ms`` and ``b_ms``, and by how many
    milliseconds each part of B is longer, the largest difference first. ``noise_ms``
    is what the spread of the steps leaves open: ``parts`` holds those beyond their own.
    """

    a_ms: float
    b_ms: float
    noise_ms: float
    parts: dict[str, float]
    one_host: bool

    @property
    def differ(self) -> bool:
        """Whether the steps are apart by more than noise."""
        return abs(self.b_ms - self.a_ms) > self.noise_ms


def compare_times(a: Times | None, b: Times | None) -> TimesCompared | None:
    """Return how the steps of ``b`` take longer than those of ``a``; None where one of
    them has no step that was timed.
    """
    if a is None or b is None or a.account.empty or b.account.empty:
        return None
    ours, theirs = (_of_all(one) for one in (a, b))
    named = [ours.add_suffix("_a"), theirs.add_suffix("_b")]
    both = pd.concat(named, axis="columns").fillna(0.0)
    longer = both["mean_ms_b"] - both["mean_ms_a"]
    noise = both["half_a"] + both["half_b"]
    beyond = longer[longer.abs() > noise].sort_values(key=lambda x: -x.abs())
    return TimesCompared(
        a_ms=float(ours["mean_ms"].sum()),
        b_ms=float(theirs["mean_ms"].sum()),
        noise_ms=float((noise**2).sum() ** 0.5),
        parts={str(part): float(ms) for part, ms in beyond.items()},
        one_host=a.hosts == b.hosts,
    )


def _of_all(times: Times) -> pd.DataFrame:
    table = times.account.query("rank == @ALL_RANKS").set_index("part")
    half = (table["high_ms"] - table["low_ms"]) / 2
    return table[["mean_ms"]].assign(half=half)


def read_times(folder: Path) -> Times | None:
    """Return the times of the recording in ``folder``; None without any, as of an
    earlier minitrain. Raises UserError for a damaged file.
    """
    files = {rank: path_of_times(folder, rank) for rank in ranks_in(folder)}
    found = {rank: file for rank, file in files.items() if file.exists()}
    if not found:
        return None
    tables, hosts, is_open = [], set(), set()
    for rank, file in found.items():
        # a last line that was cut is left out
        whole, _, _ = file.read_text().rpartition("\n")
        is_open |= set() if whole.endswith(END) else {rank}
        hosts.add(whole.partition("\n")[0])
        try:
            table = pd.read_csv(
                StringIO(whole), comment="#", names=[*COLUMNS], header=0
            )
            tables.append(_as_timings(table.astype(float)).assign(rank=rank))
        except ValueError as error:
            raise UserError(f"{file}: damaged: {str(error)[:80]}") from None
    rows = pd.concat(tables, ignore_index=True)
    return Times(rows, frozenset(hosts), frozenset(is_open))


def _as_timings(table: pd.DataFrame) -> pd.DataFrame:
    # several optimizers make steps of their own
    rows = table.drop(columns=["optimizer", "step"]).assign(step=range(len(table)))
    own = {"exposed_ms": "comm_exposed_ms", "last_gradient_ns": "last_bucket_at_ns"}
    own |= {"backward_ms": "to_last_bucket_ms", "samples": "tokens"}
    rows = rows.rename(columns=own)
    parts = ["data", "forward", "to_last_bucket", "comm_exposed", "other", "optimizer"]
    return rows.assign(
        kind=rows["recorded"].map({0: "plain", 1: "bracketed"}),
        recorded=False,
        # a pause between steps, which is no part of them
        after_interruption=rows["evals"] > 0,
        backward_ms=rows["to_last_bucket_ms"] + rows["comm_exposed_ms"],
        step_ms=rows[[f"{part}_ms" for part in parts]].sum(axis=1),
    )
