"""The result in README.md: one table, generated from published files."""

from pathlib import Path

from markupsafe import Markup

from minitrain.core.arms import baseline_arms
from minitrain.core.files import read_csv, read_json
from minitrain.report.facts import strategy_name
from minitrain.report.render import markdown


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
