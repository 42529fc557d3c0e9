"""Tier B behind the door: how a worker without namespaces confines a program, watches it, and cleans up.

Landlock says which files, seccomp denies what namespaces would have hidden, and a spare user id (where the worker is
root) keeps signals, ownership and the count of processes apart. What no call can cap here the worker looks at while
the program runs. Sent in as source text: standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rllm_gym.sandbox.inside import confine, landlock, named_memory, processes, seccomp

_DAC_OVERRIDE, _DAC_READ_SEARCH, _SETPCAP = 1, 2, 8
_KEEP_CAPABILITIES, _AMBIENT, _AMBIENT_RAISE = 8, 47, 2
_CAPABILITY_VERSION_3 = 0x20080522
_BOMB = 8
"""An ordinary user's processes are counted together, so this many times the limit is what the kernel stops at."""

_OWN_FILES = 6
"""What is in a program's scratch directory that it did not put there."""

_FILL = stat.S_IWUSR | stat.S_IXUSR
_HIDDEN_S = 0.25
"""CPU seconds after which a process that cannot be looked into is one that hides."""

_libc = ctypes.CDLL(None, use_errno=True)


class Wall:
    """What stands around the programs of one worker.

    Args:
        scratch: A directory of the worker's own, in which every program gets one.
        uid: Where the worker is root: the spare user that programs are. No two workers have the same.
        readable: Files and directories that programs see.
        without: Directories beneath those that they do not.
        devices: Device files they may use.
    """

    def __init__(
        self, scratch: str, uid: int | None, readable: Iterable[str], without: Iterable[str], devices: Iterable[str]
    ) -> None:
        self.scratch, self.uid = scratch, uid
        self._abi = landlock.abi()
        named_memory.install()
        # A Python in root's own home: the spare user gets the right to pass closed directories, and so must not
        # change the files there either. Which of them it reads is still for Landlock to say.
        self._passes = 0
        if uid is not None and not all(open_to_others(path) for path in readable):
            self._passes = _passing_capability()
        self._shared = uid is None or self._passes != 0
        self._rules = landlock.ruleset(readable, [scratch], devices, without)
        self._filter = b"" if self._shared and self._abi < 6 else self._make_filter(0)
        if uid is not None:
            # Programs own what is in their directory there, and cannot leave anything beside it, or close it.
            os.chmod(scratch, 0o711)

    def _make_filter(self, pid: int) -> bytes:
        return seccomp.deny_list(
            sockets="none", watched=True, shared_user=self._shared, landlock_abi=self._abi, own_pid=pid
        )

    # In the fork that is to be the program ---------------------------------------------------------------------

    def become_user(self, limits: Mapping[str, Any]) -> None:
        """Before anything is written: be the user that the program will be, within its limits on processes."""
        confine.be_dumpable()  # or its files in /proc are root's
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # where memory runs out, better the program is ended than the trainer
        if self.uid is None:
            confine.lower(resource.RLIMIT_NPROC, _tasks_of(os.getuid()) + _BOMB * limits["processes"])
        else:
            confine.lower(resource.RLIMIT_NPROC, limits["processes"])
            _become(self.uid, self._passes)
        confine.die_with_parent()

    def close(self, home: str) -> None:
        """Last of all, with ``no_new_privs`` set: nothing outside is in reach from here on."""
        named_memory.begin(f"{home}/shm")
        landlock.restrict(self._rules)
        seccomp.install(self._filter or self._make_filter(os.getpid()))

    # In the worker ---------------------------------------------------------------------------------------------

    def exceeded(self, family: Iterable[int], tasks: int, limits: Mapping[str, Any]) -> str:
        """The ``Ended`` of a program that has more processes or scratch space than it may; ``""`` of others."""
        if tasks > limits["processes"]:
            return "processes limit"
        most, count = limits["scratch_mb"] << 20, limits["scratch_files"] + _OWN_FILES
        size, files = _usage(self.scratch, most, count)
        with self.as_program():
            unlinked = _unlinked(family)
        return "scratch limit" if unlinked is None or size + unlinked > most or files > count else ""

    @contextlib.contextmanager
    def as_program(self) -> Iterator[None]:
        """With the program's rights to files and to /proc, which root in a container may lack."""
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
    """Whether any user may pass all directories above."""
    parts = os.path.realpath(path).split("/")
    for end in range(1, len(parts)):
        with contextlib.suppress(FileNotFoundError):
            if not os.stat("/".join(parts[:end]) or "/").st_mode & stat.S_IXOTH:
                return False
    return True


def _passing_capability() -> int:
    """The weaker of the two capabilities that pass closed directories, of those this process has."""
    with open("/proc/self/status") as file:
        effective = int(next(line for line in file if line.startswith("CapEff:")).split()[1], 16)
    for capability in (_DAC_READ_SEARCH, _DAC_OVERRIDE):
        if effective >> capability & 1:
            return capability
    raise PermissionError(
        "Python lies below a directory that is closed to other users, and this root has no right to open it to the "
        "sandbox: move Python, or chmod o+x the directory"
    )


def _become(uid: int, capability: int) -> None:
    if not capability:
        confine.drop_bounding_set()
        confine.become_user(uid, uid)
        return
    _checked(_libc.prctl(_KEEP_CAPABILITIES, 1, 0, 0, 0), "prctl(PR_SET_KEEPCAPS)")
    confine.become_user(uid, uid)
    kept = 1 << capability
    _set_capabilities(kept | 1 << _SETPCAP, kept)
    _checked(_libc.prctl(_AMBIENT, _AMBIENT_RAISE, capability, 0, 0), "prctl(PR_CAP_AMBIENT_RAISE)")
    confine.drop_bounding_set()
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
    """Threads of that user, as RLIMIT_NPROC counts them."""
    count = 0
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                count += os.stat(f"/proc/{name}/task").st_nlink - 2
    return count


def _usage(directory: str, size_limit: int, count_limit: int) -> tuple[int, int]:
    """Bytes and entries below; stops counting above either limit. What hides from counting counts as too much."""
    size, count = 0, 0
    todo = [directory]
    while todo and size <= size_limit and count <= count_limit:
        path = todo.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    count += 1
                    status = entry.stat(follow_symlinks=False)
                    size += status.st_blocks * 512
                    if stat.S_ISDIR(status.st_mode):
                        todo.append(entry.path)
                    if size > size_limit or count > count_limit:
                        break
        except PermissionError:
            # Its owner may fill it without reading it; one he may not enter stays as empty as it was made.
            with contextlib.suppress(OSError):
                if os.lstat(path).st_mode & _FILL == _FILL:
                    return size_limit + 1, count
        except OSError:
            continue  # it was moved or removed meanwhile
    return size, count


def _unlinked(family: Iterable[int]) -> int | None:
    """Bytes of files that have no name any more and are open in one of those processes.

    ``None`` where one that has done some work does not let itself be looked into.
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
            # Until it is the program, a fork of the worker is closed too: a matter of milliseconds. So is one that is
            # ending and has given up its memory already.
            process = processes.process(pid)
            if process is not None and process.cpu_s > _HIDDEN_S and processes.memory([pid], sys.maxsize):
                return None
        except OSError:
            continue  # it ended while it was looked at
    return sum(sizes.values())


def remove(directory: str) -> None:
    """Remove a directory that a hostile program has filled, see :func:`empty`."""
    empty(directory)
    os.rmdir(directory)


def empty(directory: str) -> None:
    """Remove all that a hostile program, which has ended, left in a directory: however deep, with whatever modes.

    Directories are moved up before they are emptied, so that no path becomes longer than the file system takes.
    """
    number, prefix = 0, os.urandom(8).hex()  # no name that the program could have taken
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
                    # Moving a directory rewrites its "..", which wants the right to write in it.
                    os.chmod(grandchild.path, 0o700)
                    os.rename(grandchild.path, f"{directory}/{prefix}{number}")
                else:
                    os.unlink(grandchild.path)
            os.rmdir(child.path)
