"""Write the cost of the recorder: time, memory and disk."""

from statistics import mean, median
from typing import Any

import pandas as pd
from recorder_rows import BY_STEP, RAW, STUDY, read_rows, rounds_of

from minitrain.analysis.comparison import Rounds
from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, read_json
from minitrain.core.provenance import measured_where, require_one_machine
from minitrain.report.numbers import ms, percent

HEAD = "arm | a step | longer than the raw loop's | 5-95 % | verdict"


def main() -> None:
    rows, steps = read_rows()
    found, memory = (read_json(STUDY / f"{n}.json") for n in ("machine", "memory"))
    require_one_machine({"machine.json": found, "memory.json": memory})
    rounds, by_step = (rounds_of(one) for one in (rows, steps))
    lines = [
        f"{measured_where(found)} {rounds.num_rounds} rounds, noise floor "
        f"{percent(rounds.noise_floor())}; by the median step of each turn "
        f"{percent(by_step.noise_floor())}.",
        "",
        f"| {HEAD} |",
        "|---" * 5 + "|",
        *times_of(rounds, rows, found["every"]),
        *times_of(by_step, steps, 1, BY_STEP),
        "",
        *others(rows, found, memory["runs"]),
    ]
    with open_atomic(STUDY / "table.md") as file:
        file.write("\n".join(lines) + "\n")


def step_ms(rows: pd.DataFrame, arm: str, every: int) -> float:
    return float(1e3 * rows[rows["arm"] == arm]["seconds"].median() / every)


def times_of(
    rounds: Rounds, rows: pd.DataFrame, every: int, how: str = ""
) -> list[str]:
    lines = []
    for arm in rows["arm"].unique():
        # relative duration of the arm: the raw loop's speed over the arm's
        one, took = rounds.compare(RAW, arm), ms(step_ms(rows, arm, every))
        longer, low, high = (percent(r - 1) for r in (one.ratio, one.low, one.high))
        verdicts = {"faster": "longer", "slower": "shorter"}
        verdict = verdicts.get(one.verdict, one.verdict)
        told = f"{longer} | {low} to {high} | {verdict}" if arm != RAW else "- | - | -"
        lines.append(f"| {arm}{how} | {took} | {told} |")
    return lines


def others(
    rows: pd.DataFrame, found: dict[str, Any], runs: list[dict[str, Any]]
) -> list[str]:
    every, sizes = found["every"], found["bytes_of_rank_0"]
    all_steps = step_ms(rows, "every step recorded", every)
    one_step = all_steps - step_ms(rows, RAW, every)
    peaks = {
        arm: [mean(run["peak_mb_of_ranks"]) for run in runs if run["arm"] == arm]
        for arm in ("raw", "recorded")
    }
    more = median(peaks["recorded"]) - median(peaks["raw"])
    apart = max(max(of) - min(of) for of in peaks.values())
    a_step = sizes["every step recorded"] / found["steps"] / 1e3
    return [
        f"- A step that is recorded takes {ms(one_step)} longer.",
        f"- A process holds {more:.1f} MB more at its peak, of "
        f"{median(peaks['raw']):.0f} MB; runs of one kind are up to {apart:.1f} MB "
        "apart.",
        f"- A recorded step of a rank is {a_step:.1f} kB on the disk.",
        f"- After {found['steps']} steps all arms have the same bits.",
    ]


if __name__ == "__main__":
    run_stage(main)
