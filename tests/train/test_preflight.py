"""What is found before any process is launched."""

from pathlib import Path

import pytest
from one_line import refusal
from tiny import tiny_params

from minitrain.comm.interfaces import Interface
from minitrain.train.run import Job, preflight


@pytest.mark.slow
def test_label_is_refused_with_nccl() -> None:
    """Before, ranks were started, and NCCL was told a name that it cuts short."""
    interface = Interface("eth0:1", "10.0.0.1")
    here = Path("/no/such")
    job = Job(tiny_params(), "nccl", 2, here, here, here)
    assert refusal(preflight, job, 1, interface) == (
        "--interface = 'eth0:1': must have no colon with nccl, which takes what "
        "follows it for a port"
    )
