"""The pool: assigns work to idle workers, waits for a free one, and removes failed ones."""

# ruff: noqa: ASYNC109 - the timeout is the contract: passing it kills the worker
from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self, get_args

from rllm_gym.argument_checks import check_int
from rllm_gym.runtime.errors import DeadlineExceeded, WorkerDied
from rllm_gym.runtime.process_worker import ForkServerClient, PendingCall, ProcessWorker
from rllm_gym.runtime.ray_workers import RayWorker, connect
from rllm_gym.runtime.request_handler import WorkRequest
from rllm_gym.runtime.thread_worker import ThreadCall, ThreadWorker, kill_workers
from rllm_gym.runtime.worker_threads import WorkerThreads

WorkerKind = Literal["thread", "process", "ray"]
WORKER_KINDS: tuple[str, ...] = get_args(WorkerKind)
"""Kinds of workers."""

Worker = ProcessWorker | ThreadWorker | RayWorker
StartedCall = PendingCall | ThreadCall

QUEUE_TIMEOUT = 600.0
"""Default seconds that a call waits for a free worker before it fails."""


class WorkerPool:
    """Work with deadlines, in at most ``max_workers`` threads, processes or Ray actors, from any thread or event loop.

    Workers start on demand and are reused while they are healthy. Close the pool with ``with``, ``async with`` or
    :meth:`close`; a pool left open is closed when it is garbage-collected or the interpreter exits.

    **Deadlines.** ``timeout`` limits the duration of the *work*, counted from the moment a started worker begins it.
    Waiting in the queue behind other work does not count, so that work does not fail because the pool is busy; that
    wait has its own limit, ``queue_timeout``. Since all work has a deadline, the queue always moves; only actors keep
    their worker until they are closed.

    **Processes** are forked from a warm, single-threaded template that belongs to the pool. A late one is killed, with
    every process it started. All die with this process, even when it is killed by SIGKILL. Functions and classes are
    sent with ``cloudpickle``, so that scripts need no ``if __name__ == "__main__"`` and interactive definitions work.
    Output of the work goes to stderr; standard input is empty. Ctrl-C does not reach them. Working directory and
    environment variables are those of the moment the first worker was started.

    **Threads** cannot be killed: one that is late is abandoned, counted in :attr:`abandoned` and logged. Actors whose
    calls are short share a thread, and calls of one actor may run in different threads, one at a time.

    **Ray actors** are processes on the machines of a Ray cluster: the one this process is connected to
    (``ray.init(...)``), else the one at ``RAY_ADDRESS``; none is started. rllm-gym has to be installed on every node,
    and the modules that the work imports too, unless they are in a shared folder. They are killed like processes and
    end with this process; Ray ends their children, except programs that left their session. Output of the work goes
    where Ray sends it; working directory and environment variables are those of the node.

    A fork of this process cannot use the pool (``RuntimeError``) and must create its own.

    Args:
        kind: ``"process"``, ``"thread"`` or ``"ray"``.
        max_workers: Maximum number of workers alive at a time, actors included.
        memory_mb: Private memory in MB that each process may use above that of a new one; ``None`` sets no limit.
        name: Name of the workers in messages.
        preload: Modules imported once, in the template, before workers are forked (they must start no threads); each
            Ray actor imports them when it starts.
        own_threads: For threads: whether each worker has a thread of its own, for objects that are bound to one. By
            default, cheap calls share a thread, and a worker's calls run in various threads.
        hash_seed: ``PYTHONHASHSEED`` of the processes, for work whose results depend on the order of sets; ``None``: a
            random one per pool.

    Raises:
        ValueError: An argument is out of range, or threads were given a memory limit.
        ModuleNotFoundError: ``kind="ray"`` without the extra ``ray``.
        RuntimeError: ``kind="ray"`` and there is no cluster.
    """

    def __init__(
        self,
        kind: WorkerKind = "process",
        *,
        max_workers: int,
        memory_mb: int | None = None,
        name: str = "worker",
        preload: Sequence[str] = (),
        own_threads: bool = False,
        hash_seed: int | None = None,
    ) -> None:
        if kind not in WORKER_KINDS:
            raise ValueError(f"kind={kind!r} must be one of {', '.join(map(repr, WORKER_KINDS))}")
        check_int("max_workers", max_workers)
        if memory_mb is not None:
            check_int("memory_mb", memory_mb, otherwise="None for no limit")
            if kind == "thread":
                raise ValueError(f"memory_mb={memory_mb!r} needs kind='process' or 'ray'; threads share memory")
        if own_threads and kind != "thread":
            raise ValueError(f"own_threads=True needs kind='thread', not {kind!r}")
        if hash_seed is not None and (kind != "process" or not 0 <= hash_seed < 2**32):
            raise ValueError(f"hash_seed={hash_seed!r} needs kind='process' and a whole number from 0 to 2**32 - 1")
        if kind == "ray":
            connect()
        self.kind = kind
        self.max_workers = max_workers
        self.memory_mb = memory_mb
        self.name = name
        self.killed = 0
        """Number of processes and Ray actors that died, or were killed because work was late or cancelled."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._workers: set[Worker] = set()
        self._starting = 0
        self._queue: deque[concurrent.futures.Future[Worker | None]] = deque()
        self._closed = False
        self._preload = tuple(preload)
        self._own_threads = own_threads
        self._fork_server = ForkServerClient(preload, hash_seed) if kind == "process" else None
        self._threads = WorkerThreads(name) if kind == "thread" else None
        # References no pool, so that an unreferenced one is closed.
        self._finalizer = weakref.finalize(
            self, _shut_down_collected, self._fork_server or self._threads, self._workers
        )

    @property
    def abandoned(self) -> int:
        """Number of late threads abandoned so far."""
        return 0 if self._threads is None else self._threads.abandoned

    # Running work

    def run(self, fn: Callable[..., Any], *args: Any, timeout: float, queue_timeout: float = QUEUE_TIMEOUT) -> Any:
        """Run ``fn(*args)`` in a worker and return its result. Blocks.

        Args:
            fn: An importable function, or for processes anything that ``cloudpickle`` supports.
            timeout: Seconds that the work may take.
            queue_timeout: Seconds to wait for a free worker.

        Raises:
            DeadlineExceeded: The work was late, or no worker became free.
            WorkerDied: The worker ended during the work; subclasses ``MemoryExceeded``, ``WorkerStartFailed``.
            WorkerError: The result or exception of ``fn`` cannot be pickled.
            Exception: Raised by ``fn``.
        """
        _check_timeout(timeout)
        worker = self._acquire(queue_timeout)
        try:
            return worker.call(WorkRequest("run", fn, args), timeout)
        finally:
            self._release(worker)

    async def arun(
        self, fn: Callable[..., Any], *args: Any, timeout: float, queue_timeout: float = QUEUE_TIMEOUT
    ) -> Any:
        """As :meth:`run`, awaited. Cancelling it kills (or abandons) the worker."""
        _check_timeout(timeout)
        worker = await self._aacquire(queue_timeout)
        try:
            return await worker.acall(WorkRequest("run", fn, args), timeout)
        finally:
            self._release(worker)

    def actor(
        self, factory: Callable[..., Any], *args: Any, timeout: float, queue_timeout: float = QUEUE_TIMEOUT
    ) -> Actor:
        """Create the object ``factory(*args)`` in a dedicated worker, where it stays until the actor is closed.

        Raises: as :meth:`run`.
        """
        _check_timeout(timeout)
        worker = self._acquire(queue_timeout)
        try:
            worker.call(WorkRequest("make", factory, args), timeout)
        except BaseException:
            self._end_worker(worker)
            raise
        return Actor(self, worker, WorkRequest("make", factory).name)

    async def aactor(
        self, factory: Callable[..., Any], *args: Any, timeout: float, queue_timeout: float = QUEUE_TIMEOUT
    ) -> Actor:
        """As :meth:`actor`, awaited."""
        _check_timeout(timeout)
        worker = await self._aacquire(queue_timeout)
        try:
            await worker.acall(WorkRequest("make", factory, args), timeout)
        except BaseException:
            self._end_worker(worker)
            raise
        return Actor(self, worker, WorkRequest("make", factory).name)

    def start(self, calls: Sequence[ThreadCall]) -> None:
        """Start calls of :meth:`Actor.prepare` together, without waiting."""
        assert self._threads is not None
        if self._own_threads:
            for call in calls:
                call.start()
        else:
            self._threads.submit(calls)

    # Closing

    def close(self) -> None:
        """End every worker, actors included, and refuse all waiting calls. Safe to call twice."""
        with self._lock:
            self._closed = True
            line = list(self._queue)
            self._queue.clear()
            self._idle.clear()
        for future in line:
            if future.set_running_or_notify_cancel():
                future.set_exception(self._closed_error())
        if self._finalizer.detach() is not None and self._pid == os.getpid():
            _shut_down(self._fork_server or self._threads, self._workers)

    async def aclose(self) -> None:
        """As :meth:`close`, awaited."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # Workers

    def _acquire(self, queue_timeout: float) -> Worker:
        taken = self._claim()
        if isinstance(taken, concurrent.futures.Future):
            place = taken
            try:
                taken = place.result(queue_timeout)
            except TimeoutError:
                taken = self._leave_queue(place, queue_timeout)
            except BaseException:
                self._abandon_place(place)
                raise
        return taken if taken is not None else self._start()

    async def _aacquire(self, queue_timeout: float) -> Worker:
        taken = self._claim()
        if isinstance(taken, concurrent.futures.Future):
            place = taken
            try:
                async with asyncio.timeout(queue_timeout):
                    # shield: a cancelled wait must not race with the handover of a worker.
                    taken = await asyncio.shield(asyncio.wrap_future(place))
            except TimeoutError:
                taken = self._leave_queue(place, queue_timeout)
            except BaseException:
                self._abandon_place(place)
                raise
        return taken if taken is not None else self._start()

    def _claim(self) -> Worker | concurrent.futures.Future[Worker | None] | None:
        """Return an idle worker, ``None`` for permission to start one, or a place in the queue."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"pool {self.name!r} belongs to process {self._pid}; a forked process must create its own pool"
            )
        with self._lock:
            if self._closed:
                raise self._closed_error()
            while self._idle:
                worker = self._idle.pop()
                if worker.is_healthy():
                    return worker
                self._drop(worker)
            if len(self._workers) + self._starting < self.max_workers:
                self._starting += 1
                return None
            place: concurrent.futures.Future[Worker | None] = concurrent.futures.Future()
            self._queue.append(place)
            return place

    def _start(self) -> Worker:
        worker: Worker | None = None
        try:
            if self._fork_server is not None:
                worker = ProcessWorker(self._fork_server, self.memory_mb, self.name)
            elif self._threads is not None:
                worker = ThreadWorker(self.name, self._threads, own_thread=self._own_threads)
            else:
                worker = RayWorker(self._preload, self.memory_mb, self.name)
            return worker
        finally:
            with self._lock:
                self._starting -= 1
                if worker is not None:
                    self._workers.add(worker)
                else:
                    self._serve_next(None)
                closed = self._closed
            if closed and worker is not None:
                worker.kill()

    def _release(self, worker: Worker) -> None:
        with self._lock:
            if self._closed:
                self._workers.discard(worker)
                worker.kill()
            elif worker.alive:
                self._serve_next(worker)
            else:
                self._drop(worker)
                self._serve_next(None)

    def _end_worker(self, worker: Worker) -> None:
        """End a worker that is in use. It counts as killed only if it has ended before."""
        ended_before = not worker.alive
        worker.kill()
        with self._lock:
            self._workers.discard(worker)
            if not self._closed:
                self.killed += ended_before and self.kind != "thread"
                self._serve_next(None)

    def _drop(self, worker: Worker) -> None:
        """Remove a worker that was killed or has died. Called with the lock held."""
        self._workers.discard(worker)
        if self.kind != "thread":
            self.killed += 1
        worker.kill()

    def _serve_next(self, worker: Worker | None) -> None:
        """Give a worker, or permission to start one, to the first waiting call. Called with the lock held."""
        while self._queue:
            place = self._queue.popleft()
            if place.set_running_or_notify_cancel():
                if worker is None:
                    self._starting += 1
                place.set_result(worker)
                return
        if worker is not None:
            self._idle.append(worker)

    def _leave_queue(self, waiter: concurrent.futures.Future[Worker | None], waited: float) -> Worker | None:
        with self._lock:
            handed_over = waiter.done()
            if not handed_over:
                waiter.cancel()
        if handed_over:
            return waiter.result()
        raise DeadlineExceeded(
            f"no worker of pool {self.name!r} became free within {waited:g} s; all {self.max_workers} are busy or "
            "held by actors: close actors, raise max_workers or queue_timeout"
        )

    def _abandon_place(self, waiter: concurrent.futures.Future[Worker | None]) -> None:
        with self._lock:
            if not waiter.done():
                waiter.cancel()
                return
            if waiter.exception() is not None:
                return
            worker = waiter.result()
            if worker is None:
                self._starting -= 1
            self._serve_next(worker)

    def _closed_error(self) -> RuntimeError:
        return RuntimeError(f"pool {self.name!r} is closed")


class Actor:
    """An object in a dedicated worker. Created by :meth:`WorkerPool.actor`.

    One call at a time. A call that is late or cancelled, or during which the worker dies, ends the actor: ``alive`` is
    False and every further call raises :class:`WorkerDied`.
    """

    def __init__(self, pool: WorkerPool, worker: Worker, name: str) -> None:
        self._pool = pool
        self._worker = worker
        self._name = name
        self._busy = threading.Lock()
        # An actor that is garbage-collected returns its worker.
        self._finalizer = weakref.finalize(self, _end_collected, pool, worker)
        self._finalizer.atexit = False

    @property
    def alive(self) -> bool:
        return self._worker.alive

    @property
    def pid(self) -> int | None:
        """The worker's process id, ``None`` for a thread."""
        return self._worker.pid

    def call(self, method: str, *args: Any, timeout: float, **kwargs: Any) -> Any:
        """Call ``object.method(*args, **kwargs)`` in the worker; for a non-callable attribute, return its value.

        Raises:
            DeadlineExceeded: The call was late; the actor is dead.
            WorkerDied: The worker ended; the actor is dead.
            WorkerError: The result or exception cannot be pickled.
            Exception: Raised by the method; the actor stays alive.
            RuntimeError: Another call is in progress.
        """
        _check_timeout(timeout)
        try:
            self._begin(method)
            try:
                return self._worker.call(WorkRequest("call", method, args, kwargs), timeout)
            finally:
                self._end()
        except Exception:
            raise
        except BaseException:  # Ctrl-C, perhaps before the inner ``try``
            self.kill()
            raise

    async def acall(self, method: str, *args: Any, timeout: float, **kwargs: Any) -> Any:
        """As :meth:`call`, awaited."""
        _check_timeout(timeout)
        self._begin(method)
        try:
            return await self._worker.acall(WorkRequest("call", method, args, kwargs), timeout)
        finally:
            self._end()

    def start(self, method: str, args: tuple[Any, ...], timeout: float) -> PendingCall:
        """As :meth:`call`, without waiting. Only for the actor of a process, and not for its first call.

        The actor is busy until the result was fetched, or the call cancelled.
        """
        assert isinstance(self._worker, ProcessWorker)
        self._begin(method)
        try:
            return PendingCall(self._worker, method, args, timeout, self._end)
        except BaseException:
            self._end()
            raise

    def prepare(self, method: str, *args: Any, timeout: float) -> ThreadCall:
        """Prepare a call for :meth:`WorkerPool.start`, whose ``ended`` has to be set. Only for the actor of a thread.

        Whether another call is in progress is not checked.
        """
        assert isinstance(self._worker, ThreadWorker)
        return self._worker.prepare(WorkRequest("call", method, args), timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Call the object's ``close()``, if it has one, and end the worker in any case. A late or busy one is killed.

        Safe to call twice.

        Raises:
            DeadlineExceeded: The object's ``close()`` was late.
            Exception: Raised by the object's ``close()``.
        """
        _check_timeout(timeout)
        if not self.alive or not self._busy.acquire(blocking=False):
            self.kill()
            return
        try:
            self._worker.call(WorkRequest("close"), timeout)
        finally:
            self._busy.release()
            self.kill()

    async def aclose(self, timeout: float = 10.0) -> None:
        """As :meth:`close`, awaited."""
        _check_timeout(timeout)
        if not self.alive or not self._busy.acquire(blocking=False):
            self.kill()
            return
        try:
            await self._worker.acall(WorkRequest("close"), timeout)
        finally:
            self._busy.release()
            self.kill()

    def kill(self) -> None:
        """End the worker now, without the object's ``close()``. Safe to call twice."""
        if self._finalizer.detach() is not None:
            self._pool._end_worker(self._worker)

    def _begin(self, method: str) -> None:
        if not self._worker.alive:
            raise WorkerDied(f"the actor {self._name!r} has ended, so {method!r} cannot be called; create a new actor")
        if not self._busy.acquire(False):
            raise RuntimeError(f"the actor {self._name!r} is busy; an actor runs one call at a time")

    def _end(self) -> None:
        self._busy.release()
        if not self._worker.alive:
            self.kill()


def _end_collected(pool: WorkerPool, worker: Worker) -> None:
    """End the worker of an actor that was garbage-collected, perhaps by a thread that holds a lock of the pool.

    So another thread does it. ``threading.Thread.start`` would wait for that thread, which a finalizer must not do.
    """
    with suppress(RuntimeError):  # no more threads: the worker ends with the pool
        _thread.start_new_thread(pool._end_worker, (worker,))


def _shut_down(server: ForkServerClient | WorkerThreads | None, workers: set[Worker]) -> None:
    kill_workers([worker for worker in list(workers) if isinstance(worker, ThreadWorker)])
    for worker in list(workers):
        worker.kill()
    workers.clear()
    if server is not None:
        server.close()


def _shut_down_collected(server: ForkServerClient | WorkerThreads | None, workers: set[Worker]) -> None:
    if threading.main_thread().is_alive():  # as in _end_collected
        with suppress(RuntimeError):
            _thread.start_new_thread(_shut_down, (server, workers))
    else:  # the interpreter exits
        _shut_down(server, workers)


def _check_timeout(timeout: float) -> None:
    if not (math.isfinite(timeout) and timeout > 0):
        raise ValueError(f"timeout={timeout!r} must be a finite number of seconds above 0")
