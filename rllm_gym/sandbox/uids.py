"""Spare user ids. As root, each worker runs as a user id that nothing else on the machine uses, with its own limits."""

from __future__ import annotations

import os
import socket
import threading

_LOWEST, _HIGHEST = 61_184, 65_519
"""Above the ids that distributions and systemd assign, within the range that every container maps."""

_lock = threading.Lock()
_taken: dict[int, socket.socket] = {}
_next = 0


def acquire() -> int | None:
    """Return a spare user id; ``None`` if this process may not change its own. Release it with :func:`release`."""
    global _next
    if os.geteuid() != 0 or not _can_switch_users():
        return None
    with _lock:
        for _ in range(_HIGHEST - _LOWEST):
            uid = _LOWEST + (os.getpid() * 64 + _next) % (_HIGHEST - _LOWEST)
            _next += 1
            if uid not in _taken and _is_mapped(uid) and (claim := _claim(uid)) is not None:
                _taken[uid] = claim
                return uid
    return None


def _can_switch_users() -> bool:
    """Return whether root has the rights to use other user ids, which it may lack in a container."""
    needed = sum(1 << capability for capability in (0, 1, 3, 5, 6, 7, 8))  # chown ... setpcap, see capabilities(7)
    with open("/proc/self/status") as file:
        effective = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    return effective & needed == needed


def release(uid: int | None) -> None:
    with _lock:
        if uid is not None and (claim := _taken.pop(uid, None)) is not None:
            claim.close()


def _claim(uid: int) -> socket.socket | None:
    """Claim an id with an exclusive socket name, which the kernel releases when this process ends."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0rllm-gym-sandbox-uid-{uid}")
    except OSError:
        claim.close()
        return None
    return claim


def _is_mapped(uid: int) -> bool:
    """Return whether this user namespace maps the id."""
    with open("/proc/self/uid_map") as file:
        for line in file:
            inside, _, count = map(int, line.split())
            if inside <= uid < inside + count:
                return True
    return False
