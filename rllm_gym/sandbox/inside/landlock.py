"""Landlock by ctypes: restricts which files a process may use where no mount namespace can hide the others.

Sent in as source text: standard library only. Supports ABI 1 (Linux 5.13) to 7: rights that the running kernel lacks
are omitted, and rights of later kernels are not requested. Landlock does not restrict ``stat``, ``chdir`` and
``readlink``; nor ``chmod``, ``utime``, or, before ABI 6, signals to processes of the same user.
``seccomp.deny_list(shared_user=True)`` handles those that change something. Source: landlock(7).
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_VERSION, _PATH_BENEATH = 1, 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE, _MAKE_DEVICE, _MAKE = 0b11 << 4, (1 << 6) | (1 << 11), (0b111 << 7) | (1 << 10) | (1 << 12)
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
_READABLE = _EXECUTE | _READ_FILE | _READ_DIR
_WRITABLE = _READABLE | _WRITE_FILE | _REMOVE | _MAKE | _REFER | _TRUNCATE
_DEVICE = _READ_FILE | _WRITE_FILE

_TCP = 0b11  # bind, connect: ABI 4
_SCOPES = 0b11  # abstract Unix sockets, signals: ABI 6

_libc = ctypes.CDLL(None, use_errno=True)


def abi() -> int:
    """Return the Landlock version of this kernel; 0 if it has none, Landlock is not enabled, or a filter refuses it."""
    version: int = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    return max(0, version)


def ruleset(
    readable: Iterable[str], writable: Iterable[str], devices: Iterable[str] = (), without: Iterable[str] = ()
) -> int:
    """Create a set of rules; return it as a file descriptor that is closed on exec.

    Any number of forked children may :func:`restrict` themselves to it.

    Args:
        readable: Files and directories (recursively) that may be read and executed. Missing ones are skipped.
        writable: Directories in which everything is allowed except creating device files.
        devices: Device files that may be read and written.
        without: Directories below readable ones that are excluded. Their siblings are listed now: entries that appear
            later are inaccessible. The *names* in them can be listed, but not read.

    Raises:
        OSError: The kernel has no Landlock, or refused.
    """
    version = abi()
    if version == 0:
        raise OSError(errno.EOPNOTSUPP, "this kernel has no Landlock (Linux 5.13), or it is not enabled")
    handled = _WRITABLE | _MAKE_DEVICE
    handled &= ~(_REFER if version < 2 else 0) & ~(_TRUNCATE if version < 3 else 0)
    handled |= _IOCTL_DEVICE if version >= 5 else 0
    attributes = struct.pack("=QQQ", handled, _TCP, _SCOPES)[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = _checked(_libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)))
    try:
        excluded = {os.path.realpath(path) for path in without}
        for path in readable:
            _allow_except(rules, os.path.realpath(path), _READABLE & handled, excluded)
        for path in writable:
            _allow(rules, path, _WRITABLE & handled)
        for path in devices:
            _allow(rules, path, _DEVICE)
    except BaseException:
        os.close(rules)
        raise
    return rules


def restrict(rules: int) -> None:
    """Apply the rules permanently to the calling thread and everything it starts. ``no_new_privs`` must be set.

    This also blocks TCP (ABI 4), other processes' abstract Unix sockets and signals to processes outside (ABI 6), and
    the memory and ``/proc`` details of any process outside.

    Raises:
        OSError: The kernel refused.
    """
    _checked(_libc.syscall(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0)))


def _allow_except(rules: int, path: str, rights: int, excluded: set[str]) -> None:
    if path in excluded:
        return
    if not any(other.startswith(f"{path.rstrip('/')}/") for other in excluded):
        _allow(rules, path, rights)
        return
    _allow(rules, path, rights & _READ_DIR)
    with os.scandir(path) as entries:
        for entry in entries:
            # The target of a link has a rule of its own, or none.
            if not entry.is_symlink():
                _allow_except(rules, entry.path, rights, excluded)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return  # an inaccessible path needs no rule
    try:
        if not stat.S_ISDIR(os.fstat(target).st_mode):
            rights &= _OF_FILES
        if rights:
            rule = struct.pack("=Qi", rights, target)
            _checked(_libc.syscall(_ADD_RULE, ctypes.c_int(rules), _PATH_BENEATH, rule, ctypes.c_uint32(0)))
    finally:
        os.close(target)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"Landlock: {os.strerror(number)}")
    return result
