"""Who answers at the endpoint without being a run of minitrain ends it in one line."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from one_line import refusal
from waiting import GENEROUS_S

from minitrain.comm.interfaces import Interface
from minitrain.harness.host_store import find
from minitrain.harness.hosts import Hosts

NO_RUN = "what answers there is no run of minitrain, or one that has just ended"


@pytest.fixture(params=[b"SSH-2.0-OpenSSH_9.2\r\n", b"", None])
def stranger(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of who says something else, or nothing, or closes at once (None)."""
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as door:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    line, _ = door.accept()
                    if request.param is None:
                        line.close()
                    else:
                        line.sendall(request.param)
                        held.append(line)

        threading.Thread(target=answer, daemon=True).start()
        yield int(door.getsockname()[1])
        # accept() would not end with the socket
        door.shutdown(socket.SHUT_RDWR)
    for line in held:
        line.close()


def test_stranger_at_the_endpoint_is_one_line(stranger: int) -> None:
    """Before, a traceback, or no end at all."""
    hosts = Hosts(2, "127.0.0.1", stranger, Interface("lo", "127.0.0.1"), 1)
    began = time.monotonic()
    line = refusal(find, hosts, 3)
    assert line == f"--rdzv-endpoint: 127.0.0.1:{stranger}: {NO_RUN}"
    assert time.monotonic() - began < GENEROUS_S
