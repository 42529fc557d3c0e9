"""One program behind the inner wall: its order, its scratch space, its limits, and how all of it is ended.

Namespaces: ``clone`` makes a supervisor, pid 1 of new process, mount and IPC namespaces, which mounts fresh scratch
space and /proc and forks the program; when the program ends so does the supervisor, and the kernel ends all the rest.
Without namespaces the program is a child of the worker, which adopts and ends its descendants.

Sent in as source text: standard library only.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import contextlib
import os
import resource
import signal
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from rllm_gym.sandbox.inside import confine, life, processes, seccomp

if TYPE_CHECKING:
    from rllm_gym.sandbox.inside import landlocked

_SPARE_MB = 512
"""Address space above the memory limit: stacks of threads and arenas are reserved and never filled."""

_OPEN_FILES = 512
_UID = 1000
_INODES = 5
"""Of every scratch space: itself, its three directories, the program's own source."""

_END_S = 30.0


class Order:
    """What is to be run, as it came over the wire."""

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
        self.modules: dict[str, life.LibraryModule] = {}

    def _take(self, size: int) -> memoryview:
        self._at += size
        return self._body[self._at - size : self._at]

    def compile_library(self, known: dict[str, life.LibraryModule]) -> None:
        """Fill ``modules``; what is new is compiled, which runs nothing, and kept in ``known``."""
        if self.forget:
            known.clear()
        for name, key, text in self._library:
            if text is not None:
                known[key] = life.LibraryModule(name, bytes(text).decode("utf-8", "surrogatepass"))
            self.modules[name] = known[key]


class Become(BaseException):
    """Raised in the process that is to be the program: unwinds the worker's frames, so that none is left below it."""

    def __init__(self, order: Order, home: str) -> None:
        self.order, self.home = order, home


class Namespaces:
    """Tier A's place for programs: each in process, mount and IPC namespaces of its own."""

    def __init__(self, scratch: str, uid: int | None) -> None:
        """Confines the worker itself, with what every program in it inherits."""
        self._scratch = scratch
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # where memory runs out, better a program is ended than the trainer
        if uid is not None:
            # The mounts are made, with root's rights. From here on it is a user nobody else is.
            confine.mount("proc", "/proc", "proc", confine.MS_NOSUID | confine.MS_NODEV | confine.MS_NOEXEC)
            confine.become_user(uid, uid)
        inside = os.getuid() if uid is None else _UID
        confine.own_user_namespace(confine.CLONE_NEWNS, uid=inside, gid=inside)
        confine.drop_bounding_set()
        confine.die_with_parent()
        confine.be_undumpable()
        self._filter = seccomp.deny_list(sockets="loopback")

    def start(self, order: Order, fds: Sequence[int], report: tuple[int, int], usage: Memory) -> tuple[int, int]:
        """The supervisor's process id, and the descriptor that tells of its end.

        Raises :class:`Become` in the process that is to be the program.
        """
        pid = confine.fork_into(confine.CLONE_NEWPID | confine.CLONE_NEWNS | confine.CLONE_NEWIPC)
        if pid == 0:
            self._supervise(order, fds, report[1], usage)
        return pid, report[0]

    def _supervise(self, order: Order, fds: Sequence[int], status: int, usage: Memory) -> NoReturn:
        with _reporting(status):
            limits = order.limits
            size, inodes = limits["scratch_mb"] << 20, limits["scratch_files"] + _INODES
            flags = confine.MS_NOSUID | confine.MS_NODEV
            confine.mount("scratch", self._scratch, "tmpfs", flags, f"size={size},nr_inodes={inodes},mode=755")
            confine.mount("proc", "/proc", "proc", flags | confine.MS_NOEXEC, "hidepid=2")
            _furnish(order, self._scratch)
            program = os.fork()
            if program == 0:
                _attach(fds, self._scratch)
                _limit(limits, usage)
                # The worker and the supervisor are of the same user and count.
                confine.lower(resource.RLIMIT_NPROC, limits["processes"] + 2)
                confine.drop_capabilities()
                confine.no_new_privileges()
                confine.be_dumpable()
                seccomp.install(self._filter)
                confine.close_from(len(fds))  # with them goes the last way to say anything to the worker
                raise Become(order, self._scratch)
            confine.close_all_but({status})
        try:
            while True:
                pid, code = os.waitpid(-1, 0)
                if pid == program:
                    os.write(status, b"%d" % code)
                    break
        finally:
            os._exit(0)

    def looking(self) -> contextlib.AbstractContextManager[None]:
        """While the worker looks at what a program holds: with the rights that takes."""
        return contextlib.nullcontext()

    def exceeded(self, family: set[int], table: dict[int, processes.Process], limits: dict[str, Any]) -> str:
        """The kernel keeps every limit that is counted here."""
        return ""

    def scratch_used(self, family: set[int]) -> int:
        """Bytes in the program's scratch space, which is memory."""
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

    def vacate(self) -> None:
        """The kernel ends all there is when pid 1 goes."""


class Family:
    """The lower tiers' place: programs are the worker's children, and it adopts and ends all their descendants."""

    def __init__(self, scratch: str, wall: landlocked.Wall | None) -> None:
        self._scratch, self._wall = scratch, wall
        self._count = 0
        confine.be_subreaper()
        confine.be_undumpable()

    @property
    def _home(self) -> str:
        return f"{self._scratch}/{self._count}"

    def start(self, order: Order, fds: Sequence[int], report: tuple[int, int], usage: Memory) -> tuple[int, int]:
        """As :meth:`Namespaces.start`; the process is the program's own."""
        self._count += 1
        os.mkdir(self._home, 0o700)
        if self._wall is not None and self._wall.uid is not None:
            os.chown(self._home, self._wall.uid, self._wall.uid)
        pid = os.fork()
        if pid == 0:
            with _reporting(report[1]):
                confine.die_with_parent()
                if self._wall is not None:
                    self._wall.become_user(order.limits)
                _furnish(order, self._home)
                _attach(fds, self._home)
                os.environ.update(HOME=self._home, TMPDIR=f"{self._home}/tmp")
                _limit(order.limits, usage)
                confine.no_new_privileges()
                confine.be_dumpable()
                if self._wall is not None:
                    self._wall.close(self._home)
                confine.close_from(len(fds))
                raise Become(order, self._home)
        return pid, os.pidfd_open(pid)

    def looking(self) -> contextlib.AbstractContextManager[None]:
        """As :meth:`Namespaces.looking`: root in a container may look into no process but its own user's."""
        return contextlib.nullcontext() if self._wall is None else self._wall.as_program()

    def exceeded(self, family: set[int], table: dict[int, processes.Process], limits: dict[str, Any]) -> str:
        """The limit of ``Ended`` that no kernel keeps here and that is broken now, or ``""``."""
        if self._wall is None:
            return ""
        tasks = sum(table[pid].threads for pid in family)
        return self._wall.exceeded(family, tasks, limits)

    def scratch_used(self, family: set[int]) -> int:
        return 0  # it lies on a disk

    def end(self, pid: int) -> Usage:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        processes.send(pid, signal.SIGKILL)
        _, status, own = os.wait4(pid, 0)
        self.leave()
        return Usage(status, _cpu_since(before), own.ru_maxrss << 10)

    def leave(self) -> None:
        """End every process below the worker, and remove what the last program left."""
        worker = os.getpid()
        if processes.has_children():
            clean = processes.end(lambda table: processes.descendants([worker], table), time.monotonic() + _END_S)
            processes.reap()
            if not clean:
                raise RuntimeError(f"processes of a program could not be ended in {_END_S:.0f} s")
        from rllm_gym.sandbox.inside import landlocked  # tier A's workers do without it

        landlocked.empty(self._scratch)

    def vacate(self) -> None:
        """:meth:`leave` for good: the directory that the trainer made for this worker goes too, were it killed."""
        from rllm_gym.sandbox.inside import landlocked

        self.leave()
        landlocked.remove(os.path.dirname(self._scratch))


def place(settings: Mapping[str, Any]) -> Namespaces | Family:
    """The place that the worker's settings ask for."""
    if settings["confinement"] == "namespaces":
        return Namespaces(settings["scratch"], settings["uid"])
    wall = None
    if settings["confinement"] == "landlock":
        from rllm_gym.sandbox.inside import landlocked

        names = ("scratch", "uid", "readable", "without", "devices")
        wall = landlocked.Wall(*(settings[name] for name in names))
    return Family(settings["scratch"], wall)


def _furnish(order: Order, home: str) -> None:
    for name in ("work", "tmp", "shm"):
        os.mkdir(f"{home}/{name}", 0o700)
    write(f"{home}/main.py", order.source.encode("utf-8", "surrogatepass"))
    for path, data in order.files:
        full = f"{home}/work/{path}"
        if "/" in path:
            os.makedirs(os.path.dirname(full), 0o700, exist_ok=True)
        write(full, data)


def _attach(fds: Sequence[int], home: str) -> None:
    os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    os.chdir(f"{home}/work")
    os.umask(0o022)


def _limit(limits: dict[str, Any], usage: Memory) -> None:
    # No RLIMIT_CPU: the worker counts all processes together, and with it a process's own clock turns coarse.
    for kind, value in (
        (resource.RLIMIT_AS, usage.virtual + ((limits["memory_mb"] + _SPARE_MB) << 20)),
        (resource.RLIMIT_FSIZE, limits["scratch_mb"] << 20),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_MEMLOCK, 1 << 16),
    ):
        confine.lower(kind, value)


def _cpu_since(before: resource.struct_rusage) -> float:
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Memory:
    """What the worker itself holds at the moment of the fork, in bytes: a program is not charged for it."""

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
    """In a fork: a failure before the program runs is the sandbox's, and is told as such."""
    try:
        yield
    except Become:
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
