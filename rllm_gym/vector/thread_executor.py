"""Environments in threads of this process: cheap ones share a thread, see :mod:`rllm_gym.runtime.task_threads`."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rllm_gym.core import EnvironmentFault
from rllm_gym.runtime.env_building import EnvBuildSpec
from rllm_gym.runtime.env_host import EnvHost
from rllm_gym.runtime.errors import WorkerStartFailed
from rllm_gym.runtime.request_handler import failure
from rllm_gym.runtime.task_threads import RUNNING, CloseTask, Pace, TaskGivenUp, TaskThreads, ThreadTask
from rllm_gym.vector.env_commands import MAX_ATTEMPTS, EnvCommand, EnvDeadlines, EnvResult
from rllm_gym.vector.result_queue import ResultQueue

_numbers = itertools.count()


class _Slot:
    """The environments of one slot, until a call hangs: then a new object takes its place.

    Attributes:
        host: Holds them, once there is one.
        pace: How long their calls take.
        settings: Attributes that were set on them, and are set on those that replace them.
    """

    def __init__(self) -> None:
        self.host: EnvHost | None = None
        self.pace = Pace()
        self.settings: dict[str, Any] = {}


class _CommandTask(ThreadTask):
    """Executes a command.

    Attributes:
        command: The command; the reset that follows a step replaces it.
        slot: Where it is executed.
    """

    __slots__ = ("_executor", "_failed_host", "_phase", "_result", "command", "slot")

    def __init__(self, executor: ThreadExecutor, slot: _Slot, command: EnvCommand) -> None:
        super().__init__(executor.seconds[command.op], slot.pace.slow)
        self.command = command
        self.slot = slot
        self._executor = executor
        self._phase = command.op
        self._failed_host: EnvHost | None = None

    @property
    def name(self) -> str:
        return f"{self._phase} of environment {self.command.index}"

    def run(self) -> None:
        began = time.monotonic()
        self._result: EnvResult
        try:
            self._result = self._execute()
        except TaskGivenUp:
            raise
        except EnvironmentFault as fault:
            self._failed_host, self.slot.host = self.slot.host, None
            command = self.command
            self._result = EnvResult(command.index, command.final, fault=fault, replacements=command.replacements + 1)
        except BaseException as error:
            command = self.command
            self._result = EnvResult(
                command.index, command.final, error=failure(error), replacements=command.replacements
            )
        self.slot.pace.add(time.monotonic() - began)

    def deliver(self) -> None:
        if self._failed_host is not None:
            self._executor.close_later(self._failed_host)
        self._executor.put(self._result)

    def late(self) -> None:
        self._executor.renew(self.command.index)
        command = replace(self.command, replacements=self.command.replacements + 1)
        if command.op == "reset" and command.replacements < MAX_ATTEMPTS:
            with suppress(WorkerStartFailed):
                self._executor.submit([command])
                return
        fault = EnvironmentFault(
            f"{self._phase} did not finish within {self.seconds:g} s", kind=f"{self._phase}_deadline"
        )
        self._executor.put(EnvResult(command.index, command.final, fault=fault, replacements=command.replacements))

    def clean_up(self) -> None:
        if self.slot.host is not None:
            with suppress(Exception):
                self.slot.host.close()

    def _execute(self) -> EnvResult:
        command = self.command
        if command.op == "step":
            if self.slot.host is None:
                raise EnvironmentFault("the environment is closed", kind="closed")
            stepped = self.slot.host.step(command.action)
            following = command.reset_after(stepped)
            if following is None:
                return EnvResult(command.index, stepped)
            command = self.command = following
            self._enter("reset")
        if command.op == "reset":
            return self._reset(command)
        host = self._host(command.member)
        if command.op == "make":
            return EnvResult(command.index, value=host.describe(command.member))
        if command.op == "set":
            name, value = command.arguments
            self.slot.settings[name] = value
            host.set(name, value)
            return EnvResult(command.index)
        return EnvResult(command.index, value=host.call(*command.arguments))

    def _reset(self, command: EnvCommand) -> EnvResult:
        while True:
            try:
                host = self._host(command.member)
                reset = host.reset(command.effective_seed(), command.options, command.member)
                return EnvResult(command.index, command.final, reset, replacements=command.replacements)
            except EnvironmentFault:
                if command.replacements + 1 >= MAX_ATTEMPTS:
                    raise
            command.replacements += 1
            failed_host, self.slot.host = self.slot.host, None
            if failed_host is not None:
                self._enter("close")
                with suppress(Exception):
                    failed_host.close()
            self._enter("reset")

    def _host(self, member: str) -> EnvHost:
        """Return the slot's host, with this environment created."""
        host = self.slot.host
        if host is None:
            host = self.slot.host = EnvHost(self._executor.build_specs)
        if not host.has_env(member):
            phase = self._phase
            self._enter("make")
            try:
                host.make(member)
                for name, value in self.slot.settings.items():
                    host.set(name, value)
            except EnvironmentFault:
                raise
            except Exception as error:
                if phase == "make":
                    raise  # the first one: mostly the caller's mistake
                raise EnvironmentFault(
                    f"creating the environment raised {type(error).__name__}: {error}", kind="make"
                ) from error
            self._enter(phase)
        return host

    def _enter(self, phase: str) -> None:
        self.enter(self._executor.seconds[phase])
        self._phase = phase


class ThreadExecutor:
    """Executes commands in threads. A late thread cannot be killed: it is abandoned, counted, and logged.

    Args:
        build_specs: The environments that a slot can create, by name.
        count: Number of slots.
        deadlines: Seconds that each call may take.
    """

    def __init__(self, build_specs: Mapping[str, EnvBuildSpec], count: int, deadlines: EnvDeadlines) -> None:
        self.build_specs = build_specs
        self.seconds = {name: getattr(deadlines, name) for name in ("make", "reset", "step", "close")}
        self.seconds |= {"call": deadlines.step, "set": deadlines.step}
        name = f"vector-{next(_numbers)}"
        self._threads = TaskThreads(name, f"vector environment {name!r}")
        self._results = ResultQueue()
        self._slots = [_Slot() for _ in range(count)]
        self._pid = os.getpid()
        self._closed = False

    @property
    def abandoned(self) -> int:
        """Number of threads abandoned so far."""
        return self._threads.abandoned

    def submit(self, commands: Sequence[EnvCommand]) -> None:
        """Start commands without waiting. Each slot may have at most one command in progress."""
        if not self._closed:
            self._threads.submit([_CommandTask(self, self._slots[command.index], command) for command in commands])

    def put(self, result: EnvResult) -> None:
        """Add a result."""
        self._results.put(result)

    def take(self, at_least: int, timeout: float | None) -> list[EnvResult]:
        """As :meth:`ResultQueue.take`."""
        return self._results.take(at_least, timeout)

    def renew(self, index: int) -> None:
        """Continue a slot without its environments: a call of them hangs."""
        hung = self._slots[index]
        slot = self._slots[index] = _Slot()
        slot.pace, slot.settings = hung.pace, hung.settings

    def close_later(self, host: EnvHost) -> None:
        """Close environments without waiting."""
        with suppress(WorkerStartFailed):
            self._threads.submit([CloseTask(host.close, self.seconds["close"], slow=True)])

    def close(self) -> None:
        """Close every idle environment and end the threads; busy threads close theirs when they return."""
        if self._closed or os.getpid() != self._pid:
            return  # called twice, or in a fork: threads and environments belong to the parent
        self._closed = True
        self._results.close()
        busy = {
            task.slot
            for task in self._threads.unfinished()
            if isinstance(task, _CommandTask) and self._threads.give_up(task) == RUNNING
        }
        seconds = self.seconds["close"]
        self._threads.submit(
            [
                CloseTask(slot.host.close, seconds, slow=slot.pace.slow)
                for slot in self._slots
                if slot not in busy and slot.host is not None
            ]
        )
        self._threads.close()
        self._threads.join(2 * seconds)
