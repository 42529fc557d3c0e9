"""Tier B inside: how a worker without namespaces confines a program, monitors it and cleans up.

Landlock decides which files are accessible, seccomp denies what namespaces would have hidden, and a spare user id (if
the worker is root) separates signals, ownership and the process count. Limits that no system call can enforce here are
monitored by the worker while the program runs. Sent in as source text: standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rllm_gym.sandbox.inside import landlock, named_memory, processes, seccomp, syscalls

_DAC_OVERRIDE, _DAC_READ_SEARCH, _SETPCAP = 1, 2, 8
_KEEP_CAPABILITIES, _AMBIENT, _AMBIENT_RAISE = 8, 47, 2
_CAPABILITY_VERSION_3 = 0x20080522
_BOMB = 8
"""The factor on the process limit for the kernel's own limit, which counts all processes of an ordinary user
together."""

_OWN_FILES = 6
"""Number of entries in a program's scratch directory that it did not create."""

_LONG_PATH = 3500
"""Length of a path from which its directory is read through a descriptor. The kernel's limit is 4096."""

_FILL = stat.S_IWUSR | stat.S_IXUSR
_HIDDEN_S = 0.25
"""CPU seconds after which a process that cannot be inspected is treated as one that hides."""

_libc = ctypes.CDLL(None, use_errno=True)


class LandlockConfinement:
    """The confinement of the programs of one worker.

    Args:
        scratch: A directory of the worker in which every program gets its own directory.
        uid: If the worker is root: the spare user id of its programs. No two workers share one.
        readable: Files and directories that programs can read.
        without: Directories below those that programs cannot read.
        devices: Device files that programs may use.
    """

    def __init__(
        self, scratch: str, uid: int | None, readable: Iterable[str], without: Iterable[str], devices: Iterable[str]
    ) -> None:
        self.scratch, self.uid = scratch, uid
        self._abi = landlock.abi()
        named_memory.install()
        # If Python is in root's home, the spare user gets the right to enter closed directories. It must not change the
        # files there either. Landlock still decides which of them it can read.
        self._passes = 0
        if uid is not None and not all(open_to_others(path) for path in readable):
            self._passes = _passing_capability()
        self._shared = uid is None or self._passes != 0
        self._rules = landlock.ruleset(readable, [scratch], devices, without)
        self._filter = b"" if self._shared and self._abi < 6 else self._make_filter(0)
        if uid is not None:
            # Programs own the content of their directory, but cannot create files next to it or change its mode.
            os.chmod(scratch, 0o711)

    def _make_filter(self, pid: int) -> bytes:
        return seccomp.deny_list(
            sockets="none", watched=True, shared_user=self._shared, landlock_abi=self._abi, own_pid=pid
        )

    # Called in the fork that becomes the program

    def become_user(self, limits: Mapping[str, Any]) -> None:
        """Change to the program's user and apply the process limit, before anything is written."""
        syscalls.be_dumpable()  # otherwise its files in /proc belong to root
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # if memory runs out, the kernel should end the program rather than the trainer
        if self.uid is None:
            syscalls.lower(resource.RLIMIT_NPROC, _tasks_of(os.getuid()) + _BOMB * limits["processes"])
        else:
            syscalls.lower(resource.RLIMIT_NPROC, limits["processes"])
            _become(self.uid, self._passes)
        syscalls.die_with_parent()

    def enter(self, home: str) -> None:
        """Apply the final restrictions: nothing outside is accessible afterwards. ``no_new_privs`` must be set."""
        named_memory.begin(f"{home}/shm")
        landlock.restrict(self._rules)
        seccomp.install(self._filter or self._make_filter(os.getpid()))

    # Called in the worker

    def exceeded(self, family: Iterable[int], tasks: int, limits: Mapping[str, Any]) -> str:
        """Return the ``Ended`` value of a program that exceeds its processes or scratch space; ``""`` otherwise."""
        if tasks > limits["processes"]:
            return "processes limit"
        most, count = limits["scratch_mb"] << 20, limits["scratch_files"] + _OWN_FILES
        size, files = _usage(self.scratch, most, count)
        with self.as_program():
            unlinked = _unlinked(family)
        return "scratch limit" if unlinked is None or size + unlinked > most or files > count else ""

    @contextlib.contextmanager
    def as_program(self) -> Iterator[None]:
        """Run the block with the program's rights to files and to /proc, which root in a container may lack."""
        if self.uid is None:
            yield
            return
        gid = os.getegid()
        _libc.setfsgid(self.uid)
        _libc.setfsuid(self.uid)
        try:
            yield
        finally:
            _libc.setfsuid(0)
            _libc.setfsgid(gid)


def open_to_others(path: str) -> bool:
    """Return whether any user may enter all directories above ``path``."""
    parts = os.path.realpath(path).split("/")
    for end in range(1, len(parts)):
        with contextlib.suppress(FileNotFoundError):
            if not os.stat("/".join(parts[:end]) or "/").st_mode & stat.S_IXOTH:
                return False
    return True


def _passing_capability() -> int:
    """Return the weaker available capability of the two that allow entering closed directories."""
    with open("/proc/self/status") as file:
        effective = int(next(line for line in file if line.startswith("CapEff:")).split()[1], 16)
    for capability in (_DAC_READ_SEARCH, _DAC_OVERRIDE):
        if effective >> capability & 1:
            return capability
    raise PermissionError(
        "Python is in a directory that other users cannot enter, and this root user has no right to give the sandbox "
        "access to it: move Python, or run chmod o+x on the directory"
    )


def _become(uid: int, capability: int) -> None:
    if not capability:
        syscalls.drop_bounding_set()
        syscalls.become_user(uid, uid)
        return
    _checked(_libc.prctl(_KEEP_CAPABILITIES, 1, 0, 0, 0), "prctl(PR_SET_KEEPCAPS)")
    syscalls.become_user(uid, uid)
    kept = 1 << capability
    _set_capabilities(kept | 1 << _SETPCAP, kept)
    _checked(_libc.prctl(_AMBIENT, _AMBIENT_RAISE, capability, 0, 0), "prctl(PR_CAP_AMBIENT_RAISE)")
    syscalls.drop_bounding_set()
    _set_capabilities(kept, kept)


def _set_capabilities(permitted: int, inheritable: int) -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(permitted, permitted, inheritable, 0, 0, 0)
    _checked(_libc.capset(header, data), "capset")


def _checked(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def _tasks_of(uid: int) -> int:
    """Return the number of threads of a user, as RLIMIT_NPROC counts them."""
    count = 0
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                count += os.stat(f"/proc/{name}/task").st_nlink - 2
    return count


def _usage(directory: str, size_limit: int, count_limit: int) -> tuple[int, int]:
    """Return the bytes and entries below ``directory``.

    Stops above either limit. Content that cannot be counted counts as too much.
    """
    size, count = 0, 0
    todo, opened = [directory], set()
    with contextlib.ExitStack() as held:
        while todo and size <= size_limit and count <= count_limit:
            path = listed = todo.pop()
            try:
                if len(os.fsencode(path)) > _LONG_PATH:
                    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                    held.callback(os.close, fd)
                    listed = f"/proc/self/fd/{fd}"
                with os.scandir(listed) as entries:
                    for entry in entries:
                        count += 1
                        status = entry.stat(follow_symlinks=False)
                        size += status.st_blocks * 512
                        if stat.S_ISDIR(status.st_mode):
                            todo.append(entry.path)
                        if size > size_limit or count > count_limit:
                            break
            except PermissionError:
                # Its owner may fill it without reading it. A directory that its owner may not enter stays as empty as
                # it was created.
                try:
                    if os.lstat(path).st_mode & _FILL != _FILL:
                        continue
                    if path not in opened:
                        opened.add(path)
                        _make_readable(path)
                        todo.append(path)
                        continue
                except FileNotFoundError:
                    continue
                except OSError:
                    pass
                return size_limit + 1, count  # it is not this process's to open, or was closed again at once
            except OSError as error:
                if error.errno == errno.EMFILE:  # too deep
                    return size_limit + 1, count
                # moved or removed since it was listed
    return size, count


def _make_readable(directory: str) -> None:
    """Let the owner of a hostile directory, as which this process acts, read it."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)


def _unlinked(family: Iterable[int]) -> int | None:
    """Return the bytes of deleted files that are still open in one of the processes.

    Returns ``None`` if a process that has used CPU time cannot be inspected.
    """
    sizes: dict[tuple[int, int], int] = {}
    for pid in family:
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    status = os.stat(f"/proc/{pid}/fd/{fd}")
                    if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                        sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
        except PermissionError:
            # A fork of the worker cannot be inspected for a few milliseconds, until it has become the program. The same
            # holds for a process that is ending and has already released its memory.
            process = processes.process(pid)
            if process is not None and process.cpu_s > _HIDDEN_S and processes.memory([pid], sys.maxsize):
                return None
        except OSError:
            continue  # it ended during the inspection
    return sum(sizes.values())


def remove(directory: str) -> None:
    """Remove a directory that a hostile program has filled; see :func:`empty`."""
    empty(directory)
    os.rmdir(directory)


def empty(directory: str) -> None:
    """Remove everything that a hostile program, which has ended, left in a directory, whatever the depth and modes.

    Directories are moved up before they are emptied, so that no path exceeds the file system's limit.
    """
    number, prefix = 0, os.urandom(8).hex()  # a name that the program could not have used
    while True:
        with os.scandir(directory) as entries:
            children = list(entries)
        if not children:
            return
        for child in children:
            if not child.is_dir(follow_symlinks=False):
                os.unlink(child.path)
                continue
            os.chmod(child.path, 0o700)
            with os.scandir(child.path) as entries:
                grandchildren = list(entries)
            for grandchild in grandchildren:
                if grandchild.is_dir(follow_symlinks=False):
                    number += 1
                    # Moving a directory rewrites its "..", which needs write permission in it.
                    os.chmod(grandchild.path, 0o700)
                    os.rename(grandchild.path, f"{directory}/{prefix}{number}")
                else:
                    os.unlink(grandchild.path)
            os.rmdir(child.path)
