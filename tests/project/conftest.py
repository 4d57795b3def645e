"""What the tests of disturbed pipelines share."""

import fcntl
import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from copies import Undisturbed, make_undisturbed


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """A small copy of the project that was made in peace; trials lie beside it. Of
    several pytest-xdist workers the first makes it for all.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "chaos"
    folder.mkdir(exist_ok=True)
    notes = folder / "undisturbed.json"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not notes.exists():
            # beside what is left of one that failed
            done = make_undisturbed(folder / f"undisturbed-{os.getpid()}")
            notes.write_text(json.dumps(asdict(done), default=str))
        known = json.loads(notes.read_text())
    return Undisturbed(**{**known, "folder": Path(known["folder"])})
