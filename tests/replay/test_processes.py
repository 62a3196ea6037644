"""Ports for child processes."""

from __future__ import annotations

import socket

import pytest

from bidroute.errors import ConfigError
from bidroute.replay import processes
from bidroute.replay.processes import PORTS_EACH, free_port


def test_ports_differ_and_are_none_of_those_that_clients_get() -> None:
    ports = [free_port() for _ in range(5)]
    assert len(set(ports)) == 5
    assert max(ports) < 32_768


def test_a_port_that_is_listened_on_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        assert taken.getsockname()[1] not in {free_port() for _ in range(PORTS_EACH)}


def test_no_port_left_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        monkeypatch.setattr(processes, "_ports", lambda: iter([taken.getsockname()[1]]))
        with pytest.raises(ConfigError, match="none of 100 ports of the loopback is free"):
            free_port()
