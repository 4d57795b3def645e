"""No false alarm: right models, one of them of transformers, are proven."""

import json

import pytest
from example_loops import PEERS
from project import ROOT, run_in


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_right_models_are_proven() -> None:
    """With attention, dropout and masked labels; with casts; with class weights."""
    if not PEERS.exists():
        pytest.skip("no .venv-peers; make test makes it")
    script = ROOT / "tests/support/clean_models.py"
    done = run_in(ROOT, PEERS, script, timeout_s=500)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 3
    assert [row for row in rows if row["verdict"] != "proven"] == []
