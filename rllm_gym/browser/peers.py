"""Whose the other end of a loopback connection is: the kernel knows, and is asked about that one connection."""

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
# sock_diag(7): a struct nlmsghdr, what inet_diag_req_v2 begins with, and its inet_diag_sockid, in network order.
_MESSAGE = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBBxI")
_CONNECTION = struct.Struct("!HH4s12x4s12x4xQ")
# The answer is a nlmsghdr and an inet_diag_msg: four bytes, the connection, three numbers, and then the user.
_USER = struct.Struct("=I")
_USER_AT = _MESSAGE.size + 4 + _CONNECTION.size + 12


def of_this_user(peer: tuple[str, int] | None, own: tuple[str, int]) -> bool:
    """Whether the peer of a TCP connection on loopback belongs to the user of this process, as far as can be seen.

    Args:
        peer: Its IPv4 address and port; ``None``, as asyncio says it, where it hung up at once.
        own: Ours.
    """
    if peer is None:
        return False
    user = _diagnosed(peer, own)
    return _listed(peer, own) if user is None else user == os.geteuid()


def _diagnosed(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """The peer's user, asked of the kernel directly: reading a list would take as long as there are sockets.

    ``None`` where it is not to be asked, or does not find the connection.
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
    # Of a connection that is gone the kernel finds whoever listens at its port: that is another's socket.
    if _CONNECTION.unpack_from(answer, _MESSAGE.size + 4)[:4] != _CONNECTION.unpack(ends)[:4]:
        return None
    return int(_USER.unpack_from(answer, _USER_AT)[0])


def _listed(peer: tuple[str, int], own: tuple[str, int]) -> bool:
    """By the list of all connections."""
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
