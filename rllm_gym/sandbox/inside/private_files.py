"""Gives a sandbox files of its own: the kernel keeps locks, leases and watches per file, not per mount.

A file that is bind-mounted in two sandboxes is one file for ``flock``, ``fcntl`` and ``inotify``, and the two programs
can signal to each other through it. A file seen through an overlay belongs to that overlay. This module rebuilds the
view that ``bwrap`` has mounted: every directory of the machine as a read-only overlay, new device files, the rest
as it is. Sent in as source text: standard library only.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from typing import Any

from rllm_gym.sandbox.inside import mounts, syscalls

_KEEP = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC


def isolate(settings: Mapping[str, Any]) -> list[str]:
    """Replace this process's root by the same view with files of its own. No hostile code may run before.

    Args:
        settings: ``host``: the path of the machine's tree; ``keep_host``: whether it stays there; ``scratch``: an empty
            directory; ``proc``: whether to mount ``/proc``; ``devices``: the device files; ``own``: mounts that are the
            sandbox's already; ``sources``: path inside of every other mount, with the directory of the machine that it
            comes from and a name in it, or ``""`` for the directory itself.

    Returns:
        The paths inside whose files are still those of the machine, because the kernel refused.
    """
    host, scratch = settings["host"], settings["scratch"]
    if settings["proc"]:
        syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
    points = [point for point in _mount_points() if not _below(point, (host, "/proc"))]
    syscalls.mount("tmpfs", scratch, "tmpfs", syscalls.MS_NOSUID, "mode=0755")
    root, empty = f"{scratch}/root", f"{scratch}/empty"
    os.mkdir(root)
    os.mkdir(empty)
    overlays: dict[str, str] = {}
    shared: list[str] = []

    def overlay(directory: str) -> str:
        """Return the path of an overlay of a directory; ``""`` if the kernel refuses it."""
        if directory not in overlays:
            overlays[directory] = target = f"{scratch}/{len(overlays)}"
            os.mkdir(target)
            options = f"lowerdir={_escaped(directory)}:{empty},userxattr"
            try:
                syscalls.mount("overlay", target, "overlay", _KEEP & ~syscalls.MS_NOEXEC, options)
            except OSError:
                overlays[directory] = ""
        return overlays[directory]

    syscalls.mount("/", root, None, syscalls.MS_BIND)
    for point in points:
        source, flags = point, 0
        if point in settings["devices"]:
            source, flags = _device(point, scratch), syscalls.MS_RDONLY | syscalls.MS_NOSUID
        elif point in settings["sources"]:
            directory, name = settings["sources"][point]
            if found := overlay(host + directory):
                source = f"{found}/{name}" if name else found
        elif point not in settings["own"]:  # a mount of the machine below one of those directories
            source = overlay(point) or point
        if source == point and point not in settings["own"]:
            shared.append(point)
        syscalls.mount(source, root + point, None, syscalls.MS_BIND)
        if flags:
            flags |= os.statvfs(root + point).f_flag & _KEEP
            syscalls.mount("none", root + point, None, syscalls.MS_REMOUNT | syscalls.MS_BIND | flags)
    syscalls.mount("/proc", f"{root}/proc", None, syscalls.MS_BIND | syscalls.MS_REC)
    if settings["keep_host"]:
        syscalls.mount(host, root + host, None, syscalls.MS_MOVE)
    mounts.enter_root(root)
    return shared


def _mount_points() -> list[str]:
    """Return the mount points below ``/``, parents first."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        fields = [line.split(" ") for line in file]
    points = [field[4].encode("utf-8", "surrogateescape").decode("unicode_escape") for field in fields]
    found = [point.encode("latin-1").decode("utf-8", "surrogateescape") for point in points]
    return list(dict.fromkeys(point for point in found if point != "/"))


def _below(path: str, directories: tuple[str, ...]) -> bool:
    return any(path == directory or path.startswith(f"{directory}/") for directory in directories)


def _escaped(path: str) -> str:
    return "".join(f"\\{character}" if character in "\\:," else character for character in path)


def _device(point: str, scratch: str) -> str:
    """Return a new device file like the one at ``point``; ``point`` if this user may not make one."""
    device = f"{scratch}/{os.path.basename(point)}"
    with contextlib.suppress(OSError):
        os.mknod(device, stat.S_IFCHR | 0o666, os.stat(point).st_rdev)
        os.chmod(device, 0o666)
        os.close(os.open(device, os.O_RDONLY | os.O_NONBLOCK))
        return device
    return point
