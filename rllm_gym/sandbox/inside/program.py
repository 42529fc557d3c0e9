"""One program inside the inner isolation: its request, its scratch space, its limits, and how it is ended.

With namespaces: ``clone`` creates a supervisor, pid 1 of new process, mount and IPC namespaces, which mounts fresh
scratch space and /proc and forks the program. When the program ends so does the supervisor, and the kernel ends
everything else. Without namespaces the program is a child of the worker, which adopts and ends its descendants.

Sent in as source text: standard library only.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from rllm_gym.sandbox.inside import main_module, processes, seccomp, syscalls

if TYPE_CHECKING:
    from rllm_gym.sandbox.inside import landlock_worker

_SPARE_MB = 512
"""Address space above the memory limit: stacks of threads and arenas are reserved and never filled."""

_OPEN_FILES = 256
"""Also bounds the data in sockets, which is kernel memory that no monitor counts: up to 4 MB per TCP connection."""

_UID = 1000
_INODES = 5
"""Inodes of every scratch space: itself, its three directories, and the program's source."""

_END_S = 30.0


class RunRequest:
    """A program to run, as received from the trainer."""

    def __init__(self, header: dict[str, Any], body: memoryview) -> None:
        self._body, self._at = body, 0
        self.limits: dict[str, Any] = header["limits"]
        self.args: list[str] = header["args"]
        self.channel: bool = header["channel"]
        self.source = bytes(self._take(header["source"])).decode("utf-8", "surrogatepass")
        self.stdin = self._take(header["stdin"])
        self.files = [(path, self._take(size)) for path, size in header["files"]]
        self.forget: bool = header["forget"]
        self._library = [(name, key, None if size < 0 else self._take(size)) for name, key, size in header["library"]]
        self.modules: dict[str, main_module.LibraryModule] = {}

    def _take(self, size: int) -> memoryview:
        self._at += size
        return self._body[self._at - size : self._at]

    def compile_library(self, known: dict[str, main_module.LibraryModule]) -> None:
        """Fill ``modules``. Compiles new modules, which runs no code, and keeps them in ``known``."""
        if self.forget:
            known.clear()
        for name, key, text in self._library:
            if text is not None:
                known[key] = main_module.LibraryModule(name, bytes(text).decode("utf-8", "surrogatepass"))
            self.modules[name] = known[key]


class BecomeProgram(BaseException):
    """Raised in the process that becomes the program: unwinds the worker's frames, so that none is left below it."""

    def __init__(self, request: RunRequest, home: str) -> None:
        self.request, self.home = request, home


class NamespaceRunner:
    """Tier A's execution of programs: each in its own process, mount and IPC namespaces."""

    def __init__(self, scratch: str, uid: int | None) -> None:
        """Confine the worker itself. Every program in it inherits this."""
        self._scratch = scratch
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # if memory runs out, the kernel should end a program rather than the trainer
        if uid is not None:
            # The mounts exist, made with root's rights. From here on the worker runs as a user id that nobody else has.
            syscalls.become_user(uid, uid)
        inside = os.getuid() if uid is None else _UID
        syscalls.own_user_namespace(syscalls.CLONE_NEWNS, uid=inside, gid=inside)
        syscalls.own_time_namespace()
        syscalls.drop_bounding_set()
        syscalls.die_with_parent()
        syscalls.be_undumpable()
        self._filter = seccomp.deny_list(sockets="loopback")

    def start(self, request: RunRequest, fds: Sequence[int], report: tuple[int, int], usage: Memory) -> tuple[int, int]:
        """Start a program. Return the supervisor's process id and the descriptor that reports its end.

        Raises :class:`BecomeProgram` in the process that becomes the program.
        """
        pid = syscalls.fork_into(syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC)
        if pid == 0:
            self._supervise(request, fds, report[1], usage)
        return pid, report[0]

    def _supervise(self, request: RunRequest, fds: Sequence[int], status: int, usage: Memory) -> NoReturn:
        with _reporting(status):
            limits = request.limits
            size, inodes = limits["scratch_mb"] << 20, limits["scratch_files"] + _INODES
            flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
            syscalls.mount("scratch", self._scratch, "tmpfs", flags, f"size={size},nr_inodes={inodes},mode=755")
            syscalls.mount("proc", "/proc", "proc", flags | syscalls.MS_NOEXEC, "hidepid=2")
            _write_files(request, self._scratch)
            program = os.fork()
            if program == 0:
                _attach(fds, self._scratch)
                _limit(limits, usage)
                # The worker and the supervisor run as the same user and are counted.
                syscalls.lower(resource.RLIMIT_NPROC, limits["processes"] + 2)
                syscalls.drop_capabilities()
                syscalls.no_new_privileges()
                syscalls.be_dumpable()
                seccomp.install(self._filter)
                syscalls.close_from(len(fds))  # this also closes the last connection to the worker
                raise BecomeProgram(request, self._scratch)
            syscalls.close_all_but({status})
        try:
            while True:
                pid, code = os.waitpid(-1, 0)
                if pid == program:
                    os.write(status, b"%d" % code)
                    break
        finally:
            os._exit(0)

    def inspecting(self) -> contextlib.AbstractContextManager[None]:
        """Return a context with the rights the worker needs to inspect a program."""
        return contextlib.nullcontext()

    def exceeded(self, family: set[int], table: dict[int, processes.Process], limits: dict[str, Any]) -> str:
        """Return ``""``: the kernel enforces every limit that is counted here."""
        return ""

    def scratch_used(self, family: set[int]) -> int:
        """Return the bytes in the program's scratch space, which is in memory."""
        for pid in family:
            with contextlib.suppress(OSError):
                space = os.statvfs(f"/proc/{pid}/root{self._scratch}")
                return (space.f_blocks - space.f_bfree) * space.f_frsize
        return 0

    def end(self, pid: int) -> Usage:
        """End the execution and everything in it."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        processes.send(pid, signal.SIGKILL)
        _, status, own = os.wait4(pid, 0)
        return Usage(status, _cpu_since(before), own.ru_maxrss << 10)

    def cleanup(self) -> None:
        """Do nothing: the kernel ends everything when pid 1 ends."""


class ProcessTreeRunner:
    """The lower tiers' execution: programs are children of the worker, which adopts and ends all their descendants."""

    def __init__(self, scratch: str, confinement: landlock_worker.LandlockConfinement | None) -> None:
        self._scratch, self._confinement = scratch, confinement
        self._count = 0
        syscalls.be_subreaper()
        syscalls.be_undumpable()

    @property
    def _home(self) -> str:
        return f"{self._scratch}/{self._count}"

    def start(self, request: RunRequest, fds: Sequence[int], report: tuple[int, int], usage: Memory) -> tuple[int, int]:
        """See :meth:`NamespaceRunner.start`; the process is the program's own."""
        self._count += 1
        os.mkdir(self._home, 0o700)
        if self._confinement is not None and self._confinement.uid is not None:
            os.chown(self._home, self._confinement.uid, self._confinement.uid)
        pid = os.fork()
        if pid == 0:
            with _reporting(report[1]):
                syscalls.die_with_parent()
                if self._confinement is not None:
                    self._confinement.become_user(request.limits)
                _write_files(request, self._home)
                _attach(fds, self._home)
                os.environ.update(HOME=self._home, TMPDIR=f"{self._home}/tmp")
                _limit(request.limits, usage)
                syscalls.no_new_privileges()
                syscalls.be_dumpable()
                if self._confinement is not None:
                    self._confinement.enter(self._home)
                syscalls.close_from(len(fds))
                raise BecomeProgram(request, self._home)
        return pid, os.pidfd_open(pid)

    def inspecting(self) -> contextlib.AbstractContextManager[None]:
        """See :meth:`NamespaceRunner.inspecting`: root in a container may only inspect processes of its own user."""
        return contextlib.nullcontext() if self._confinement is None else self._confinement.as_program()

    def exceeded(self, family: set[int], table: dict[int, processes.Process], limits: dict[str, Any]) -> str:
        """Return the limit in ``Ended`` that the kernel does not enforce here and that is exceeded now, or ``""``."""
        if self._confinement is None:
            return ""
        tasks = sum(table[pid].threads for pid in family)
        return self._confinement.exceeded(family, tasks, limits)

    def scratch_used(self, family: set[int]) -> int:
        return 0  # it is on a disk

    def end(self, pid: int) -> Usage:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        processes.send(pid, signal.SIGKILL)
        _, status, own = os.wait4(pid, 0)
        self.end_all()
        return Usage(status, _cpu_since(before), own.ru_maxrss << 10)

    def end_all(self) -> None:
        """End every process below the worker, and remove what the last program left."""
        worker = os.getpid()
        if processes.has_children():
            clean = processes.end(lambda table: processes.descendants([worker], table), time.monotonic() + _END_S)
            processes.reap()
            if not clean:
                raise RuntimeError(f"processes of a program could not be ended in {_END_S:.0f} s")
        from rllm_gym.sandbox.inside import landlock_worker  # workers of tier A do not have this module

        landlock_worker.empty(self._scratch)

    def cleanup(self) -> None:
        """Call :meth:`end_all` and remove the trainer's directory for this worker, in case the trainer was killed."""
        from rllm_gym.sandbox.inside import landlock_worker

        self.end_all()
        landlock_worker.remove(os.path.dirname(self._scratch))


def make_runner(settings: Mapping[str, Any]) -> NamespaceRunner | ProcessTreeRunner:
    """Return the execution that the worker's settings ask for."""
    if settings["confinement"] == "namespaces":
        return NamespaceRunner(settings["scratch"], settings["uid"])
    confinement = None
    if settings["confinement"] == "landlock":
        from rllm_gym.sandbox.inside import landlock_worker

        names = ("scratch", "uid", "readable", "without", "devices")
        confinement = landlock_worker.LandlockConfinement(*(settings[name] for name in names))
    return ProcessTreeRunner(settings["scratch"], confinement)


def _write_files(request: RunRequest, home: str) -> None:
    for name in ("work", "tmp", "shm"):
        os.mkdir(f"{home}/{name}", 0o700)
    write(f"{home}/main.py", request.source.encode("utf-8", "surrogatepass"))
    for path, data in request.files:
        full = f"{home}/work/{path}"
        if "/" in path:
            os.makedirs(os.path.dirname(full), 0o700, exist_ok=True)
        write(full, data)


def _attach(fds: Sequence[int], home: str) -> None:
    os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(f"{home}/work")
    os.umask(0o022)


def _limit(limits: dict[str, Any], usage: Memory) -> None:
    # RLIMIT_CPU is not used: the worker counts all processes together, and the limit makes a process's own clock
    # coarse.
    for kind, value in (
        (resource.RLIMIT_AS, usage.virtual + ((limits["memory_mb"] + _SPARE_MB) << 20)),
        (resource.RLIMIT_FSIZE, limits["scratch_mb"] << 20),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_MEMLOCK, 1 << 16),
    ):
        syscalls.lower(kind, value)


def _cpu_since(before: resource.struct_rusage) -> float:
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Memory:
    """The worker's own memory at the moment of the fork, in bytes. A program is not charged for it."""

    __slots__ = ("resident", "virtual")

    def __init__(self) -> None:
        fd = os.open("/proc/self/statm", os.O_RDONLY)
        pages = os.read(fd, 200).split()
        os.close(fd)
        self.virtual, self.resident = int(pages[0]) * resource.getpagesize(), int(pages[1]) * resource.getpagesize()


class Usage:
    """Wait status of the first process, CPU seconds of all, resident bytes of the largest."""

    def __init__(self, status: int, cpu_s: float, max_rss: int) -> None:
        self.status, self.cpu_s, self.max_rss = status, cpu_s, max_rss


@contextlib.contextmanager
def _reporting(status: int) -> Any:
    """In a fork: report a failure before the program runs as a failure of the sandbox."""
    try:
        yield
    except BecomeProgram:
        raise
    except BaseException as error:
        os.write(status, f"E{type(error).__name__}: {error}".encode(errors="replace")[:2000])
        os._exit(1)


def write(path: str, data: bytes | memoryview) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    try:
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)
