"""DVC's views of the results: charts, pictures and tables."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from project import ROOT, copy_project, git, load_yaml, run_dvc, run_in
from report_inputs import facts, proven, published

from minitrain.report.facts import Facts
from minitrain.report.publish import summary

PLOTS = load_yaml(ROOT / "metrics/dvc.yaml")["plots"]
CHARTS = {
    name: chart for p in PLOTS if isinstance(p, dict) for name, chart in p.items()
}
PICTURES = [plot for plot in PLOTS if isinstance(plot, str)]


def measured(**speeds: float) -> Facts:
    return facts([1, 2], equivalence=proven([1, 2]), speeds=speeds)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A project whose results differ from its last commit, and the page of the diff."""
    project = copy_project(tmp_path_factory.mktemp("views") / "project")
    published(project / "metrics", measured())
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "before")
    published(project / "metrics", measured(gloo_2=12_000))
    code, output = run_dvc(project, "plots", "diff")
    assert code == 0, output
    assert "failed to load" not in output
    return project, (project / "dvc_plots/index.html").read_text()


def columns(chart: dict[str, Any]) -> set[str]:
    drawn = {key: value for key, value in chart.items() if key != "data"}
    return {*re.findall(r'"field": "([^"]*)"', json.dumps(drawn))}


@pytest.mark.pipeline
def test_charts_read_columns_that_are_there_of_both_sides(
    page: tuple[Path, str],
) -> None:
    """And the page without a network says so, and has the pictures."""
    project, text = page
    assert "window.vegaEmbed = () =>" in text
    pictures = re.findall(r'<img src="([^"]+)"', text)
    # before and after
    assert len(pictures) == 2 * len(PICTURES)
    assert all((project / "dvc_plots" / path).is_file() for path in pictures)
    specs = [json.loads(s) for s in re.findall(r"var spec = (\{.*\});\n", text)]
    charts = {chart["title"]["text"]: chart for chart in specs}
    for name in CHARTS:
        chart = charts[CHARTS[name]["title"]]
        rows = chart["data"]["values"]
        assert {row["rev"] for row in rows} == {"HEAD", "workspace"}, name
        made = {step["as"] for step in chart.get("transform", []) if "as" in step}
        assert "rev" in columns(chart)
        assert columns(chart) - made <= rows[0].keys(), name
        # each anchor of the template was filled
        assert "<DVC_METRIC" not in json.dumps(chart), name


@pytest.mark.pipeline
def test_metrics_are_few_and_narrow(page: tuple[Path, str]) -> None:
    project, _ = page
    code, output = run_dvc(project, "metrics", "diff")
    assert code == 0, output
    head, *rows = output.splitlines()
    assert head.split() == ["Path", "Metric", "HEAD", "workspace", "Change"]
    # 16,400 tokens per second before, 12,000 after; nothing else changed
    found = {row.split()[1]: row.split()[2:4] for row in rows}
    speeds = {f"gloo-2.{key}" for key in ("tokens_per_s", "speedup")}
    speeds.add("gloo-2.speedup_all_cores")
    assert speeds <= found.keys() <= speeds | {"noise_floor"}
    assert all(float(after) < float(before) for before, after in found.values())
    assert max(map(len, output.splitlines())) <= 80


def test_experiments_show_few_columns() -> None:
    """Whole names, so the table of `dvc exp show` fits a terminal of 120 columns."""
    command = run_in(ROOT, "make", "--dry-run", "experiments").stdout
    (dropped,) = re.findall("--drop '(.*)'", command)
    told = summary(facts([1, 2, 4], equivalence=proven([1, 2, 4])))
    told = {k: v if isinstance(v, dict) else {"": v} for k, v in told.items()}
    names = [f"{run}.{key}".rstrip(".") for run in told for key in told[run]]
    kept = [name for name in names if not re.match(dropped, name)]
    # of these, --only-changed leaves out what is the same in all experiments
    assert kept == [
        *("machine_busy", "gloo-1.loss", "gloo-2.verdict"),
        *("gloo-2.speedup", "gloo-4.speedup"),
    ]
