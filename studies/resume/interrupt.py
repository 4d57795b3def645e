"""Interrupt and resume runs of every kind, and compare with uninterrupted runs."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from resume_cases import CASES, Case, write_samples
from resume_settings import Resume
from resumed import (
    SAVING,
    UNDISTURBED,
    Left,
    differing,
    run_stopped,
)
from study_settings import load_study

from minitrain.core.errors import UserError, run_stage
from minitrain.core.files import open_atomic, write_json
from minitrain.core.progress import progress
from minitrain.core.provenance import provenance

STUDY = Path(__file__).resolve().parent


def main() -> None:
    study = load_study(STUDY, Resume)
    for name in study.stop_after_every_step:
        if name not in CASES:
            where = f"{STUDY / 'params.yaml'}: resume.stop_after_every_step"
            raise UserError(f"{where}: {name!r}: must be one of {'; '.join(CASES)}")
    rows: list[dict[str, Any]] = []
    for name in progress(CASES, "cases", total=len(CASES)):
        with tempfile.TemporaryDirectory(prefix="minitrain-resume-") as folder:
            rows += interrupted(name, CASES[name], study, Path(folder))
    with open_atomic(STUDY / "results.csv") as file:
        pd.DataFrame(rows).to_csv(file, index=False)
    write_json(STUDY / "machine.json", provenance(Path(__file__)))


def interrupted(
    name: str, case: Case, study: Resume, folder: Path
) -> Iterator[dict[str, Any]]:
    shards = write_samples(folder / "shards", study.steps_per_epoch)
    config, size = case.config(shards, study.num_steps), case.world_size
    stops = [SAVING, *study.stops(name)]
    # the uninterrupted run comes first, separately
    undisturbed, *same = run_stopped(config, size, folder, [UNDISTURBED, *stops])
    found = [(stop, "same", ranks) for stop, ranks in zip(stops, same, strict=True)]
    for stop in study.in_new_processes:
        (ranks,) = run_stopped(config, size, folder, [stop])
        found.append((stop, "new", ranks))
    for stop, processes, ranks in found:
        yield {
            "case": name,
            "ranks": size,
            # 0: saved after every step, but was not stopped
            "stopped_after": stop,
            "end_of_epoch": stop % study.steps_per_epoch == 0,
            "processes": processes,
            **judged(ranks, undisturbed),
        }


def judged(ranks: list[Left], undisturbed: list[Left]) -> dict[str, Any]:
    # a run that restarted from scratch gives equal bytes, but proves nothing
    (went_on_from,) = {rank.went_on_from for rank in ranks}
    differ = differing(ranks, undisturbed)
    return {
        "went_on_from": went_on_from,
        "equal": not differ,
        "differ": "; ".join(differ),
    }


if __name__ == "__main__":
    run_stage(main)
