"""Who listens over TCP."""

from contextlib import suppress

import psutil


def listening(pid: int) -> set[str]:
    """Addresses at which process ``pid`` and all that it started listen."""
    found = set()
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                for connection in one.net_connections("tcp"):
                    if connection.status == psutil.CONN_LISTEN:
                        found.add(connection.laddr.ip)
    return found
