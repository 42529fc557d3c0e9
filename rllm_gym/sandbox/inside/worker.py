"""The warm worker: imports common modules once, then forks for each program, monitors it and reports how it ended.

The worker is trusted. It runs inside the outer isolation already, with the rights to set up the inner one.
Single-threaded, standard library only, sent in as source text. It never holds a secret, since each program is a fork of
it. It ends when its owner closes the connection or ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import site
import socket
import sys
import time
from typing import Any

from rllm_gym.sandbox.inside import frames, main_module, processes, program

_CHUNK = 1 << 16
_PAGE = os.sysconf("SC_PAGE_SIZE")
_WATCH_FIRST_S, _WATCH_LAST_S = 0.02, 0.1
_FILL_RATE = 4 << 30
"""Bytes per second that one processor can fill at most. Determines the interval between two checks."""

_FLOOD = 10
"""A program that writes this many times its output limit is ended."""


_WALL_GRACE_FACTOR = 9
"""Maximum extension of a program's wall limit, in multiples of it, for time without a processor."""


class SandboxFailure(Exception):
    """The sandbox failed, not the program."""


class WarmWorker:
    """Serves one owner over one socket."""

    def __init__(
        self, control: socket.socket, owner: int, runner: program.NamespaceRunner | program.ProcessTreeRunner
    ) -> None:
        self.control = control
        self.runner = runner
        self.library: dict[str, main_module.LibraryModule] = {}
        self.poll = select.poll()
        self.poll.register(control, select.POLLIN)
        self.owner = owner
        if owner >= 0:
            self.poll.register(owner, select.POLLIN)

    # Frames

    def send(self, header: dict[str, Any], *bodies: bytes | bytearray, fds: tuple[int, ...] = ()) -> None:
        frame = b"".join((frames.frame_start(header, *bodies), *bodies))
        try:
            if fds:
                socket.send_fds(self.control, [frame], list(fds))
            else:
                self.control.sendall(frame)
        except (BrokenPipeError, ConnectionResetError):
            raise frames.OwnerGone from None

    def receive(self) -> tuple[dict[str, Any], memoryview]:
        header, body = frames.LENGTHS.unpack(self._exactly(frames.LENGTHS.size))
        return json.loads(bytes(self._exactly(header))), self._exactly(body)

    def _exactly(self, size: int) -> memoryview:
        data = memoryview(bytearray(size))
        at = 0
        while at < size:
            try:
                got = self.control.recv_into(data[at:])
            except ConnectionResetError:
                got = 0
            if not got:
                raise frames.OwnerGone
            at += got
        return data

    # Requests

    def serve(self) -> None:
        self.send({"op": "ready"})
        while True:
            for fd, _ in self.poll.poll():
                if fd == self.owner:
                    raise frames.OwnerGone
                header, body = self.receive()
                if header["op"] == "run":
                    self.run(program.RunRequest(header, body))
                # a "stop" for a program that has already ended needs no action

    def run(self, request: program.RunRequest) -> None:
        request.compile_library(self.library)
        execution = Execution(self, request)
        try:
            report, out, err = execution.watch()
        except SandboxFailure as error:
            self.send({"op": "broke", "why": str(error)[:2000]})
            return
        finally:
            execution.close()
        self.send(report, out, err)


class Execution:
    """One program, from its fork until everything of it has ended."""

    def __init__(self, worker: WarmWorker, request: program.RunRequest) -> None:
        self.worker, self.request, self.limits = worker, request, request.limits
        self.fds: set[int] = set()
        self.stdin = request.stdin
        self.fed = 0
        self.ended = ""
        self.cpu_s = 0.0
        stdin_read, self.stdin_write = self._pipe()
        self.out, out_write = self._pipe()
        self.err, err_write = self._pipe()
        self.status, status_write = self._pipe()
        theirs = [stdin_read, out_write, err_write]
        channel = None
        if request.channel:
            ours, its = socket.socketpair()
            channel = ours.detach()
            self.fds.add(channel)
            theirs.append(its.detach())
            self.fds.add(theirs[3])
        self.output = {
            self.out: StreamOutput(self.limits["output_bytes"]),
            self.err: StreamOutput(self.limits["output_bytes"]),
        }
        for fd in (self.out, self.err, self.stdin_write):
            os.set_blocking(fd, False)
        self.before = program.Memory()
        self.started = time.monotonic()
        try:
            self.first, self.watched = worker.runner.start(request, theirs, (self.status, status_write), self.before)
        except program.BecomeProgram:
            worker.control.detach()  # already closed in this process: the number may be reused
            main_module.keep(self)
            raise
        self.fds.add(self.watched)
        for fd in (*theirs, status_write):
            self._close(fd)
        if channel is not None:
            worker.send({"op": "started"}, fds=(channel,))
            self._close(channel)
        self.poll = select.poll()
        self.poll.register(worker.control, select.POLLIN)
        if worker.owner >= 0:
            self.poll.register(worker.owner, select.POLLIN)
        for fd in (self.out, self.err, self.watched):
            self.poll.register(fd, select.POLLIN)
        self._feed()
        if self.stdin_write in self.fds:
            self.poll.register(self.stdin_write, select.POLLOUT)

    def _pipe(self) -> tuple[int, int]:
        pair = os.pipe2(os.O_CLOEXEC)
        self.fds.update(pair)
        return pair

    def _close(self, fd: int) -> None:
        if fd in self.fds:
            self.fds.discard(fd)
            os.close(fd)

    # While the program runs

    def watch(self) -> tuple[dict[str, Any], bytearray, bytearray]:
        """Wait until the program ends, or end it."""
        deadline = self.started + self.limits["wall_s"]
        look = self.started + _WATCH_FIRST_S
        while not self.ended:
            now = time.monotonic()
            if now >= deadline:
                wall_limit = self.limits["wall_s"] + min(_cpu_wait_s(), _WALL_GRACE_FACTOR * self.limits["wall_s"])
                if now >= self.started + wall_limit:
                    self.ended = "wall limit"
                    break
                deadline = self.started + wall_limit
            if now >= look:
                pause = self._check_usage()
                if self.ended:
                    break
                look = time.monotonic() + pause
            for fd, events in self.poll.poll(max(0.0, min(deadline, look) - time.monotonic()) * 1000 + 0.5):
                if fd == self.watched:
                    return self._finish()
                if fd in self.output:
                    self._read(fd)
                elif fd == self.stdin_write:
                    if events & (select.POLLERR | select.POLLNVAL):
                        self._stop_feeding()
                    else:
                        self._feed()
                elif fd == self.worker.owner:
                    raise frames.OwnerGone
                else:
                    self._on_control()
        return self._finish()

    def _on_control(self) -> None:
        header, _ = self.worker.receive()
        if header["op"] == "stop":
            self.ended = "stopped"

    def _feed(self) -> None:
        try:
            while self.fed < len(self.stdin):
                self.fed += os.write(self.stdin_write, memoryview(self.stdin)[self.fed : self.fed + (1 << 20)])
        except BlockingIOError:
            return
        except BrokenPipeError:  # the program does not read its input
            pass
        self._stop_feeding()

    def _stop_feeding(self) -> None:
        if hasattr(self, "poll"):
            with contextlib.suppress(KeyError):
                self.poll.unregister(self.stdin_write)
        self._close(self.stdin_write)

    def _read(self, fd: int) -> bool:
        """Read once. Return False when there is no more data, now or permanently."""
        try:
            piece = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        if not piece:
            with contextlib.suppress(KeyError):
                self.poll.unregister(fd)
            return False
        if self.output[fd].add(piece):
            self.ended = self.ended or "output limit"
        return True

    def _check_usage(self) -> float:
        """Check the resource use; return the seconds until the next check."""
        runner = self.worker.runner
        table = processes.processes()
        family = processes.descendants([os.getpid()], table)
        cpu = sum(table[pid].cpu_s for pid in family)
        self.cpu_s = max(self.cpu_s, cpu)
        limit = self.limits["memory_mb"] << 20
        with runner.inspecting():
            used = _memory(family, limit, runner.scratch_used(family), self.before.resident)
        if cpu > self.limits["cpu_s"]:
            self.ended = "cpu limit"
        elif used > limit:
            self.ended = "memory limit"
        else:
            self.ended = runner.exceeded(family, table, self.limits)
        headroom: float = (limit - used) / (_FILL_RATE * min(len(family) or 1, os.cpu_count() or 1))
        return min(max(headroom, 0.005), _WATCH_LAST_S)

    # When the program has ended

    def _finish(self) -> tuple[dict[str, Any], bytearray, bytearray]:
        usage = self.worker.runner.end(self.first)
        wall_s = time.monotonic() - self.started
        report = os.read(self.status, 4096)  # every process that could write to it has ended
        if report.startswith(b"E"):
            raise SandboxFailure(report[1:].decode(errors="replace"))
        for fd in (self.out, self.err):
            while self._read(fd) and not self.ended:
                pass
        cpu_s = max(self.cpu_s, usage.cpu_s)
        exit_code, number = None, None
        if not self.ended:
            self.ended, exit_code, number = self._exit_reason(report, usage, cpu_s)
        header = {
            "op": "ended", "ended": self.ended, "exit_code": exit_code, "signal": number, "cpu_s": round(cpu_s, 6),
            "wall_s": round(wall_s, 6), "stdout_bytes": self.output[self.out].total,
            "stderr_bytes": self.output[self.err].total, "stdout": len(self.output[self.out].data),
            "stderr": len(self.output[self.err].data),
        }  # fmt: skip
        return header, self.output[self.out].data, self.output[self.err].data

    def _exit_reason(self, report: bytes, usage: program.Usage, cpu_s: float) -> tuple[str, int | None, int | None]:
        if cpu_s > self.limits["cpu_s"]:
            return "cpu limit", None, None
        if usage.max_rss > (self.limits["memory_mb"] << 20) + self.before.resident:
            return "memory limit", None, None
        # A supervisor that ended without a report was killed, and only the program can have done that.
        code = os.waitstatus_to_exitcode(int(report) if report else usage.status)
        return ("exited", code, None) if code >= 0 else ("signalled", None, -code)

    def close(self) -> None:
        for fd in list(self.fds):
            self._close(fd)


def _memory(family: set[int], limit: int, scratch: int, shared_before: int) -> int:
    """Return the bytes held by the processes and their scratch space; shared pages count once if that matters.

    The sum of resident pages, without those that the first process shares with the worker, is cheap and not too low.
    Only if it is above ``limit`` is the kernel asked to divide shared pages among their holders.
    """
    rough = scratch - shared_before
    for pid in family:
        with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/statm", "rb") as file:
            rough += int(file.read().split()[1]) * _PAGE
    if rough <= limit:
        return rough
    private, shared = 0, 0
    for pid in family:
        try:
            with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
                sizes = {line.split()[0]: int(line.split()[1]) << 10 for line in file.readlines()[1:]}
            shared += sizes.get(b"Pss_Shmem:", 0)
            private += sizes[b"Pss:"] - sizes.get(b"Pss_Shmem:", 0)
        except PermissionError:
            # The process has made itself unreadable by executing a program that it may execute but not read.
            private += processes.memory([pid], 0)
        except (OSError, IndexError, KeyError):
            continue  # it ended during the read
    # Mapped files in scratch space count as shared memory.
    return private + max(shared, scratch)


def _cpu_wait_s() -> float:
    """Return the longest time, in seconds, that one thread below this process has waited for a processor."""
    most = 0.0
    for pid in processes.descendants([os.getpid()], processes.processes()):
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with (
                    contextlib.suppress(OSError, IndexError, ValueError),
                    open(f"/proc/{pid}/task/{task}/schedstat", "rb") as file,
                ):
                    most = max(most, int(file.read().split()[1]) / 1e9)
    return most


class StreamOutput:
    """The beginning of a stream, and its total length."""

    def __init__(self, limit: int) -> None:
        self.data = bytearray()
        self.limit, self.total = limit, 0

    def add(self, piece: bytes) -> bool:
        """Add a piece. Return True when the stream exceeds the flood limit."""
        self.total += len(piece)
        if len(self.data) < self.limit:
            self.data += piece[: self.limit - len(self.data)]
        return self.total > _FLOOD * self.limit


def main(control: int, owner: int, settings: dict[str, Any]) -> None:
    """Confine this process, import the warm modules, serve. Raises :class:`program.BecomeProgram` in forks."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A signal without a handler does not reach pid 1 of a namespace.
        signal.signal(number, signal.SIG_DFL)
    os.environ.pop("PWD", None)
    while os.open("/dev/null", os.O_RDWR) <= 3:  # the low descriptor numbers are reserved for programs
        pass
    sock = socket.socket(fileno=control)
    runner = program.make_runner(settings)
    worker = WarmWorker(sock, owner, runner)
    try:
        sys.path[:] = [*(entry for entry in sys.path if entry), *settings["path"]]
        if sys.flags.no_site:
            site.setquit()
            site.sethelper()
            site.setcopyright()
        for name in settings["preload"]:
            try:
                importlib.import_module(name)
            except ImportError as error:
                worker.send({"op": "cannot preload", "name": name, "why": str(error)[:500]})
                return
        if len(os.listdir("/proc/self/task")) > 1:
            worker.send({"op": "cannot preload", "name": str(settings["preload"]), "why": "it starts threads"})
            return
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        main_module.warm()
        gc.collect()
        gc.freeze()
        worker.serve()
    except frames.OwnerGone:
        runner.cleanup()
