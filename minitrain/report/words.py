"""Sentences on speed: composed from measurements, refused where these do not decide."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from minitrain.analysis.busy import why_busy
from minitrain.analysis.comparison import ALL_CORES, NO_SYNC, ONE_PROCESS, Comparison
from minitrain.report.account_words import account_sentences
from minitrain.report.numbers import (
    all_of,
    capitalized,
    percent,
    plural,
    thousands,
    times,
)
from minitrain.report.render import Markdown, escaped
from minitrain.report.results import Results, num_hosts


@dataclass(frozen=True)
class Finding:
    """What is known about the speed of the largest gloo run, ``run``, which was trained
    on ``num_hosts``; all that is compared was on one.

    ``no_sync_against_one`` and ``of_ceiling`` compare the same processes without
    communication (the ceiling); both are None for one process. ``account`` has the
    keys of metrics/timing.json; ``interference_ms`` is its 5-95 % interval, if known.
    ``busy`` says why the machine was too busy to judge any speed, if it was.
    """

    run: str
    num_hosts: int
    world_size: int
    threads: int
    cores: int
    sync: str
    against_one: Comparison
    against_all_cores: Comparison
    no_sync_against_one: Comparison | None
    of_ceiling: Comparison | None
    account: Mapping[str, Any] | None
    interference_ms: tuple[float, float] | None
    busy: str | None

    @property
    def strategy(self) -> str:
        """How gradients were synchronized, as a word of a sentence."""
        return "DDP" if self.sync == "ddp" else self.sync

    @property
    def subject(self) -> str:
        """The processes that are judged, as the subject of a sentence."""
        if self.world_size == 1:
            return f"one process under {self.strategy}"
        under = "" if self.sync == "ddp" else f" under {self.sync}"
        return f"{self.world_size} processes{under}"


def find(results: Results) -> Finding:
    """Compare the arms that the finding is about; UserError where one is missing."""
    run, baseline = results.largest, results.baseline
    silent = run + NO_SYNC if results.world_size > 1 else None
    return Finding(
        run=run,
        num_hosts=num_hosts(results.timing[run]),
        world_size=results.world_size,
        threads=results.provenance[run]["threads_per_process"],
        cores=results.machine["cores"],
        sync=results.provenance[run]["sync"],
        against_one=baseline.compare(run, ONE_PROCESS),
        against_all_cores=baseline.compare(run, ALL_CORES),
        no_sync_against_one=baseline.compare(silent, ONE_PROCESS) if silent else None,
        of_ceiling=baseline.compare(run, silent) if silent else None,
        account=results.accounts.get(run),
        interference_ms=results.interval(run, "interference_ms"),
        busy=why_busy(results.baseline_provenance.get("load"), baseline.spread()),
    )


def headline(finding: Finding) -> str:
    """The finding in one line: the title of the scaling picture."""
    if finding.busy:
        return f"{capitalized(finding.subject)}: the machine was busy, no speed judged"
    one = "one without" if finding.world_size == 1 else "one process"
    all_cores = f"one process on {all_of(finding.cores, 'core')}"
    return (
        f"{capitalized(finding.subject)}: {_clause(finding.against_one, one)}, "
        f"{_clause(finding.against_all_cores, all_cores)}"
    )


def _clause(compared: Comparison, other: str) -> str:
    if compared.verdict == "no difference seen":
        return f"no difference seen from {other}"
    (ratio,) = times(compared.ratio)
    return f"{compared.verdict} than {other} ({ratio} times the speed)"


def lesson_notes(finding: Finding) -> str:
    """Why N processes are faster, or slower, here: a paragraph of measured numbers,
    :func:`speed_notes` and :func:`account_notes`.
    """
    return f"{speed_notes(finding)} {account_notes(finding)}".strip()


def account_notes(finding: Finding) -> str:
    """What the parts of a step say of that speed; "" where none was decided."""
    if finding.busy or finding.against_one.verdict == "no difference seen":
        return ""
    return " ".join(account_sentences(finding))


def speed_notes(finding: Finding) -> str:
    """How fast N processes are beside one, and what they could reach.

    Without a decided verdict it gives no reason. Of a busy machine it says nothing
    else.
    """
    if finding.busy:
        return Markdown(
            f"The machine was busy during the {finding.against_one.num_rounds} rounds: "
            f"{escaped(finding.busy)}. That disturbs some arms more than others, so no "
            "speed is judged. On a quiet machine, `.venv/bin/dvc repro --force "
            "--single-item baseline` and then `.venv/bin/dvc repro` measure again."
        )
    alone = finding.world_size == 1
    threads = plural(finding.threads, "thread")
    subject = finding.subject if alone else f"{finding.subject} with {threads} each"
    same = f"one process with {threads}"
    if alone:
        same = f"one process without {finding.strategy}"
    all_cores = f"one process that uses {all_of(finding.cores, 'core')}"
    one = finding.against_one
    sentences = [
        f"Measured in {one.num_rounds} rounds; a difference below the noise floor of "
        f"{percent(one.noise_floor)} counts as none: {floor_in_words(one.num_pairs)}.",
        _speed(subject, same, one),
        _speed(subject, all_cores, finding.against_all_cores),
    ]
    if finding.num_hosts > 1:
        apart = f"All ran on one host, and {finding.run} on {finding.num_hosts} hosts"
        sentences.insert(1, f"{apart}: its step account explains no speed here.")
    if alone:
        only = "Only one process was asked for: nothing here says how several would do."
        sentences.insert(0, only)
    if one.verdict == "no difference seen":
        return " ".join([*sentences, "So no reason is given."])
    return " ".join([*sentences, *_ceiling(finding)])


def floor_in_words(num_pairs: int) -> str:
    """What a noise floor from so many A/A pairs is, and what it is not."""
    pairs = f"the largest that {num_pairs} A/A pairs showed in this run"
    if num_pairs == 1:
        pairs = "what the one A/A pair showed in this run"
    return f"{pairs} (in another, identical arms may differ by more)"


def _speed(subject: str, other: str, compared: Comparison) -> str:
    ratio, low, high = times(compared.ratio, compared.low, compared.high)
    numbers = (
        f"{thousands(compared.tokens_per_s_a)} against "
        f"{thousands(compared.tokens_per_s_b)} tokens per second in the median, round "
        f"by round {ratio} times the speed (5-95 % interval {low} to {high})"
    )
    if compared.verdict != "no difference seen":
        return f"{capitalized(subject)} ran {compared.verdict} than {other}: {numbers}."
    reason = (
        "the difference is below the noise floor"
        if compared.excludes_one
        else "the interval includes 1"
    )
    return (
        f"The evidence does not decide whether {subject} ran faster or slower than "
        f"{other}: {numbers}; {reason}."
    )


def _ceiling(finding: Finding) -> list[str]:
    silent, reached = finding.no_sync_against_one, finding.of_ceiling
    if silent is None or reached is None:
        return []
    busy = finding.world_size * finding.threads
    crowd = f"{busy} computing threads share {plural(finding.cores, 'core')}. "
    (ratio,) = times(silent.ratio)
    meaning = {
        "slower": "the rest is the price of communication and of waiting for it",
        "no difference seen": "no cost of communication is seen",
        "faster": "more than a ceiling allows, so it does not tell what "
        "communication costs",
    }[reached.verdict]
    return [
        f"{crowd if busy > finding.cores else ''}When the same "
        f"{finding.world_size} processes do not communicate, they run at {ratio} times "
        f"the speed of one (ideal: {finding.world_size}). {finding.strategy} reaches "
        f"{percent(reached.ratio)} of that ceiling (5-95 % interval "
        f"{percent(reached.low)} to {percent(reached.high)}): {meaning}."
    ]


def losses_headline(losses: Mapping[str, pd.DataFrame]) -> str:
    """Where losses start and end, and how far apart runs lie on steps they share."""
    curves = pd.concat(
        [table.set_index("step")["loss"] for table in losses.values()],
        axis="columns",
        join="inner",
    )
    first, last = curves.iloc[[0, -1], 0]
    ends = f"{first:.2f} at the first step, {last:.2f} at the last"
    text = f"Loss of {', '.join(losses)}: {ends}"
    if len(losses) == 1:
        return text
    apart = (curves.max(axis="columns") - curves.min(axis="columns")).max()
    return f"{text}, at most {apart:.1e} apart"
