"""The result on the front page: one table, made of the files that are published."""

from pathlib import Path

from markupsafe import Markup

from minitrain.core.arms import baseline_arms
from minitrain.core.files import read_csv, read_json
from minitrain.report.facts import strategy_name
from minitrain.report.render import escaped, markdown, write_marked


def write_result(readme: Path, metrics: Path) -> None:
    """Write the result in the folder ``metrics``, or its breach, into ``readme``."""
    if breach := read_json(metrics / "summary.json").get("breach"):
        where = "No result was published; metrics/report.md lists the differences."
        text = f"**{escaped(f'Breach: {breach}.')}**\n\n{where}\n"
    else:
        text = result_block(metrics)
    write_marked(readme, "result", text)


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
