"""Environments in threads of this process: steps and resets go straight to the threads, and cheap ones share a thread.

What takes long or has failed (creating an environment, closing and replacing it) goes to the event loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rllm_gym.runtime import WorkerPool
from rllm_gym.runtime.env_worker import EnvDeadlines
from rllm_gym.runtime.thread_worker import ThreadCall, kill_workers
from rllm_gym.vector.async_executor import AsyncExecutor, VectorEnvWorker
from rllm_gym.vector.env_commands import EnvCommand, EnvResult


class ThreadEnvWorker(VectorEnvWorker):
    """The environments of one slot, in a thread."""

    def prepare(self, method: str, *args: Any) -> ThreadCall | None:
        """Prepare a reset or a step; ``None`` if it cannot be called in a thread."""
        if self._actor is None or not self._actor.alive:
            return None
        return self._actor.prepare(method, *args, timeout=self.deadline(method))

    def _await_coroutines(self, local: Any) -> None:
        """Leave an asynchronous environment in its thread: its other methods may block."""


class ThreadExecutor(AsyncExecutor):
    """Executes commands in threads. Arguments as :class:`AsyncExecutor`."""

    _workers: list[ThreadEnvWorker]  # type: ignore[assignment]

    def __init__(
        self, new_worker: Callable[[], VectorEnvWorker], count: int, deadlines: EnvDeadlines, pool: WorkerPool
    ) -> None:
        super().__init__(new_worker, count, deadlines, pool)
        self._calls: dict[int, ThreadCall] = {}  # by slot

    def submit(self, commands: Sequence[EnvCommand]) -> None:
        calls, others = [], []
        for command in commands:
            call = self._prepare(command)
            if call is None:
                others.append(command)
            else:
                calls.append(call)
        if calls:
            self._pool.start(calls)
        if others:
            super().submit(others)

    def close(self) -> None:
        if self._closed or os.getpid() != self._pid:
            return
        calls, self._calls = self._calls, {}
        kill_workers([call.worker for call in list(calls.values())])
        super().close()

    def _prepare(self, command: EnvCommand) -> ThreadCall | None:
        worker = self._workers[command.index]
        if command.op == "step":
            call = worker.prepare("step", command.action)
        elif command.op == "reset" and worker.has_env(command.env_name):
            call = worker.prepare("reset", command.effective_seed(), command.options, command.env_name)
        else:
            return None
        if call is not None:
            self._calls[command.index] = call
            call.context, call.ended = command, self._finish
        return call

    def _finish(self, call: ThreadCall) -> None:
        command: EnvCommand = call.context
        if self._calls.pop(command.index, None) is None:
            return  # closed meanwhile
        if not call.returned:
            self._loop.call_soon(partial(self._begin, [command], call))
        elif isinstance(outcome := command.after(call.result()), EnvResult):
            self._results.put(outcome)
        else:
            self.submit([outcome])
