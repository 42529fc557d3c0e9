"""Environments in worker processes: steps and resets are sent and read in the caller's own thread.

To send a command to every worker and then read the replies in order costs a fraction of the processor time of an event
loop, which registers and selects every socket at every step. What takes long or has failed (creating an environment,
closing and replacing it) goes to the event loop.
"""

from __future__ import annotations

import math
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from rllm_gym.runtime import WorkerPool
from rllm_gym.runtime.process_worker import PendingCall
from rllm_gym.vector.async_executor import AsyncExecutor, VectorEnvWorker
from rllm_gym.vector.env_commands import EnvCommand, EnvDeadlines, EnvResult

_MAX_POLL_MS = 2**31 - 1

_Call = tuple[int, PendingCall, EnvCommand]
"""File descriptor of the worker, what was sent to it, and why."""


class ProcessExecutor(AsyncExecutor):
    """Executes commands in worker processes. Arguments as :class:`AsyncExecutor`."""

    def __init__(
        self, new_worker: Callable[[], VectorEnvWorker], count: int, deadlines: EnvDeadlines, pool: WorkerPool
    ) -> None:
        super().__init__(new_worker, count, deadlines, pool)
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}  # by file descriptor, in the order of sending
        # Wakes the thread that waits for workers.
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._taking = False
        self._poller = select.poll()
        self._poller.register(self._wake_reader, select.POLLIN)

    def submit(self, commands: Sequence[EnvCommand]) -> None:
        others = [command for command in commands if not self._send(command)]
        if others:
            super().submit(others)
        if self._taking:
            self._wake()

    def put(self, result: EnvResult) -> None:
        super().put(result)
        if self._taking:
            self._wake()

    def take(self, at_least: int, timeout: float | None) -> list[EnvResult]:
        give_up = math.inf if timeout is None else time.monotonic() + timeout
        results: list[EnvResult] = []
        self._taking = True
        try:
            while True:
                results += super().take(0, 0)
                with self._lock:
                    calls = list(self._calls.values())
                missing = at_least - len(results)
                if missing <= 0 or time.monotonic() >= give_up:
                    self._read_all(results)
                    return results
                if missing >= len(calls):
                    self._read_in_order(calls, results, give_up)
                else:
                    self._read_ready(calls, results, give_up)
        except BaseException:  # such as Ctrl-C: the next call gets what this one has read
            for result in results:
                super().put(result)
            raise
        finally:
            self._taking = False

    def close(self) -> None:
        if self._closed or os.getpid() != self._pid:
            return
        with self._lock:
            calls, self._calls = list(self._calls.values()), {}
            for descriptor, _, _ in calls:
                self._poller.unregister(descriptor)
        for _, call, _ in calls:
            call.cancel()
        super().close()
        self._wake()
        self._wake_reader.close()
        self._wake_writer.close()

    def _send(self, command: EnvCommand) -> bool:
        """Send a command whose environment exists. Returns whether it was sent."""
        worker = self._workers[command.index]
        call: PendingCall | None = None
        with suppress(TypeError, ValueError):  # it cannot be pickled, which the event loop will report as the result
            if command.op == "step":
                call = worker.start("step", command.action)
            elif command.op == "reset" and worker.has_env(command.member):
                call = worker.start("reset", command.effective_seed(), command.options, command.member)
        if call is None:
            return False
        descriptor = call.fileno()
        with self._lock:
            self._calls[descriptor] = descriptor, call, command
            self._poller.register(descriptor, call.events)
        return True

    # Reading, in the thread that takes results

    def _read_in_order(self, calls: Sequence[_Call], results: list[EnvResult], until: float) -> None:
        """Read the replies of all calls in order, up to the first that has not arrived; then wait for that one."""
        for item in calls:
            descriptor, call, _ = item
            if not call.advance():
                poller = select.poll()
                poller.register(self._wake_reader, select.POLLIN)
                poller.register(descriptor, call.events)
                first_deadline = min([call.deadline for _, call, _ in calls])
                self._poll(poller, min(until, first_deadline))
                if time.monotonic() >= first_deadline:
                    self._read_all(results)
                return
            self._finish(item, results)
        if not calls:
            self._poll(self._poller, until)

    def _read_ready(self, calls: Sequence[_Call], results: list[EnvResult], until: float) -> None:
        """Wait for any of the calls, and read the replies that have arrived."""
        first_deadline = min([call.deadline for _, call, _ in calls])
        for descriptor in self._poll(self._poller, min(until, first_deadline)):
            item = self._calls.get(descriptor)
            if item is None:
                continue
            if item[1].advance():
                self._finish(item, results)
            else:
                self._poller.modify(descriptor, item[1].events)
        if time.monotonic() >= first_deadline:
            self._read_all(results)

    def _read_all(self, results: list[EnvResult]) -> None:
        """Read the replies that have arrived, and end the calls that are late, without waiting."""
        with self._lock:
            calls = list(self._calls.values())
        for item in calls:
            if item[1].advance():
                self._finish(item, results)

    def _poll(self, poller: select.poll, until: float) -> list[int]:
        """Wait until a worker or another thread has something, or the time comes. Returns what is ready."""
        left = None if until == math.inf else min(max(0.0, until - time.monotonic()) * 1000, _MAX_POLL_MS)
        ready = [descriptor for descriptor, _ in poller.poll(left)]
        if self._wake_reader.fileno() in ready:
            with suppress(BlockingIOError):
                self._wake_reader.recv(4096)
        return ready

    def _finish(self, item: _Call, results: list[EnvResult]) -> None:
        descriptor, call, command = item
        with self._lock:
            if self._calls.pop(descriptor, None) is None:
                return  # closed meanwhile
            self._poller.unregister(descriptor)
        try:
            value = call.result() if call.returned else None
        except Exception:
            value = None  # the event loop deals with it
        if value is None:
            self._loop.call_soon(partial(self._begin, [command], call))
        elif command.op == "reset":
            results.append(EnvResult(command.index, command.final, value, replacements=command.replacements))
        elif (following := command.reset_after(value)) is None:
            results.append(EnvResult(command.index, value))
        else:
            self.submit([following])

    def _wake(self) -> None:
        with suppress(BlockingIOError, OSError):
            self._wake_writer.send(b"\0")
