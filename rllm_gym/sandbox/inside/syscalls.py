"""System calls that isolate this process: namespaces, mounts, capabilities, inherited resources.

Sent in as source text: standard library only. Each function raises ``OSError`` with the call's name when the kernel
refuses. Sources: the manual pages of the calls; ``linux/sched.h``, ``linux/mount.h``, ``linux/prctl.h``.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
from collections.abc import Iterable

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWTIME = 0x04000000, 0x08000000, 0x40000000, 0x00000080
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 32, 4096, 8192, 16384, 1 << 18

_SET_PARENT_DEATH_SIGNAL, _SET_DUMPABLE, _DROP_BOUNDING, _NO_NEW_PRIVILEGES = 1, 4, 24, 38
_SET_SUBREAPER, _AMBIENT, _AMBIENT_CLEAR_ALL = 36, 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
_CLONE = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine)
_CLOSE_RANGE = 436

# PyDLL holds the interpreter's lock during a call, which ``clone`` requires: the child is the thread that holds it.
_libc = ctypes.PyDLL(None, use_errno=True)
_prctl, _unshare, _mount, _syscall, _capset = _libc.prctl, _libc.unshare, _libc.mount, _libc.syscall, _libc.capset
_prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_unshare.argtypes = [ctypes.c_int]
_mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_syscall.argtypes = [ctypes.c_long] * 6
_syscall.restype = ctypes.c_long
_capset.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
_NO_CAPABILITIES = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24)


def _checked(result: int, call: str) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Move this process (with ``CLONE_NEWPID``: its future children) to new namespaces."""
    _checked(_unshare(flags), f"unshare({flags:#x})")


def fork_into(flags: int) -> int:
    """Fork into new namespaces; return 0 in the child, as ``os.fork``.

    With ``CLONE_NEWPID`` the child is pid 1 of its own namespace. Unlike ``unshare`` it leaves this process unchanged,
    so that it can be called repeatedly. No fork handlers run: the child should do little, and call ``os.fork`` before
    any substantial work.
    """
    if _CLONE is None:
        raise OSError(38, f"no number of the clone call known for machine {os.uname().machine!r}")
    return _checked(_syscall(_CLONE, flags | signal.SIGCHLD, 0, 0, 0, 0), f"clone({flags:#x})")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    _checked(_mount(encoded[0], encoded[1], encoded[2], flags, encoded[3]), f"mount({kind or source} on {target})")


def become_user(uid: int, gid: int) -> None:
    """Give up being root of the machine permanently."""
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def own_user_namespace(flags: int, *, uid: int, gid: int) -> None:
    """Enter a user namespace (and those of ``flags``, owned by it) where this process is ``uid`` with all capabilities.

    Earlier mounts are locked in it: no process inside can remove one or make it writable.
    """
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    _checked(_prctl(_SET_DUMPABLE, 1, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")  # otherwise its maps belong to root
    unshare(CLONE_NEWUSER | flags)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {outer_uid} 1"),
        ("gid_map", f"{gid} {outer_gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    if flags & CLONE_NEWNS:
        mount("none", "/", None, MS_REC | MS_PRIVATE)


def own_time_namespace() -> None:
    """Give the future children of this process a time namespace, where the kernel has them (Linux 5.6).

    The clocks do not change. The files in ``/proc/PID/ns`` stand for the namespaces, and two programs that share one
    share its file.
    """
    if os.path.exists("/proc/self/ns/time_for_children"):
        unshare(CLONE_NEWTIME)


def drop_bounding_set() -> None:
    """Empty the bounding set, so that executing a program never restores a capability."""
    for number in range(64):
        if _prctl(_DROP_BOUNDING, number, 0, 0, 0) == -1:
            if ctypes.get_errno() == 22:  # the previous number was the last one this kernel knows
                break
            _checked(-1, f"prctl(PR_CAPBSET_DROP, {number})")


def drop_capabilities() -> None:
    """Drop all capabilities of this process."""
    _prctl(_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0)  # absent from kernels without ambient capabilities
    header, data = _NO_CAPABILITIES
    _checked(_capset(header, data), "capset")


def no_new_privileges() -> None:
    """Prevent programs that this process starts from gaining rights: set-user-id has no effect."""
    _checked(_prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def be_undumpable() -> None:
    """Stop same-user processes from tracing this one or reading its memory, descriptors and environment in /proc."""
    _checked(_prctl(_SET_DUMPABLE, 0, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def be_dumpable() -> None:
    """Make this process dumpable again, so that it owns its /proc/self. Forks inherit the undumpable state."""
    _checked(_prctl(_SET_DUMPABLE, 1, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def be_subreaper() -> None:
    """Make this process adopt the orphans among its descendants, whatever sessions they created."""
    _checked(_prctl(_SET_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent() -> None:
    """Kill this process when the thread that started it ends. A change of user id resets this setting."""
    _checked(_prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def close_from(lowest: int) -> None:
    """Close every descriptor from ``lowest`` upwards."""
    if _syscall(_CLOSE_RANGE, lowest, 0xFFFFFFFF, 0, 0, 0) == -1:
        os.closerange(lowest, os.sysconf("SC_OPEN_MAX"))  # before Linux 5.9


def close_all_but(keep: Iterable[int]) -> None:
    """Close every descriptor that is not in ``keep``."""
    lowest = 0
    for fd in sorted(set(keep)):
        if fd > lowest and _syscall(_CLOSE_RANGE, lowest, fd - 1, 0, 0, 0) == -1:
            os.closerange(lowest, fd)
        lowest = fd + 1
    close_from(lowest)


def lower(kind: int, value: int) -> None:
    """Set a resource limit, soft and hard, never above its current value."""
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def flush_libc() -> None:
    """Flush the buffers of C code."""
    _libc.fflush(None)
