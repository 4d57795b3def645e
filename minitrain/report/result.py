"""The result in one table, for the front page, made of the files that are published."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from minitrain.analysis.comparison import AGAIN, TIMED
from minitrain.analysis.made_by import label, made_by_pipeline
from minitrain.report.numbers import ms, percent, plural, thousands
from minitrain.report.refused import refused_block
from minitrain.report.render import markdown, table, write_marked
from minitrain.report.results import Results, num_hosts, with_hosts
from minitrain.report.tables import arm_in_words

HEAD = (
    "what ran",
    "processes",
    "threads each",
    "tokens per second",
    "verdict",
    "all-reduce per step",
)

Files = Mapping[str, Any]


def write_result(
    readme: Path, results: Results, manifest: Files, scaling: pd.DataFrame
) -> None:
    """Put the result, and which code made it, into ``readme`` at the project's root."""
    block = result_block(manifest, results.timing, results.equivalence, scaling)
    write_marked(readme, "result", block)
    made = made_by_pipeline(readme.resolve().parent, manifest)
    write_marked(readme, "made-by", label(made, "make"))


def result_block(
    manifest: Files, timing: Files, equivalence: Files, scaling: pd.DataFrame
) -> str:
    """Markdown made of the JSON files of these names and of scaling.csv; what stands
    in the place of a result after a breach.
    """
    if manifest.get("verdict") == "breach":
        return refused_block(manifest["lesson_notes"])
    # the twins serve the noise floor and the cost of the hook, not the result
    arms = scaling[~scaling["arm"].str.endswith((AGAIN, TIMED))].to_dict("records")
    sync = manifest["sync"]
    rows = []
    for arm in arms:
        run = str(arm["arm"])
        verdict = reduced = "-"
        if run in timing:
            verdict = equivalence[run].get("verdict", "undecided")
            p50, hosts = timing[run]["allreduce_p50_ms"], num_hosts(timing[run])
            if hosts > 1:
                # that of another network than the speed beside it
                p50, verdict = None, f"{verdict} ({plural(hosts, 'host')})"
            reduced = "-" if p50 is None else ms(p50)
        what = arm_in_words(run, "DDP" if sync == "ddp" else sync)
        speed = thousands(arm["tokens_per_s_p50"])
        rows.append([what, arm["processes"], arm["threads"], speed, verdict, reduced])
    largest = f"gloo-{manifest['world_size']}"
    hosts = num_hosts(timing[largest])
    return markdown(
        "result.md",
        table=table(HEAD, rows),
        made=manifest,
        busy=manifest["machine_busy"],
        num_parameters=thousands(manifest["model_params"]),
        pairs=plural(int(scaling["arm"].str.endswith(AGAIN).sum()), "pair"),
        noise_floor=percent(manifest["noise_floor"]),
        largest=with_hosts(largest, hosts),
        hosts=hosts,
        whole=equivalence[largest]["one_process"],
    )
