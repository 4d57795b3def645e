"""Tests that need IPv6, which not every machine has."""

import socket

import pytest


def require_ipv6() -> None:
    """Skip the test where this machine's loopback has no address of IPv6."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"needs IPv6 on loopback: {error}")
