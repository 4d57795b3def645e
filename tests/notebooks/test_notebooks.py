"""The notebooks: kept without outputs, and every cell runs and shows what it says."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from project import ROOT
from report_inputs import facts, proven, published, rung
from waiting import GENEROUS_S

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# of what asyncio and zmq will change some day
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_kept_without_outputs(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    nbformat.validate(notebook)
    for cell in notebook["cells"]:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


# tests/harness/test_launcher.py has a cell whose ranks are new processes
FORK = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests/support")!r})
from forks import FOR_RANKS, Server
from minitrain.harness import launcher
launcher._start = Server(FOR_RANKS).fork
"""


def executed(folder: Path, notebook: str, before: str = "") -> dict[str, Any]:
    """Return the text and the number of pictures of each code cell, by id; the kernel
    runs ``before`` first.
    """
    (folder / "notebooks").mkdir(exist_ok=True)
    path = shutil.copy(ROOT / "notebooks" / notebook, folder / "notebooks")
    made = nbformat.read(path, as_version=4)
    made.cells.insert(0, nbformat.v4.new_code_cell(before))
    # where Jupyter and editors start a kernel: beside the notebook
    where = {"metadata": {"path": str(folder / "notebooks")}}
    nbclient.NotebookClient(made, timeout=GENEROUS_S, resources=where).execute()
    return {cell.id: shown(cell) for cell in made.cells if cell.cell_type == "code"}


def shown(cell: Any) -> tuple[str, int]:
    texts = [out.get("text") or out["data"].get("text/plain") for out in cell.outputs]
    images = ["image/png" in out.get("data", {}) for out in cell.outputs]
    return "\n".join(map(str, texts)), sum(images)


def test_results_are_those_of_the_files(tmp_path: Path) -> None:
    """Of a project whose second run has a breach."""
    ladders = proven([1, 2])
    ladders["gloo-2"]["replay"] = rung("breach", 9, 0.1, "12 elements differ")
    measured = facts([1, 2], equivalence=ladders)
    (tmp_path / "metrics").mkdir()
    published(tmp_path / "metrics", measured)
    for run, losses in measured.losses.items():
        (tmp_path / "data/runs" / run).mkdir(parents=True)
        losses.to_csv(tmp_path / "data/runs" / run / "losses.csv", index=False)
    cells = executed(tmp_path, "results.ipynb")
    assert re.search(r"^steps +100$", cells["read"][0], re.MULTILINE)
    rows = [line.split() for line in cells["rungs"][0].splitlines()]
    assert ["gloo-1", "gloo-2"] in rows
    assert ["replay", "equal", "breach"] in rows
    assert ["replay_gradients", "equal", "equal"] in rows
    # of 10,000 tokens per second and of 16,400, against 13,000; noise is 1 %
    ratios = dict(re.findall(r"^(\S+) +(\d\.\d+)$", cells["ratio"][0], re.MULTILINE))
    assert float(ratios["one_process"]) == pytest.approx(10 / 13, rel=0.03)
    assert float(ratios["gloo-2"]) == pytest.approx(16.4 / 13, rel=0.03)
    assert cells["account"][0] == "<Figure size 800x300 with 1 Axes>"
    # the losses of the two runs are 2e-7 apart, by how they were made up
    (gap,) = re.findall(r"largest gap: (\S+)", cells["losses"][0])
    assert float(gap) == pytest.approx(2e-7, rel=0.01)
    pictures = {ident for ident, (_, images) in cells.items() if images}
    assert pictures == {"matrix", "speed", "account", "losses"}


def test_ranks_start_from_cells(tmp_path: Path) -> None:
    cells = executed(tmp_path, "ranks.ipynb", FORK)
    ranks = [f"rank {rank} of 4" for rank in range(4)]
    assert cells["who"][0].replace("\n", "") == str(ranks)
    assert cells["average"][0] == "[4.0, 4.0, 4.0, 4.0]"
    together, alone = cells["train"][0].strip().splitlines()
    # the name, and a hash of the weights for each rank
    assert len(set(together.split()[1:])) == 1
    assert len(set(alone.split()[1:])) == 2
    (gap,) = re.findall(r"largest gap: (\S+)", cells["one"][0])
    assert float(gap) < 1e-5
    assert cells["draw"][1] == 1
    assert re.match(r"rank 1 \(.*ValueError: a sample is missing", cells["error"][0])
    assert re.search(r"^proven: ", cells["ladder"][0], re.MULTILINE)


@pytest.mark.thorough
def test_script_is_recorded_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torchrun leaves a folder
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    cells = executed(tmp_path, "record.ipynb")
    assert "same computation within rounding" in cells["verify"][0]
    assert cells["one"][0].count("minitrain: recorded 40 steps") == 2
    assert "data that is not divided among the ranks" in cells["break"][0]
    assert re.search(r"^different at step 0: ", cells["break"][0], re.MULTILINE)
    assert "forward and loss" in cells["show"][0]
