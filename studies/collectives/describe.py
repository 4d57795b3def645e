"""Write tables and sentences from the measured times."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from collectives_settings import Collectives
from findings import NAMES, against_gloo, duration, medians, short, size
from study_settings import load_study

from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, read_json
from minitrain.core.provenance import measured_where
from minitrain.report.numbers import capitalized

STUDY = Path(__file__).resolve().parent
# NCCL runs in GPU memory, so a copy on the CPU is no limit
LIMITED = ("gloo", "shm")


def main() -> None:
    study = load_study(STUDY, Collectives)
    table = pd.read_csv(STUDY / "collectives.csv")
    origin = read_json(STUDY / "provenance.json")
    with open_atomic(STUDY / "table.md") as file:
        file.writelines(f"{line}\n" for line in page(table, study.goals, origin))


def page(
    table: pd.DataFrame, goals: Mapping[int, float], origin: Mapping[str, Any]
) -> Iterator[str]:
    first, *_ = world_sizes = sorted(table["world_size"].unique())
    cores = origin["machine"]["cores"]
    yield f"{measured_where(origin)} Times are medians of trials."
    yield from ("", f"## Shared memory against gloo, {first} processes", "")
    yield from goals_table(medians(table, first), goals)
    for world_size in world_sizes:
        aside = f" on {cores} cores: oversubscribed" if world_size > cores else ""
        yield from ("", f"## {world_size} processes{aside}", "")
        yield from sentences(table, world_size)
        yield ""
        yield from sizes_table(medians(table, world_size))


def goals_table(us: Any, goals: Mapping[int, float]) -> Iterator[str]:
    yield "| size | gloo | shared memory | times as fast | wanted | verdict |"
    yield "|---:|---:|---:|---:|---:|---|"
    for num_bytes, goal in goals.items():
        gloo, shm = us.at[num_bytes, "gloo"], us.at[num_bytes, "shm"]
        verdict = "reached" if gloo / shm >= goal else "missed"
        measured = f"{duration(gloo)} | {duration(shm)} | {gloo / shm:.2f}"
        yield f"| {size(num_bytes)} | {measured} | {goal:g} | {verdict} |"


def sentences(table: pd.DataFrame, world_size: int) -> Iterator[str]:
    yield f"- {against_gloo(table, world_size)}."
    us = medians(table, world_size)
    most = us.index[-1]
    for name in [name for name in NAMES if name in us and name != "copy"]:
        mine = table[(table["backend"] == name) & (table["world_size"] == world_size)]
        best: Any = mine.nlargest(1, "busbw_gb_per_s").iloc[0]
        rate = f"{short(best.busbw_gb_per_s)} GB/s, at {size(best.num_bytes)}"
        yield f"- {capitalized(NAMES[name])}: the highest bus bandwidth is {rate}."
        if name in LIMITED:
            limit = short(us.at[most, name] / us.at[most, "copy"])
            yield f"  {size(most)} take {limit} times as long as a plain copy of them."


def sizes_table(us: Any) -> Iterator[str]:
    names = [name for name in NAMES if name in us]
    ratios = [("gloo", "shm"), *((name, "copy") for name in LIMITED)]
    heads = [NAMES[name] for name in names]
    heads += [f"{NAMES[a]} / {NAMES[b]}" for a, b in ratios]
    yield f"| size | {' | '.join(heads)} |"
    yield "|---:" * (1 + len(heads)) + "|"
    for num_bytes, row in us.iterrows():
        cells = [size(num_bytes), *(duration(row[name]) for name in names)]
        cells += [short(row[a] / row[b]) for a, b in ratios]
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    run_stage(main)
