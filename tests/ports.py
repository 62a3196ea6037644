"""Ports for what the tests start."""

from __future__ import annotations

import itertools
import os
import socket

FIRST, BLOCKS, BLOCK = 12_000, 200, 100  # below the ports that systems hand out to clients

_mine = itertools.cycle(range(FIRST + os.getpid() % BLOCKS * BLOCK, FIRST + (os.getpid() % BLOCKS + 1) * BLOCK))


def free_port() -> int:
    """A port that nobody listens on, and that neither a client nor another process of the tests takes meanwhile."""
    for port in _mine:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
