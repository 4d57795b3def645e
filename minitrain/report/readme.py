"""The result on the front page: one table, made of the files that are published."""

from pathlib import Path

from markupsafe import Markup

from minitrain.analysis.made_by import label, made_by_pipeline
from minitrain.core.arms import baseline_arms
from minitrain.core.files import read_csv, read_json
from minitrain.report.facts import strategy_name
from minitrain.report.render import escaped, markdown, write_marked


def write_result(readme: Path, metrics: Path) -> None:
    """Put the result in the folder ``metrics``, and which code produced it, into
    ``readme`` at the project's root.
    """
    if breach := read_json(metrics / "summary.json").get("breach"):
        where = "No result was published; metrics/report.md lists the differences."
        text = f"**{escaped(f'Breach: {breach}.')}**\n\n{where}\n"
        write_marked(readme, "result", text)
        write_marked(readme, "made-by", "")
        return
    write_marked(readme, "result", result_block(metrics))
    manifest = read_json(metrics / "manifest.json")
    made = made_by_pipeline(readme.resolve().parent, manifest)
    write_marked(readme, "made-by", label(made, "make"))


def result_block(metrics: Path) -> Markup:
    """Return the table and its caption, from JSON files and scaling.csv."""
    manifest = read_json(metrics / "manifest.json", "sync", "world_size")
    scaling = read_csv(metrics / "scaling.csv", "arm", "processes")
    return markdown(
        "result.md",
        scaling=scaling.to_dict("records"),
        arms={arm.name: arm for arm in baseline_arms(scaling["processes"])},
        strategy=strategy_name(manifest["sync"]),
        made=manifest,
        timing=read_json(metrics / "timing.json"),
        equivalence=read_json(metrics / "equivalence.json"),
        largest=f"gloo-{manifest['world_size']}",
    )
