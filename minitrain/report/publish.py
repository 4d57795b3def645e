"""From what the stages measured to pictures, manifest, page and README's result."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from minitrain.analysis.comparison import Baseline
from minitrain.core.errors import EvidenceError
from minitrain.core.files import (
    atomic_path,
    open_atomic,
    read_csv,
    read_json,
    reading,
    sha256_file,
    write_json,
)
from minitrain.core.params import Params, load_params
from minitrain.core.provenance import code_sha256
from minitrain.data.shards import first_texts
from minitrain.report.account_words import PARTS, account_headline
from minitrain.report.manifest import manifest
from minitrain.report.overview import draw_overview
from minitrain.report.page import OVERVIEW_SVG, as_markdown, compose
from minitrain.report.plots import draw_account, draw_losses
from minitrain.report.refused import breach_line, refuse
from minitrain.report.result import write_result
from minitrain.report.results import Results, only_runs
from minitrain.report.scaling_plot import draw_scaling
from minitrain.report.sections import ACCOUNT_PNG, LOSSES_PNG, SCALING_PNG
from minitrain.report.studied import Studied
from minitrain.report.summary import summary
from minitrain.report.webpage import report_html
from minitrain.report.words import find, headline, losses_headline

# what is published, in the folder of the results; after a breach not all of it
FILES = (
    "report.html",
    "report.md",
    "manifest.json",
    "summary.json",
    "scaling.csv",
    "losses.csv",
    OVERVIEW_SVG,
    SCALING_PNG,
    ACCOUNT_PNG,
    LOSSES_PNG,
)


@dataclass(frozen=True)
class Project:
    """Where the files are: folders of what was built, the folder of what is published
    and read there, and ``params``, ``readme`` and ``zoo``, which are files: that last
    the script of the study of bugs.
    """

    params: Path
    shards: Path
    runs: Path
    baseline: Path
    metrics: Path
    readme: Path
    zoo: Path


def publish(project: Project) -> str:
    """Write the result of ``project`` again -> its headline. Nothing is measured.

    Whatever is not in the files is not published. After a breach that is published,
    and EvidenceError is raised; UserError where a run was not measured.
    """
    params, metrics = load_params(project.params), project.metrics
    equivalence = _of_runs(metrics / "equivalence.json", params)
    if line := breach_line(equivalence):
        refuse(equivalence, params, metrics, project.readme)
        raise EvidenceError(f"Breach: {line}")
    results = read_results(project, params, equivalence)
    finding = find(results)

    # Pictures, each titled with what it shows on this machine.
    with open_atomic(metrics / OVERVIEW_SVG) as file:
        file.write(draw_overview(results))
    scaling = results.baseline.scaling().round(1)
    with atomic_path(metrics / SCALING_PNG) as path:
        draw_scaling(scaling, headline(finding), path, finding.strategy)
    with atomic_path(metrics / ACCOUNT_PNG) as path:
        accounts = {results.label(r): of for r, of in results.accounts.items()}
        draw_account(accounts, account_headline(finding), path)
    with atomic_path(metrics / LOSSES_PNG) as path:
        draw_losses(results.losses, losses_headline(results.losses), path)

    # Numbers for other programs, then the page.
    with open_atomic(metrics / "scaling.csv") as file:
        scaling.to_csv(file, index=False)
    losses = [table.assign(run=run) for run, table in results.losses.items()]
    with open_atomic(metrics / "losses.csv") as file:
        pd.concat(losses)[["run", "step", "loss"]].to_csv(file, index=False)
    published = manifest(results, finding)
    write_json(metrics / "manifest.json", published)
    write_json(metrics / "summary.json", summary(results, finding))
    composed = compose(results, finding)
    with open_atomic(metrics / "report.md") as file:
        file.write(as_markdown(composed))
    with open_atomic(metrics / "report.html") as file:
        file.write(report_html(composed, metrics))
    write_result(project.readme, results, published, scaling)
    return headline(finding)


def read_results(
    project: Project, params: Params, equivalence: Mapping[str, Any]
) -> Results:
    """Read what ``params`` ask for, and nothing that an earlier setting left behind."""
    runs, metrics, baseline = params.runs(), project.metrics, project.baseline
    rounds, folders = baseline / "rounds.csv", {run: project.runs / run for run in runs}
    timing = _of_runs(metrics / "timing.json", params)
    with reading(metrics / "timing.json"):
        parts = product(timing, PARTS)
        expected = [(r, part) for r, part in parts if part in timing[r]["account"]]
        if older := [run for run in timing if "stragglers" not in timing[run]]:
            raise ValueError(f"no stragglers of {older[0]}")
    origins = {
        run: read_json(folders[run] / "provenance.json", "machine", "num_steps")
        for run in runs
    }
    return Results(
        seed=params.train.seed,
        batch_size=params.train.global_batch_size,
        num_samples=_num_samples(project.shards, max(params.gloo.world_sizes)),
        params_sha256=sha256_file(project.params),
        gloo_world_sizes=params.gloo.world_sizes,
        baseline=Baseline(
            _rounds(rounds, params.baseline.num_rounds),
            params.gloo.world_sizes,
            str(rounds),
        ),
        baseline_provenance=read_json(baseline / "provenance.json", "machine"),
        provenance=origins,
        first_texts={
            run: first_texts(project.shards / f"world-{world_size}")
            for run, world_size in runs.items()
        },
        equivalence=equivalence,
        timing=timing,
        account=_account(metrics / "account.csv", expected),
        losses={run: _losses(folders[run], origins[run]["num_steps"]) for run in runs},
        samples=_samples(metrics / "samples.json", params),
        studied=_studied(metrics / "ladder", params),
        studied_hosts=_studied(metrics / "hosts", params),
        studied_collectives=read_csv(metrics / "collectives.csv"),
        bugs=_bugs(metrics / "zoo.json", project.zoo),
    )


def _num_samples(shards: Path, world_size: int) -> int:
    index = read_json(shards / f"world-{world_size}" / "index.json", "samples")
    return int(index["samples"])


def _bugs(file: Path, zoo: Path) -> dict[str, Any] | None:
    """What the study of bugs found; None where the code that it ran is not today's."""
    found: dict[str, Any] = read_json(file, "bugs", "provenance")
    with reading(file):
        code = found["provenance"]["code_sha256"]
    return found if code is not None and code == code_sha256(zoo) else None


def _samples(file: Path, params: Params) -> dict[str, Any]:
    """What the model said; UserError where a run has none, and none says why."""
    found: dict[str, Any] = read_json(file, "mute", "before", "after", "same_texts")
    if found["mute"] is None:
        found["after"] = only_runs(found["after"], list(params.runs()), str(file))
    return found


def _studied(stem: Path, params: Params) -> Studied:
    """What a study left in a table and a file beside it, which says what made it."""
    return Studied(
        table=read_csv(stem.with_suffix(".csv")),
        origin=read_json(stem.with_suffix(".json")),
        model=params.model.model_dump(mode="json"),
    )


def _rounds(file: Path, num_rounds: int) -> pd.DataFrame:
    """The table in ``file``; UserError where one of ``num_rounds`` is missing."""
    table = read_csv(file, "round")
    with reading(file):
        if {*table["round"]} != {*range(num_rounds)}:
            raise ValueError(f"not {num_rounds} rounds")
    return table


def _account(file: Path, expected: Iterable[tuple[str, str]]) -> pd.DataFrame:
    """The table in ``file``; UserError where the row of an ``expected`` run and part is
    missing, as where it was cut between two lines.
    """
    table = read_csv(file, "run", "part")
    with reading(file):
        held = {*zip(table["run"], table["part"], strict=True)}
        for run, part in expected:
            if (run, part) not in held:
                raise ValueError(f"no row of {run}, {part}")
    return table


def _losses(folder: Path, num_steps: int) -> pd.DataFrame:
    """A row for each step of the run in ``folder``; UserError where one is missing."""
    file = folder / "losses.csv"
    table = read_csv(file, "step", "loss")
    with reading(file):
        if [*table["step"]] != [*range(num_steps)]:
            raise ValueError(f"not one row for each of {num_steps} steps")
    return table


def _of_runs(file: Path, params: Params) -> dict[str, Any]:
    return only_runs(read_json(file), list(params.runs()), str(file))
