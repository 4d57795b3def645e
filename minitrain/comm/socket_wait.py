"""Waiting at sockets of this host, until a moment that no signal puts off.

Deadlines are times of ``time.monotonic()``.
"""

import os
import select
import socket
import struct
import time

# about what it costs to fall asleep and be woken
LISTEN_AWAKE_S = 100e-6
KNOCK_AGAIN_S = 0.01
# 24 days: it goes into a C int
MAX_POLL_MS = 2**31 - 1


def knock(line: socket.socket, address: str, deadline: float) -> None:
    """Connect to a door; TimeoutError where too many stand before it for too long."""
    line.setblocking(False)
    while True:
        try:
            line.connect(address)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError from None
            time.sleep(KNOCK_AGAIN_S)
        else:
            line.setblocking(True)
            return


def process_behind(line: socket.socket) -> int:
    """Who holds the other end, or opened the door to it: the kernel says so."""
    who = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("@iII", who)[0])


def until_readable(sock: socket.socket) -> select.poll:
    """What :func:`sleep` waits for: to make it takes longer than to ask it."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return poll


def sleep(until: select.poll, deadline: float) -> bool:
    """Wait for a socket; False at ``deadline``. No signal makes that later, as it does
    where the kernel keeps the time of a receive, which begins again.
    """
    left_ms = max(0.0, deadline - time.monotonic()) * 1000
    return bool(until.poll(min(left_ms, MAX_POLL_MS)))


def listen(
    peer: socket.socket, until: select.poll, size: int, deadline: float
) -> bytes:
    """The next word of ``size`` bytes, or none at the end: awake for a moment, then
    asleep. TimeoutError at ``deadline``.
    """
    give_up = time.perf_counter() + LISTEN_AWAKE_S
    while time.perf_counter() < give_up:
        try:
            return peer.recv(size, socket.MSG_DONTWAIT)
        except BlockingIOError:
            # with more ranks than cores, the one waited for needs this core
            os.sched_yield()
    if not sleep(until, deadline):
        raise TimeoutError
    return peer.recv(size)
