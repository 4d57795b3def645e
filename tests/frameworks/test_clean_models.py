"""No false alarm: a right model of transformers is proven."""

import pytest
from example_loops import PEERS
from project import ROOT, run_in


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_right_model_is_proven() -> None:
    """With attention, dropout and masked labels."""
    if not PEERS.exists():
        pytest.skip("no .venv-peers; make test makes it")
    script = ROOT / "tests/support/clean_models.py"
    done = run_in(ROOT, PEERS, script, timeout_s=500)
    assert done.returncode == 0, done.stderr[-2000:]
