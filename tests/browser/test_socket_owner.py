"""Who may use the proxy of the browser: programs of this user only."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rllm_gym.envs.web.browser import socket_owner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

CONNECT = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
with socket.socket() as connection:  # nothing more is imported: the other user may not read this Python's files
    connection.connect(("127.0.0.1", int(sys.argv[1])))
    sys.stdin.read()
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(120)
        yield server


def accept_connection(listener: socket.socket) -> tuple[socket.socket, tuple[str, int], tuple[str, int]]:
    connection, peer = listener.accept()
    return connection, peer, connection.getsockname()


def test_both_methods_recognize_a_connection_of_this_user(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()):
        connection, peer, own = accept_connection(listener)
        with connection:
            assert socket_owner._owner_by_netlink(peer, own) in (
                os.geteuid(),
                None,
            )  # None: this kernel is not asked
            assert socket_owner._listed_in_proc(peer, own)
            assert socket_owner.is_current_user(peer, own)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can switch to another user")
def test_both_methods_recognize_a_connection_of_another_user(listener: socket.socket) -> None:
    other = [sys.executable, "-c", CONNECT, str(listener.getsockname()[1]), "65534"]
    with subprocess.Popen(other, stdin=subprocess.PIPE) as process:
        connection, peer, own = accept_connection(listener)
        with connection:
            assert socket_owner._owner_by_netlink(peer, own) in (65534, None)
            assert not socket_owner._listed_in_proc(peer, own)
            assert not socket_owner.is_current_user(peer, own)
        process.communicate(timeout=120)


def test_a_listening_socket_is_not_taken_for_a_connection(listener: socket.socket) -> None:
    assert socket_owner._owner_by_netlink(listener.getsockname(), ("127.0.0.1", 1)) is None


def test_a_closed_connection_is_refused(listener: socket.socket) -> None:
    assert not socket_owner.is_current_user(None, listener.getsockname())
    assert not socket_owner.is_current_user(("127.0.0.1", 1), listener.getsockname())
