"""Join what the stages measured into pictures, a manifest and the one-page report.

python -m stages.report
"""

from pathlib import Path

import pandas as pd

from minitrain.analysis.comparison import Baseline
from minitrain.core.errors import run_stage
from minitrain.core.files import (
    atomic_path,
    open_atomic,
    read_json,
    sha256_file,
    write_json,
)
from minitrain.core.params import load_params
from minitrain.data.shards import first_texts
from minitrain.report.blocks import to_html, to_markdown
from minitrain.report.manifest import manifest
from minitrain.report.page import ACCOUNT_PNG, LOSSES_PNG, SCALING_PNG, page
from minitrain.report.plots import draw_account, draw_losses
from minitrain.report.result import write_result
from minitrain.report.results import Results, only_runs
from minitrain.report.scaling_plot import draw_scaling
from minitrain.report.studied import read_studied
from minitrain.report.summary import summary
from minitrain.report.words import account_headline, find, headline, losses_headline

PARAMS, METRICS = Path("params.yaml"), Path("metrics")
RUNS, BASELINE = Path("data/runs"), Path("data/baseline")
LADDER = Path("studies/ladder/climb.py")


def main() -> None:
    # Nothing is measured here: whatever is not in these files is not published.
    results = read_results()
    finding = find(results)

    # Pictures, each titled with what it shows on this machine.
    scaling = results.baseline.scaling().round(1)
    with atomic_path(METRICS / SCALING_PNG) as path:
        draw_scaling(scaling, headline(finding), path, finding.strategy)
    with atomic_path(METRICS / ACCOUNT_PNG) as path:
        draw_account(results.accounts, account_headline(finding), path)
    with atomic_path(METRICS / LOSSES_PNG) as path:
        draw_losses(results.losses, losses_headline(results.losses), path)

    # Numbers for other programs, then the page: the same blocks rendered twice.
    with open_atomic(METRICS / "scaling.csv") as file:
        scaling.to_csv(file, index=False)
    published = manifest(results, finding)
    write_json(METRICS / "manifest.json", published)
    write_json(METRICS / "summary.json", summary(results, finding))
    blocks = page(results, finding)
    with open_atomic(METRICS / "report.md") as file:
        file.write(to_markdown(blocks))
    with open_atomic(METRICS / "report.html") as file:
        file.write(to_html(blocks, METRICS))
    write_result(Path("README.md"), results, published, scaling)


def read_results() -> Results:
    """Read what params ask for, and nothing that an earlier setting left behind."""
    params = load_params(PARAMS)
    runs = params.runs()
    rounds = BASELINE / "rounds.csv"
    both = (METRICS / f"{name}.json" for name in ("equivalence", "timing"))
    equivalence, timing = (only_runs(read_json(p), list(runs), str(p)) for p in both)
    return Results(
        seed=params.train.seed,
        params_sha256=sha256_file(PARAMS),
        gloo_world_sizes=params.gloo.world_sizes,
        baseline=Baseline(pd.read_csv(rounds), params.gloo.world_sizes, str(rounds)),
        baseline_provenance=read_json(BASELINE / "provenance.json"),
        provenance={run: read_json(RUNS / run / "provenance.json") for run in runs},
        first_texts={
            run: first_texts(Path(f"data/shards/world-{world_size}"))
            for run, world_size in runs.items()
        },
        equivalence=equivalence,
        timing=timing,
        account=pd.read_csv(METRICS / "account.csv"),
        losses={run: pd.read_csv(RUNS / run / "losses.csv") for run in runs},
        studied=read_studied(METRICS, params.model, LADDER),
        studied_collectives=pd.read_csv(METRICS / "collectives.csv"),
    )


if __name__ == "__main__":
    run_stage(main)
