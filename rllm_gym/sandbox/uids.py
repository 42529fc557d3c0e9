"""User ids that nobody on this machine is: as root, each worker is such a user, so that its limits are its own."""

from __future__ import annotations

import os
import socket
import threading

_LOWEST, _HIGHEST = 61_184, 65_519
"""Beyond what distributions assign and systemd takes for services, where every container maps ids too."""

_lock = threading.Lock()
_taken: dict[int, socket.socket] = {}
_next = 0


def take() -> int | None:
    """A spare user id, ``None`` where this process may not change its own. :func:`give_back` it."""
    global _next
    if os.geteuid() != 0 or not _is_mighty():
        return None
    with _lock:
        for _ in range(_HIGHEST - _LOWEST):
            uid = _LOWEST + (os.getpid() * 64 + _next) % (_HIGHEST - _LOWEST)
            _next += 1
            if uid not in _taken and _is_mapped(uid) and (claim := _claim(uid)) is not None:
                _taken[uid] = claim
                return uid
    return None


def _is_mighty() -> bool:
    """Whether this root may become others, end them and clean up after them: in a container it may lack the rights."""
    needed = sum(1 << capability for capability in (0, 1, 3, 5, 6, 7, 8))  # chown ... setpcap, see capabilities(7)
    with open("/proc/self/status") as file:
        effective = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    return effective & needed == needed


def give_back(uid: int | None) -> None:
    with _lock:
        if uid is not None and (claim := _taken.pop(uid, None)) is not None:
            claim.close()


def _claim(uid: int) -> socket.socket | None:
    """A name that one process of this machine can hold at a time, and that the kernel takes back when it ends."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0rllm-gym-sandbox-uid-{uid}")
    except OSError:
        claim.close()
        return None
    return claim


def _is_mapped(uid: int) -> bool:
    """Whether this user namespace knows the id."""
    with open("/proc/self/uid_map") as file:
        for line in file:
            inside, _, count = map(int, line.split())
            if inside <= uid < inside + count:
                return True
    return False
