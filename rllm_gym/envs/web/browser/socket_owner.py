"""Finds the user at the other end of a loopback connection by asking the kernel about that connection."""

from __future__ import annotations

import os
import socket
import struct

_ANSWER_S = 1.0
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_ANY_STATE = 2**32 - 1
_ANY_COOKIE = 2**64 - 1
# sock_diag(7): a struct nlmsghdr, the beginning of inet_diag_req_v2, and its inet_diag_sockid, in network order.
_MESSAGE = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBBxI")
_CONNECTION = struct.Struct("!HH4s12x4s12x4xQ")
# The answer is a nlmsghdr and an inet_diag_msg: four bytes, the connection, three numbers, and then the user.
_USER = struct.Struct("=I")
_USER_AT = _MESSAGE.size + 4 + _CONNECTION.size + 12


def is_current_user(peer: tuple[str, int] | None, own: tuple[str, int]) -> bool:
    """Return whether the peer of a loopback TCP connection belongs to this process's user, if that can be determined.

    Args:
        peer: Its IPv4 address and port; ``None``, as in asyncio, if it closed the connection at once.
        own: This end's address and port.
    """
    if peer is None:
        return False
    user = _owner_by_netlink(peer, own)
    return _listed_in_proc(peer, own) if user is None else user == os.geteuid()


def _owner_by_netlink(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Query the peer's user from the kernel directly.

    Reading a list would take time proportional to the number of sockets. Returns ``None`` if the kernel cannot be
    asked, or does not find the connection.
    """
    family: int | None = getattr(socket, "AF_NETLINK", None)
    if family is None:  # not Linux
        return None
    ends = _CONNECTION.pack(peer[1], own[1], socket.inet_aton(peer[0]), socket.inet_aton(own[0]), _ANY_COOKIE)
    question = _QUESTION.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, _ANY_STATE) + ends
    head = _MESSAGE.pack(_MESSAGE.size + len(question), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
    try:
        with socket.socket(family, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(_ANSWER_S)
            kernel.send(head + question)
            answer = kernel.recv(4096)
    except OSError:  # a sandbox without it
        return None
    if len(answer) < _USER_AT + _USER.size or _MESSAGE.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    # For a closed connection the kernel returns the socket that listens at its port, which may belong to another user.
    if _CONNECTION.unpack_from(answer, _MESSAGE.size + 4)[:4] != _CONNECTION.unpack(ends)[:4]:
        return None
    return int(_USER.unpack_from(answer, _USER_AT)[0])


def _listed_in_proc(peer: tuple[str, int], own: tuple[str, int]) -> bool:
    """Return whether the peer belongs to this user, from the list of all connections."""
    theirs, ours = _as_listed(*peer), _as_listed(*own)
    try:
        with open("/proc/net/tcp", encoding="ascii") as table:
            for line in table:
                words = line.split()
                if words[1] == theirs and words[2] == ours:
                    return int(words[7]) == os.geteuid()
    except OSError:
        return True  # no such list: not Linux
    return False


def _as_listed(address: str, port: int) -> str:
    (number,) = struct.unpack("=I", socket.inet_aton(address))
    return f"{number:08X}:{port:04X}"
