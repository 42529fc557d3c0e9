"""The agent's workspace: an overlay over the base where the kernel allows it, a copy of the base otherwise.

Sent in as source text: standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from dataclasses import dataclass, field
from typing import Any

from rllm_gym.sandbox.inside import files, mounts, syscalls

_BLOCK = 4096
_ADOPTED_BYTES, _ADOPTED_FILES, _ADOPTED_NAMES = 8 << 30, 1_000_000, 1 << 30
_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV
_BIND = syscalls.MS_BIND | syscalls.MS_REC


@dataclass(slots=True)
class Workspace:
    """The trusted process's descriptors of the workspace.

    Attributes:
        name: The path of the workspace for commands.
        root: The workspace as the agent sees it.
        upper: The overlay's upper directory; ``None`` without an overlay.
        base: The overlay's lower directory.
        marks: Without an overlay: what was copied in.
        filled_bytes: Size of what was copied in.
        filled_files: Number of its files and directories.
    """

    name: str
    root: int
    upper: int | None = None
    base: int | None = None
    marks: dict[str, files.Mark] = field(default_factory=dict)
    filled_bytes: int = 0
    filled_files: int = 0

    def fill(self, entries: list[list[Any]], body: bytes) -> None:
        """Copy a part of the base in: ``[path, kind, mode, size]`` for each entry, with their contents concatenated."""
        at = 0
        for path, kind, mode, size in entries:
            data = body[at : at + size]
            at += size
            self.filled_bytes += size + _BLOCK
            self.filled_files += 1
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
            self.marks[path] = files.mark(files.FileEntry(path, kind, data, kind == "file" and bool(mode & 0o100)))

    def renew(self, rights: contextlib.AbstractContextManager[None]) -> None:
        """Create the directory again if it was removed, which no mount prevents in the lower tiers."""
        held, found = os.fstat(self.root), None
        with contextlib.suppress(FileNotFoundError):
            found = os.lstat(self.name)
        if found is not None and (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino):
            return
        with rights:
            if found is not None:
                os.rename(self.name, f"{self.name}.{secrets.token_hex(8)}")
            os.mkdir(self.name, 0o700)
            os.close(self.root)
            self.root = open_directory(self.name)

    def difference(self, budget: files.ReadBudget, leave_out: frozenset[str]) -> files.TreeDifference:
        if self.upper is not None and self.base is not None:
            return files.overlay_difference(self.upper, self.base, budget, leave_out)
        return files.copied_difference(self.root, self.marks, budget, leave_out)


def prepare(request: dict[str, Any]) -> Workspace:
    """Create the workspace in its own mount and user namespaces.

    One tmpfs with limited size and file count holds everything the agent can write. ``request["base"]`` may name a
    directory of the host, whose tree this process can see at ``request["host"]`` until this function ends. If no
    overlay can be made over it, the workspace is empty, to be filled.

    If this process is root of the machine, it changes to the user ``request["user"]``.
    """
    base = None
    try:
        if request["base"]:
            base = _base_of(request)
        if request["user"] is not None:
            # While still root: a process in its own user namespace cannot undo a mount that came from outside.
            mounts.detach(request["host"])
            syscalls.become_user(request["user"], request["user"])
            syscalls.own_user_namespace(syscalls.CLONE_NEWNS, uid=request["inside"], gid=request["inside"])
        syscalls.own_time_namespace()
        return _lay_out(request, base)
    finally:
        if base is not None:
            os.close(base)
        if request["user"] is None:
            mounts.detach(request["host"])


def take_over(name: str, *, adopt: bool) -> Workspace:
    """Use a directory of the container this process is in; create it if it does not exist.

    Args:
        name: Path of the directory.
        adopt: Whether its content is the base. Otherwise it must be empty, to be filled.

    Raises:
        OSError: It cannot be created, or is not empty.
    """
    os.makedirs(name, exist_ok=True)
    found = Workspace(name, open_directory(name))
    if adopt:
        budget = files.ReadBudget(_ADOPTED_BYTES, _ADOPTED_FILES, _ADOPTED_NAMES)
        for entry in files.walk(found.root, budget, frozenset({".git"})):
            found.marks[entry.path] = files.mark(entry)
    elif os.listdir(name):
        raise OSError(errno.ENOTEMPTY, "there is something in the workspace already", name)
    return found


def open_directory(directory: str) -> int:
    """Return a descriptor of a directory."""
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _base_of(request: dict[str, Any]) -> int | None:
    """Return the base as a detached mount whose files the agent owns; ``None`` if that is not possible."""
    base = request["base"]
    path = request["host"] + base["path"]
    try:
        status = os.stat(path)
        if [status.st_dev, status.st_ino] != [base["device"], base["inode"]]:
            return None  # mounted after this process saw the host's tree
        fd = mounts.clone_tree(path)
    except OSError:
        return None
    try:
        if request["user"] is not None:
            namespace = _namespace_of(base["uid"], base["gid"], request["user"])
            try:
                mounts.map_owner(fd, namespace)
            finally:
                os.close(namespace)
    except OSError:  # a kernel or a file system without mapped owners
        os.close(fd)
        return None
    return fd


def _namespace_of(uid: int, gid: int, user: int) -> int:
    """Return a descriptor of a user namespace in which ``uid`` and ``gid`` are ``user`` outside."""
    go_read, go_write = os.pipe()
    ready_read, ready_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            syscalls.unshare(syscalls.CLONE_NEWUSER)
            os.close(go_write)
            os.write(ready_write, b".")
            os.read(go_read, 1)
        finally:
            os._exit(0)
    os.close(ready_write)
    os.close(go_read)
    try:
        os.read(ready_read, 1)
        for name, number in (("uid_map", uid), ("gid_map", gid)):
            with open(f"/proc/{child}/{name}", "w") as file:
                file.write(f"{number} {user} 1")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready_read)
        os.close(go_write)
        os.waitpid(child, 0)


def _lay_out(request: dict[str, Any], base: int | None) -> Workspace:
    name, scratch, limits = request["workdir"], request["scratch"], request["limits"]
    options = f"size={limits['workspace_mb']}m,nr_inodes={limits['workspace_files']},mode=0755"
    syscalls.mount("tmpfs", scratch, "tmpfs", _FLAGS, options)
    for directory in ("lower", "upper", "work", "agent", "agent/tmp", "agent/shm"):
        os.mkdir(f"{scratch}/{directory}")
    found = Workspace(name, -1)
    if base is not None and _overlay(base, scratch, name):
        found.upper, found.base = open_directory(f"{scratch}/upper"), open_directory(f"{scratch}/lower")
    else:
        syscalls.mount(f"{scratch}/upper", name, None, _BIND)
    found.root = open_directory(name)
    os.chmod(f"{scratch}/agent/tmp", 0o1777)
    syscalls.mount(f"{scratch}/agent", scratch, None, _BIND)  # hides the upper and lower directories from here on
    return found


def _overlay(base: int, scratch: str, name: str) -> bool:
    try:
        mounts.attach(base, f"{scratch}/lower")
        directories = f"lowerdir={scratch}/lower,upperdir={scratch}/upper,workdir={scratch}/work,userxattr"
        syscalls.mount("overlay", name, "overlay", _FLAGS, directories)
    except OSError:
        return False
    return True
