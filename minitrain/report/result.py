"""The result in one table, for the front page, made of the files that are published."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from minitrain.analysis.comparison import AGAIN, TIMED
from minitrain.analysis.made_by import label, made_by_pipeline
from minitrain.report.blocks import write_marked
from minitrain.report.numbers import plural
from minitrain.report.page import arm_in_words
from minitrain.report.refused import refused_block
from minitrain.report.results import Results

HEAD = (
    "| what ran | processes | threads each | tokens per second | verdict "
    "| all-reduce per step |"
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
    rows = scaling[~scaling["arm"].str.endswith((AGAIN, TIMED))].to_dict("records")
    sync = manifest.get("sync", "ddp")
    strategy = "DDP" if sync == "ddp" else sync
    table = [HEAD, "|---|---|---|---|---|---|"]
    for row in rows:
        run = str(row["arm"])
        verdict = reduced = "-"
        if run in timing:
            verdict = equivalence[run].get("verdict", "undecided")
            ms = timing[run]["allreduce_p50_ms"]
            reduced = "-" if ms is None else f"{ms:.1f} ms"
        table.append(
            f"| {arm_in_words(run, strategy)} | {row['processes']} | {row['threads']} "
            f"| {row['tokens_per_s_p50']:,.0f} | {verdict} | {reduced} |"
        )
    pairs = int(scaling["arm"].str.endswith(AGAIN).sum())
    return "\n".join([*table, "", *_caption(manifest, equivalence, pairs)]) + "\n"


def _caption(manifest: Files, equivalence: Files, num_pairs: int) -> list[str]:
    machine, largest = manifest["machine"], f"gloo-{manifest['world_size']}"
    whole = equivalence[largest]["one_process"]
    lines = [
        f"*Measured on {manifest['baseline_measured_at'][:10]}: {machine['cpu']}, "
        f"{machine['cores']} cores, torch {machine['torch']}.",
        f"{manifest['model_params']:,} parameters, {manifest['steps']} steps.",
        f"Speeds are medians of {manifest['num_rounds']} rounds in which all arms took",
        f"turns. Identical arms ({plural(num_pairs, 'pair')}) differed by up to "
        f"{100 * manifest['noise_floor']:.1f} %: less counts as none.",
        "The all-reduce is the time from handing gradients over to having them reduced",
        "in a step of the training run (median), waiting for the other rank included.",
    ]
    # a manifest of an earlier version does not say
    if busy := manifest.get("machine_busy"):
        lines.insert(2, f"The machine was busy, so no speed is judged: {busy}.")
    if whole["max_abs_diff"] is not None:
        lines += [
            f"The final state of {largest} and that of one process with the whole",
            f"batch are {whole['max_abs_diff']:.1e} apart: {whole['verdict']}.",
        ]
    return [*lines[:-1], f"{lines[-1]}*"]
