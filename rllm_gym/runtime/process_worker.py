"""Worker processes on the owner's side: how they are started, called, killed, and found to be dead."""

# ruff: noqa: ASYNC109 - the timeout is the contract: passing it kills the worker
from __future__ import annotations

import asyncio
import itertools
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rllm_gym.runtime.connection import FramedConnection, frame
from rllm_gym.runtime.errors import CpuTimeExceeded, DeadlineExceeded, MemoryExceeded, WorkerDied, WorkerStartFailed
from rllm_gym.runtime.request_handler import HELLO, RESULT, WorkRequest, decode_reply, encode_call, encode_request

START_TIMEOUT = 120.0
"""Seconds that a worker may take to start, including the import of its modules. Generous, for busy machines."""

_ANSWER_TIMEOUT = 60.0
"""Seconds that the template may take to report how a worker ended, or to accept a command. Generous, as above."""

_BOOT = (
    "import json, sys; fd, owner, path, preload = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from rllm_gym.runtime.fork_server import main; main(fd, owner, preload)"
)
_worker_numbers = itertools.count()


class ForkServerClient:
    """The owner's handle on the template process; starts it for the first worker, and again if it died."""

    def __init__(self, preload: Sequence[str], hash_seed: int | None = None) -> None:
        self._preload = list(preload)
        self._hash_seed = hash_seed
        self._lock = threading.Lock()
        self._ended: deque[str] = deque()  # workers to kill
        self._closed = False
        self._reading = threading.Lock()  # acquired before the other one
        self._read_from: socket.socket | None = None
        self._read = b""
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._pid = os.getpid()

    def spawn(self, worker: str, sock: socket.socket, memory_mb: int | None) -> None:
        order = {"do": "spawn", "worker": worker, "memory_mb": memory_mb, "path": import_path()}
        line = json.dumps(order).encode() + b"\n"
        with self._locked():
            if self._closed:
                raise WorkerStartFailed(f"worker {worker} cannot be started: its pool is closed")
            try:
                socket.send_fds(self._running(), [line], [sock.fileno()])
            except OSError:
                self._discard()  # it died between two commands
                socket.send_fds(self._running(), [line], [sock.fileno()])

    def end(self, worker: str) -> None:
        """Kill a worker with all its descendants. Waits neither for another thread nor for the template."""
        self._ended.append(worker)
        self._send_ended()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        finally:
            self._send_ended()  # those of other threads, which did not wait for the lock

    def _send_ended(self) -> None:
        while self._ended and self._lock.acquire(blocking=False):
            try:
                if self._control is None or self._pid != os.getpid():
                    self._ended.clear()
                    return
                line = json.dumps({"do": "end", "worker": self._ended[0]}).encode() + b"\n"
                sent = os.write(self._control.fileno(), line)  # not ``send``, which waits
                self._ended.popleft()
                if sent < len(line):
                    self._control.sendall(line[sent:])
            except BlockingIOError:
                return  # a template that does not read: the next command sends it
            except OSError:
                self._ended.clear()  # the template has ended, and its workers with it
            finally:
                self._lock.release()

    def exit_status(self, worker: str) -> int | None:
        """Return the exit status of a worker that hung up (negative: minus the signal), ``None`` if unknown.

        Waits for the template, but does not block starting and ending workers meanwhile. A template that answers
        slowly, as on a busy machine, must not be treated as dead: all its other workers would die with it.
        """
        with self._reading:
            with self._locked():
                control = self._control
                if control is None:
                    return None
                try:
                    control.settimeout(_ANSWER_TIMEOUT)
                    control.sendall(json.dumps({"do": "why", "worker": worker}).encode() + b"\n")
                except OSError:
                    self._discard()
                    return None
            try:
                # Answers to callers that gave up waiting may come first.
                while (reply := self._answer(control))["worker"] != worker:
                    pass
            except (OSError, EOFError):
                return None
            status: int | None = reply["status"]
            return status

    def _answer(self, control: socket.socket) -> dict[str, Any]:
        if control is not self._read_from:
            self._read_from, self._read = control, b""
        while b"\n" not in self._read:
            data = control.recv(4096)
            if not data:
                raise EOFError("the template process has ended")
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Kill every worker and the template, and start none again. Waits a few seconds at most. Safe to call twice."""
        if self._pid != os.getpid():
            return  # in a fork, the workers belong to the owner
        with self._locked():
            self._closed = True
            self._discard()

    def _running(self) -> socket.socket:
        if self._control is not None and self._process is not None and self._process.poll() is None:
            return self._control
        self._discard()
        if not sys.executable:
            raise WorkerStartFailed("sys.executable is empty, so no worker process can be started; use a thread pool")
        ours, theirs = socket.socketpair()
        with theirs:
            ours.settimeout(_ANSWER_TIMEOUT)
            argument = json.dumps([theirs.fileno(), os.getpid(), import_path(), self._preload])
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _BOOT, argument],
                    env=None if self._hash_seed is None else os.environ | {"PYTHONHASHSEED": str(self._hash_seed)},
                    stdin=subprocess.DEVNULL,
                    # Output of the work must not be mixed with that of the program.
                    stdout=_stderr(),
                    stderr=_stderr(),
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise WorkerStartFailed(f"cannot start {sys.executable}: {error}") from error
        self._control = ours
        return ours

    def _discard(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()  # its workers die with it
                self._process.wait(5.0)
            self._process = None


class ProcessWorker:
    """One worker process. It executes one request at a time.

    Any failure to answer, including an exceeded deadline or a cancelled wait, kills it; then ``alive`` is False.
    """

    def __init__(self, fork_server: ForkServerClient, memory_mb: int | None, pool_name: str) -> None:
        self._fork_server = fork_server
        self._memory_mb = memory_mb
        self.name = f"{pool_name}-{next(_worker_numbers)}"
        self.alive = True
        self.pid: int | None = None
        self._request_pending = False
        self._owner_pid = os.getpid()
        ours, theirs = socket.socketpair()
        self._connection = FramedConnection(ours)
        with theirs:
            try:
                fork_server.spawn(self.name, theirs, memory_mb)
            except WorkerStartFailed:
                self._connection.close()
                raise
            except OSError as error:
                self._connection.close()
                raise WorkerStartFailed(f"cannot start worker {self.name}: {error}") from error

    def is_healthy(self) -> bool:
        return self.alive and self._connection.is_idle()

    def call(self, request: WorkRequest, timeout: float) -> Any:
        data = encode_request(request)
        self._request_pending = True
        try:
            if self.pid is None:
                self._check_hello(self._connection.recv(time.monotonic() + START_TIMEOUT))
            deadline = time.monotonic() + timeout
            self._connection.send(data, deadline)
            reply = self._connection.recv(deadline)
        except TimeoutError:
            raise self._deadline_error(request.name, timeout) from None
        except EOFError:
            raise self._death_error(request.name) from None
        except BaseException:
            self.kill()
            raise
        finally:
            self._answered()
        return self._decode(reply, request.name)

    async def acall(self, request: WorkRequest, timeout: float) -> Any:
        data = encode_request(request)
        self._request_pending = True
        try:
            if self.pid is None:
                async with asyncio.timeout(START_TIMEOUT):
                    self._check_hello(await self._connection.arecv())
            async with asyncio.timeout(timeout):
                await self._connection.asend(data)
                reply = await self._connection.arecv()
        except TimeoutError:
            raise self._deadline_error(request.name, timeout) from None
        except EOFError:
            raise await asyncio.to_thread(self._death_error, request.name) from None
        except BaseException:
            self.kill()
            raise
        finally:
            self._answered()
        return self._decode(reply, request.name)

    def kill(self) -> None:
        """End the process with all its descendants. Safe to call twice, and does not wait."""
        if self.alive:
            self.alive = False
            if self._owner_pid != os.getpid():
                self._connection.close()  # in a fork: shutting down the socket would disconnect the owner
                return
            self._fork_server.end(self.name)
            # A caller that waits for an answer, in another thread or event loop, must wake up; it then closes the
            # socket.
            self._connection.hang_up()
            if not self._request_pending:
                self._connection.close()

    def _answered(self) -> None:
        self._request_pending = False
        if not self.alive:
            self._connection.close()

    def _check_hello(self, hello: bytes) -> None:
        self.pid = int(hello.removeprefix(HELLO))

    def _decode(self, reply: bytes, name: str) -> Any:
        try:
            return decode_reply(reply, self._memory_mb, name)
        except MemoryExceeded:
            self.kill()
            raise

    def _deadline_error(self, name: str, timeout: float) -> Exception:
        self.kill()
        if self.pid is None:
            return WorkerStartFailed(f"worker {self.name} did not start within {START_TIMEOUT:g} s")
        return DeadlineExceeded(f"{name!r} did not finish within {timeout:g} s; worker {self.name} was killed")

    def _death_error(self, name: str) -> Exception:
        if not self.alive:
            return WorkerDied(f"worker {self.name} was closed while {name!r} was running")
        status = self._fork_server.exit_status(self.name)
        self.kill()
        if self.pid is None:
            return WorkerStartFailed(
                f"worker {self.name} ended before it was ready ({_describe_status(status)}); its output is on stderr"
            )
        if status == -signal.SIGPROF:
            return CpuTimeExceeded(f"{name!r} used all its CPU time; worker {self.name} was ended")
        hint = f"; its memory is capped at {self._memory_mb} MB" if self._memory_mb is not None else ""
        return WorkerDied(f"worker {self.name} ended during {name!r} ({_describe_status(status)}{hint})")


class PendingCall:
    """A request that was sent to a worker process, for callers that wait for many workers at once.

    The caller waits until the worker's socket (:attr:`fileno`) is ready for :attr:`events`, calls :meth:`advance` then
    and when the deadline passes, and once that returns True :meth:`result` or :meth:`aresult`.

    Attributes:
        context: What the caller needs to know when it has ended.
        fileno: File descriptor of the worker's socket.
        deadline: When the reply is late, in seconds of ``time.monotonic()``.
        unsent: The part of the request that the worker's socket could not take yet.
    """

    __slots__ = ("_connection", "_hung_up", "_method", "_on_end", "_reply", "_timeout", "_worker", "context",
                 "deadline", "fileno", "unsent")  # fmt: skip

    def __init__(
        self, worker: ProcessWorker, method: str, args: tuple[Any, ...], timeout: float, on_end: Callable[[], None]
    ) -> None:
        self._worker = worker
        self._connection = worker._connection
        self.context: Any = None
        self.fileno = self._connection.fileno
        self._method = method
        self._timeout = timeout
        self._on_end: Callable[[], None] | None = on_end
        self._reply: bytes | None = None
        self._hung_up = False
        data = frame(encode_call(method, args))
        worker._request_pending = True
        self.deadline = time.monotonic() + timeout
        # The reply is not read here: the caller polls the socket, which would not become readable again.
        self.unsent: bytes | memoryview = b""
        try:
            self.unsent = self._connection.try_send(data)
        except EOFError:
            self._hung_up = True

    @property
    def events(self) -> int:
        return select.POLLIN | select.POLLOUT if self.unsent else select.POLLIN

    def advance(self) -> bool:
        """Send and read what is possible without waiting. Returns whether the call has ended or is late."""
        if self._reply is None and not self._hung_up:
            try:
                if self.unsent:
                    rest = self._connection.try_send(self.unsent)
                    if len(rest) < len(self.unsent):
                        self.deadline = time.monotonic() + self._timeout  # it counts from when the worker has it all
                    self.unsent = rest
                self._reply = self._connection.try_recv()
            except EOFError:
                self._hung_up = True
        return self._reply is not None or self._hung_up or time.monotonic() >= self.deadline

    def value(self) -> Any:
        """Return the result of a call that has ended, or ``None`` if it failed: then :meth:`aresult` says why."""
        if self._reply is None or self._reply[0] != RESULT[0]:
            return None
        try:
            value = pickle.loads(memoryview(self._reply)[1:])  # noqa: S301 - from our own worker process
        except Exception:
            return None
        self._end()
        return value

    def result(self) -> Any:
        """Return the result of a call that has ended. Raises as :meth:`ProcessWorker.call`."""
        try:
            if self._reply is not None:
                return self._worker._decode(self._reply, self._method)
            if self._hung_up:
                raise self._worker._death_error(self._method)
            raise self._worker._deadline_error(self._method, self._timeout)
        finally:
            self._end()

    async def aresult(self) -> Any:
        """As :meth:`result`, awaited: why a process ended takes time to find out."""
        return await asyncio.to_thread(self.result) if self._hung_up else self.result()

    def cancel(self) -> None:
        """Kill the worker."""
        self._worker.kill()
        self._end()

    def _end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            worker = self._worker
            worker._request_pending = False
            if not worker.alive:
                worker._answered()
            on_end()


def _describe_status(status: int | None) -> str:
    if status is None:
        return "exit status unknown"
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def import_path() -> list[str]:
    """Return ``sys.path`` in a form that another process can use."""
    # "" means the current folder of the process; workers may change theirs.
    return [os.path.abspath(entry) if entry == "" else entry for entry in sys.path if isinstance(entry, str)]


def _stderr() -> int:
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2
