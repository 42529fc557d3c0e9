"""Who may use the way out of the browser: programs of this user, and nobody else's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rllm_gym.browser import socket_owner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")

CONNECT = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
with socket.socket() as connection:  # nothing more is imported: the other user may not read this Python's files
    connection.connect(("127.0.0.1", int(sys.argv[1])))
    sys.stdin.read()
"""


@pytest.fixture
def door() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(120)
        yield server


def ends(door: socket.socket) -> tuple[socket.socket, tuple[str, int], tuple[str, int]]:
    connection, peer = door.accept()
    return connection, peer, connection.getsockname()


def test_both_ways_of_asking_know_a_connection_of_this_user(door: socket.socket) -> None:
    with socket.create_connection(door.getsockname()):
        connection, peer, own = ends(door)
        with connection:
            assert socket_owner._owner_by_netlink(peer, own) in (
                os.geteuid(),
                None,
            )  # None: this machine's kernel is not asked
            assert socket_owner._listed_in_proc(peer, own)
            assert socket_owner.is_current_user(peer, own)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be somebody else")
def test_a_connection_of_another_user_is_recognized_in_both_ways(door: socket.socket) -> None:
    other = [sys.executable, "-c", CONNECT, str(door.getsockname()[1]), "65534"]
    with subprocess.Popen(other, stdin=subprocess.PIPE) as process:
        connection, peer, own = ends(door)
        with connection:
            assert socket_owner._owner_by_netlink(peer, own) in (65534, None)
            assert not socket_owner._listed_in_proc(peer, own)
            assert not socket_owner.is_current_user(peer, own)
        process.communicate(timeout=120)


def test_whoever_listens_at_the_port_of_a_connection_is_not_taken_for_it(door: socket.socket) -> None:
    assert socket_owner._owner_by_netlink(door.getsockname(), ("127.0.0.1", 1)) is None


def test_who_has_hung_up_is_not_let_in(door: socket.socket) -> None:
    assert not socket_owner.is_current_user(None, door.getsockname())
    assert not socket_owner.is_current_user(("127.0.0.1", 1), door.getsockname())
