"""The result on the front page: one table, made of the files that are published."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from minitrain.analysis.comparison import AGAIN, TIMED
from minitrain.analysis.made_by import label, made_by_pipeline
from minitrain.core.files import read_csv, read_json
from minitrain.report.breach import refused_block
from minitrain.report.facts import num_hosts
from minitrain.report.numbers import ms, plural, thousands
from minitrain.report.render import markdown, table, write_marked
from minitrain.report.tables import NOT_MEASURED, UNDEFINED, arm_name

HEAD = (
    "what ran",
    "processes",
    "threads each",
    "tokens per second",
    "verdict",
    "all-reduce per step",
)


def write_result(readme: Path, metrics: Path) -> None:
    """Put the result in the folder ``metrics``, and which code produced it, into
    ``readme`` at the project's root.
    """
    if breach := read_json(metrics / "summary.json").get("breach"):
        write_marked(readme, "result", refused_block(f"Breach: {breach}."))
        write_marked(readme, "made-by", "")
        return
    manifest = read_json(metrics / "manifest.json", "sync", "world_size")
    write_marked(readme, "result", result_block(metrics))
    made = made_by_pipeline(readme.resolve().parent, manifest)
    write_marked(readme, "made-by", label(made, "make"))


def result_block(metrics: Path) -> Markup:
    """Return the table and its caption, from JSON files and scaling.csv."""
    manifest = read_json(metrics / "manifest.json", "sync", "world_size")
    timing = read_json(metrics / "timing.json")
    equivalence = read_json(metrics / "equivalence.json")
    scaling = read_csv(metrics / "scaling.csv", "arm")
    largest = f"gloo-{manifest['world_size']}"
    # A/A duplicates serve the noise floor and the cost of the hook, not the result
    arms = scaling[~scaling["arm"].str.endswith((AGAIN, TIMED))]
    rows = [_row(arm, manifest, timing, equivalence) for arm in arms.to_dict("records")]
    return markdown(
        "result.md",
        table=table(HEAD, rows),
        made=manifest,
        num_pairs=int(scaling["arm"].str.endswith(AGAIN).sum()),
        largest=largest,
        hosts=num_hosts(timing[largest]),
        whole=equivalence[largest]["one_process"],
    )


def _row(arm: Any, manifest: Any, timing: Any, equivalence: Any) -> list[Any]:
    run, verdict, reduced = str(arm["arm"]), UNDEFINED, UNDEFINED
    if run in timing:
        verdict = equivalence[run].get("verdict", "undecided")
        p50, hosts = timing[run]["allreduce_p50_ms"], num_hosts(timing[run])
        if hosts > 1:
            # measured on another network than the speed in this row
            p50, verdict = None, f"{verdict} ({plural(hosts, 'host')})"
        reduced = UNDEFINED if p50 is None else ms(p50)
    speed = thousands(arm["tokens_per_s_p50"])
    if manifest["machine_busy"]:
        speed = NOT_MEASURED
    what = arm_name(run, "DDP" if manifest["sync"] == "ddp" else manifest["sync"])
    return [what, arm["processes"], arm["threads"], speed, verdict, reduced]
