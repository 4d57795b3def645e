"""What may listen while ranks work: gloo, on loopback, and nobody else."""

import os
import socket

from listening import listening

from minitrain.harness.run_dir import private_folder


def test_who_listens_everywhere_is_seen() -> None:
    """Else tests/project/test_pipeline.py, which looks at ranks, sees nothing."""
    with socket.create_server(("0.0.0.0", 0)):
        assert "0.0.0.0" in listening(os.getpid())
    # ranks of earlier tests may still listen, on loopback
    assert "0.0.0.0" not in listening(os.getpid())


def test_only_its_user_may_enter_the_folder_where_ranks_meet() -> None:
    with private_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
