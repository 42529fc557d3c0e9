"""Detached mounts: pass a directory from root into a sandbox that cannot see it, with mapped ownership.

Standard library only: one half of this runs in the trainer, the other inside the sandbox. Sources: open_tree(2),
move_mount(2), mount_setattr(2) ("idmapped mounts").
"""

from __future__ import annotations

import ctypes
import os

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}.get(os.uname().machine, -1)
_OPEN_TREE_CLONE, _F_EMPTY_PATH, _AT_FDCWD, _AT_EMPTY_PATH = 1, 4, -100, 0x1000
_READ_ONLY, _NOSUID, _NODEV, _IDMAP = 1, 2, 4, 0x00100000
_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.argtypes = [ctypes.c_long] * 6
_syscall.restype = ctypes.c_long


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    )


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return int(result)


def _address(text: ctypes.Array[ctypes.c_char]) -> int:
    return ctypes.addressof(text)


def clone_tree(path: str) -> int:
    """Return a descriptor of a new, detached mount of a directory. Root only."""
    name = ctypes.create_string_buffer(os.fsencode(path))
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
    return _checked(_syscall(_OPEN_TREE, _AT_FDCWD, _address(name), flags, 0, 0), f"open_tree({path})")


def map_owner(mount: int, user_namespace: int) -> None:
    """Make a mount read-only and map the owners of its files through ``user_namespace``."""
    attributes = _MountAttributes(_READ_ONLY | _NOSUID | _NODEV | _IDMAP, 0, 0, user_namespace)
    empty = ctypes.create_string_buffer(b"")
    _checked(
        _syscall(
            _MOUNT_SETATTR,
            mount,
            _address(empty),
            _AT_EMPTY_PATH,
            ctypes.addressof(attributes),
            ctypes.sizeof(attributes),
        ),
        "mount_setattr",
    )


def attach(mount: int, target: str) -> None:
    """Attach a detached mount to this process's mount tree."""
    empty, name = ctypes.create_string_buffer(b""), ctypes.create_string_buffer(os.fsencode(target))
    _checked(
        _syscall(_MOVE_MOUNT, mount, _address(empty), _AT_FDCWD, _address(name), _F_EMPTY_PATH),
        f"move_mount(to {target})",
    )


def detach(target: str) -> None:
    """Remove a mount and everything below it from this process's mount tree."""
    _checked(_libc.umount2(os.fsencode(target), _DETACH), f"umount2({target})")


def enter_root(directory: str) -> None:
    """Make a mounted directory the root of this process's mount namespace, and remove the old root's tree."""
    os.chdir(directory)
    here = ctypes.create_string_buffer(b".")
    _checked(_syscall(_PIVOT_ROOT, _address(here), _address(here), 0, 0, 0, 0), f"pivot_root({directory})")
    detach(".")
    os.chdir("/")
