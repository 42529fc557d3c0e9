"""Where the agent works: an overlay over the base where the kernel allows it, a copy of the base otherwise.

Sent in as source text: standard library only.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import Any

from rllm_gym.sandbox.inside import confine, files, mounts

_SCRATCH = "/tmp"
_FLAGS = confine.MS_NOSUID | confine.MS_NODEV
_BIND = confine.MS_BIND | confine.MS_REC


@dataclass(slots=True)
class Workspace:
    """Descriptors of the trusted process on what the agent changes.

    Attributes:
        name: The path under which commands know it.
        root: The workspace as the agent sees it.
        upper: The overlay's upper directory, ``None`` without an overlay.
        base: The overlay's lower directory.
        marks: Without an overlay, what was copied in.
    """

    name: str
    root: int
    upper: int | None = None
    base: int | None = None
    marks: dict[str, files.Mark] = field(default_factory=dict)

    def fill(self, entries: list[list[Any]], body: bytes) -> None:
        """Copy a part of the base in: ``[path, kind, mode, size]`` each; the contents, one after the other, are ``body``."""
        at = 0
        for path, kind, mode, size in entries:
            data = body[at : at + size]
            at += size
            name = os.fsencode(path)
            if kind == "directory":
                os.mkdir(name, 0o700 | mode, dir_fd=self.root)
                continue
            if kind == "symlink":
                os.symlink(data, name, dir_fd=self.root)
            else:
                fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self.root)
                with open(fd, "wb") as file:
                    file.write(data)
                    os.fchmod(fd, mode)
            self.marks[path] = files.mark(files.Entry(path, kind, data, kind == "file" and bool(mode & 0o100)))

    def difference(self, budget: files.Budget, leave_out: frozenset[str]) -> files.Difference:
        if self.upper is not None and self.base is not None:
            return files.overlay_difference(self.upper, self.base, budget, leave_out)
        return files.copied_difference(self.root, self.marks, budget, leave_out)


def prepare(order: dict[str, Any], fds: list[int]) -> Workspace:
    """Make it as ordered.

    ``order["kind"]`` is ``"directory"`` (the workspace is there already), or ``"mounts"``: one tmpfs, capped in size
    and files, holds all that the agent can write. ``fds[0]``, if there, is a mount of the base that hangs nowhere yet;
    otherwise ``order["base"]`` may name the base below the host's tree. If an overlay cannot be made over it the
    workspace is empty, to be filled.
    """
    name = order["workdir"]
    if order["kind"] == "directory":
        return Workspace(name, os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    limits = order["limits"]
    options = f"size={limits['workspace_mb']}m,nr_inodes={limits['workspace_files']},mode=0755"
    confine.mount("tmpfs", _SCRATCH, "tmpfs", _FLAGS, options)
    for directory in ("lower", "upper", "work", "tmp", "home", "shm"):
        os.mkdir(f"{_SCRATCH}/{directory}")
    try:
        lower = _lower(order, fds)
        found = Workspace(name, -1)
        if lower and _overlay(name):
            found.upper = os.open(f"{_SCRATCH}/upper", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            found.base = os.open(f"{_SCRATCH}/lower", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            confine.mount(f"{_SCRATCH}/upper", name, None, _BIND)
        found.root = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        if order["host"]:
            mounts.detach(order["host"])
    confine.mount(f"{_SCRATCH}/home", order["home"], None, _BIND)
    confine.mount(f"{_SCRATCH}/shm", "/dev/shm", None, _BIND)
    os.chmod(f"{_SCRATCH}/tmp", 0o1777)
    confine.mount(f"{_SCRATCH}/tmp", _SCRATCH, None, _BIND)  # last: it hides the upper and lower directories from here on
    return found


def _lower(order: dict[str, Any], fds: list[int]) -> bool:
    try:
        if fds:
            mounts.attach(fds[0], f"{_SCRATCH}/lower")
        elif order["base"]:
            path, device, inode = order["base"]
            path = order["host"] + path
            status = os.stat(path)
            if not stat.S_ISDIR(status.st_mode) or [status.st_dev, status.st_ino] != [device, inode]:
                return False
            confine.mount(path, f"{_SCRATCH}/lower", None, _BIND)
        else:
            return False
    except OSError:
        return False
    finally:
        for fd in fds:
            os.close(fd)
    return True


def _overlay(name: str) -> bool:
    at = f"lowerdir={_SCRATCH}/lower,upperdir={_SCRATCH}/upper,workdir={_SCRATCH}/work,userxattr"
    try:
        confine.mount("overlay", name, "overlay", _FLAGS, at)
    except OSError:
        return False
    return True
