"""Environments in worker processes: steps and resets are sent and read in the caller's own thread.

To send a command to every worker and then read the replies in order costs a fraction of the CPU time of an event
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
from rllm_gym.runtime.env_worker import EnvDeadlines
from rllm_gym.runtime.process_worker import PendingCall
from rllm_gym.vector.async_executor import AsyncExecutor, VectorEnvWorker
from rllm_gym.vector.env_commands import EnvCommand, EnvResult

_MAX_POLL_SECONDS = (2**31 - 1) / 1000


class ProcessExecutor(AsyncExecutor):
    """Executes commands in worker processes. Arguments as :class:`AsyncExecutor`."""

    def __init__(
        self, new_worker: Callable[[], VectorEnvWorker], count: int, deadlines: EnvDeadlines, pool: WorkerPool
    ) -> None:
        super().__init__(new_worker, count, deadlines, pool)
        # By file descriptor, in the order of sending. Threads share it without a lock: each change is one operation.
        self._calls: dict[int, PendingCall] = {}
        self._first_deadline = math.inf  # or a time before it
        # Wakes the thread that waits for workers.
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        # Held while they are used, so that another thread does not close them. A signal handler may close, too.
        self._wake_lock = threading.RLock()
        self._woken = self._wake_reader.fileno()
        self._waiting = False
        self._in_order = False
        self._events: list[tuple[int, int]] = []
        self._any_worker = select.poll()
        self._any_worker.register(self._wake_reader, select.POLLIN)
        self._registered: set[int] = set()

    def submit(self, commands: Sequence[EnvCommand]) -> None:
        for command in commands:
            if not self._send(command):
                super().submit([command])
        if self._waiting:
            self._wake()

    def put(self, result: EnvResult) -> None:
        super().put(result)
        if self._waiting:
            self._wake()

    def wait(self, at_least: int, timeout: float | None) -> None:
        with self._wake_lock:
            if self._results.closed:
                return  # take() says so
            self._waiting = True
            try:
                seconds = self._first_deadline - time.monotonic()
                if timeout is not None and timeout < seconds:
                    seconds = timeout
                if self._results.ready or seconds < 0:
                    seconds = 0.0
                poller = self._any_worker
                calls = self._calls  # another thread may close the executor, which takes them all away
                self._in_order = at_least >= len(calls) > 1
                if self._in_order:  # mostly, the first one is still at work
                    call = list(calls.values())[0]  # noqa: RUF015 - other threads add calls
                    poller = select.poll()
                    poller.register(self._woken, select.POLLIN)
                    poller.register(call.fileno, call.events)
                self._events = poller.poll(None if seconds > _MAX_POLL_SECONDS else seconds * 1000)
                if self._in_order and not self._events:  # others than the first may have answered
                    self._in_order = False
                    self._events = self._any_worker.poll(0)
                for descriptor, _ in self._events:
                    if descriptor == self._woken:
                        with suppress(OSError):  # nothing is left, or a signal handler has closed it
                            self._wake_reader.recv(4096)
            finally:
                self._waiting = False

    def take(self) -> list[EnvResult]:
        results = super().take() if self._results.ready else []
        call: PendingCall | None
        if self._in_order:
            for call in list(self._calls.values()):
                if not call.advance():
                    break
                self._finish(call, results)
        else:
            for descriptor, _ in self._events:
                call = self._calls.get(descriptor)
                if call is None:
                    self._unregister(descriptor)
                elif call.advance():
                    self._finish(call, results)
                else:
                    self._register(call)  # its events may have changed
        if time.monotonic() >= self._first_deadline:
            self._end_late(results)
        return results

    def close(self) -> None:
        if self._closed or os.getpid() != self._pid:
            return
        calls, self._calls = self._calls, {}
        for call in list(calls.values()):
            call.cancel()
        self._results.close()  # from here on nothing waits again
        self._wake()
        with self._wake_lock:
            self._wake_reader.close()
            self._wake_writer.close()
        super().close()

    def _send(self, command: EnvCommand) -> bool:
        """Send a command whose environment exists. Returns whether it was sent."""
        worker = self._workers[command.index]
        call: PendingCall | None = None
        try:
            if command.op == "step":
                call = worker.start("step", command.action)
            elif command.op == "reset" and worker.has_env(command.env_name):
                call = worker.start("reset", command.effective_seed(), command.options, command.env_name)
        except (TypeError, ValueError):  # it cannot be pickled, which the event loop will report as the result
            return False
        if call is None:
            return False
        call.context = command
        self._calls[call.fileno] = call
        if call.deadline < self._first_deadline:
            self._first_deadline = call.deadline
        if call.fileno not in self._registered or call.unsent:
            self._register(call)
        return True

    # Reading, in the thread that takes results

    def _unregister(self, descriptor: int) -> None:
        """Ignore an idle worker that has died: its next call will say so."""
        if descriptor == self._woken:
            return
        self._any_worker.unregister(descriptor)
        self._registered.discard(descriptor)
        if call := self._calls.get(descriptor):  # sent by another thread meanwhile
            self._register(call)

    def _end_late(self, results: list[EnvResult]) -> None:
        """End the calls that are late."""
        for call in list(self._calls.values()):
            if call.advance():
                self._finish(call, results)
        # Repeated if another thread has sent something meanwhile.
        while (first := min([call.deadline for call in list(self._calls.values())], default=math.inf)) != (
            self._first_deadline
        ):
            self._first_deadline = first

    def _register(self, call: PendingCall) -> None:
        self._any_worker.register(call.fileno, call.events)
        self._registered.add(call.fileno)

    def _finish(self, call: PendingCall, results: list[EnvResult]) -> None:
        if self._calls.pop(call.fileno, None) is None:
            return  # closed meanwhile
        command: EnvCommand = call.context
        value = call.value()
        if value is None:  # the event loop deals with it
            self._loop.call_soon(partial(self._begin, [command], call))
        elif isinstance(outcome := command.after(value), EnvResult):
            results.append(outcome)
        else:
            self.submit([outcome])

    def _wake(self) -> None:
        with suppress(OSError):  # it is awake already, or closed
            self._wake_writer.send(b"\0")
