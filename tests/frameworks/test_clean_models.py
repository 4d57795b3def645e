"""No false alarm: right models of transformers, and two by hand, are proven.

``MINITRAIN_CLEAN_MODELS=300 pytest tests/frameworks/test_clean_models.py`` checks as
many, of five kinds. The suite checks two: one with attention, dropout and masked
labels, and one by hand that casts to bfloat16.
"""

import json
import os
import subprocess

import pytest
from example_loops import PEERS
from project import ROOT

KINDS = 5
FEW = ["bert", "casts"]
COUNT = int(os.environ.get("MINITRAIN_CLEAN_MODELS", len(FEW)))


@pytest.mark.slow
@pytest.mark.timeout(300 + 120 * COUNT)
def test_right_models_are_proven() -> None:
    if not PEERS.exists():
        pytest.skip("no .venv-peers; make test makes it")
    script = ROOT / "tests/support/clean_models.py"
    names = [] if "MINITRAIN_CLEAN_MODELS" in os.environ else FEW
    done = subprocess.run(
        [str(PEERS), str(script), str(COUNT), *names],
        capture_output=True,
        text=True,
        timeout=240 + 120 * COUNT,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == COUNT
    assert len({row["name"] for row in rows}) == min(COUNT, len(names) or KINDS)
    assert [row for row in rows if row["verdict"] != "proven"] == []
