"""Places in threads of this process: one thread steps cheap environments in turn, slow ones run concurrently.

Handing work from thread to thread costs more than a step of a cheap environment, so one thread works through the whole
queue of commands. An environment that is known to be slow, or turns out to be, keeps the thread that serves it, and
another thread continues with the queue: cheap environments share one handover, and none waits for the slow ones.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rllm_gym.core import EnvironmentFault
from rllm_gym.runtime.env_building import EnvBuildSpec
from rllm_gym.runtime.env_host import EnvHost
from rllm_gym.vector.env_commands import MAX_ATTEMPTS, EnvCommand, EnvDeadlines, EnvResult
from rllm_gym.vector.result_queue import ResultQueue

_log = logging.getLogger(__name__)

_SLOW = 0.001
"""Seconds, averaged over its last calls, above which an environment is served by a dedicated thread."""
_TICK = 0.002
"""Seconds between two checks of a queue that may be blocked."""
_QUIET_TICKS = 25
"""Checks without a new command after which the watch thread sleeps until the next one."""
_numbers = itertools.count()


class _ThreadAbandoned(Exception):
    """This thread was abandoned; its results are ignored."""


class _ThreadEnv:
    """The state of one slot: the host of its environment, the duration of its calls, and the attributes set on it."""

    def __init__(self) -> None:
        self.host: EnvHost | None = None
        self.pace = 0.0
        self.settings: dict[str, Any] = {}


class _ExecutorThread:
    """One thread.

    Attributes:
        command: The command in progress.
        host: The host it is using.
        phase: Which deadline counts, and ``until`` when it passes.
        leads: Whether it will soon take the next command from the queue.
        abandoned: Whether it exceeded a deadline and was abandoned.
    """

    def __init__(self) -> None:
        self.wake = threading.Lock()
        self.wake.acquire()
        self.thread: threading.Thread | None = None
        self.command: EnvCommand | None = None
        self.host: EnvHost | None = None
        self.phase = ""
        self.until = math.inf
        self.leads = True
        self.abandoned = False


class ThreadExecutor:
    """Executes commands in threads. A late thread cannot be killed: it is abandoned, counted, and logged.

    Args:
        build_specs: The environments that a slot can create, by name.
        count: Number of slots.
        deadlines: Seconds that each call may take.
    """

    def __init__(self, build_specs: Mapping[str, EnvBuildSpec], count: int, deadlines: EnvDeadlines) -> None:
        self._build_specs = build_specs
        self._deadlines = deadlines
        self._seconds = {name: getattr(deadlines, name) for name in ("make", "reset", "step", "close")}
        self._shortest = min(self._seconds.values())
        self._seconds |= {"call": deadlines.step, "set": deadlines.step}
        self._results = ResultQueue()
        self._closed = ResultQueue()
        self._name = f"vector-{next(_numbers)}"
        self._pid = os.getpid()
        self._envs = [_ThreadEnv() for _ in range(count)]
        # The attributes below are protected by the lock.
        self._lock = threading.Lock()
        self._queue: deque[EnvCommand] = deque()
        self._threads: set[_ExecutorThread] = set()
        self._idle: list[_ExecutorThread] = []
        self._leads = 0
        self._submitted = 0
        self._taken = 0
        self._ended = False
        self.abandoned = 0
        """Number of threads abandoned so far."""
        self._wake_watch = threading.Condition(threading.Lock())
        self._watch_sleeps = False
        self._watch: threading.Thread | None = None

    def submit(self, commands: Sequence[EnvCommand]) -> None:
        """Start commands without waiting. Each slot may have at most one command in progress."""
        with self._lock:
            self._queue.extend(commands)
            self._submitted += 1
            if self._leads == 0:
                self._start_thread()
            if self._watch is None:
                self._watch = threading.Thread(target=self._watch_threads, name=f"{self._name}-watch", daemon=True)
                self._watch.start()
        if self._watch_sleeps:
            with self._wake_watch:
                self._watch_sleeps = False
                self._wake_watch.notify()

    def put(self, result: EnvResult) -> None:
        """Add a result."""
        self._results.put(result)

    def take(self, at_least: int, timeout: float | None) -> list[EnvResult]:
        """As :meth:`ResultQueue.take`."""
        return self._results.take(at_least, timeout)

    def close(self) -> None:
        """Close every idle environment and end the threads; busy threads close theirs when they return."""
        if os.getpid() != self._pid:
            return  # in a fork, threads and environments belong to the parent
        with self._lock:
            if self._ended:
                return
            self._results.close()
            self._queue.clear()
            for executor_thread in list(self._threads):
                if executor_thread.command is not None:
                    self._abandon_thread(executor_thread)
            open_envs = [index for index, env in enumerate(self._envs) if env.host is not None]
        if open_envs:
            self.submit([EnvCommand(index, "close") for index in open_envs])
            self._closed.take(len(open_envs), self._deadlines.close * 2)
        with self._lock:
            self._ended = True
            threads = [executor_thread.thread for executor_thread in self._threads]
            for executor_thread in self._idle:
                executor_thread.wake.release()
            self._idle.clear()
        with self._wake_watch:
            self._wake_watch.notify()
        for thread in (*threads, self._watch):
            if thread is not None and thread is not threading.current_thread():
                thread.join(self._deadlines.close)

    # The queue

    def _start_thread(self) -> None:
        """Let one more thread work through the queue. Called with the lock held."""
        self._leads += 1
        if self._idle:
            thread = self._idle.pop()
            thread.leads = True
            thread.wake.release()
            return
        thread = _ExecutorThread()
        name = f"{self._name}-{len(self._threads)}"
        thread.thread = threading.Thread(target=self._run, args=(thread,), name=name, daemon=True)
        self._threads.add(thread)
        try:
            thread.thread.start()
        except RuntimeError:  # the machine has no more threads: use the existing ones
            self._threads.discard(thread)
            self._leads -= 1
            if not self._threads:
                raise

    def _run(self, thread: _ExecutorThread) -> None:
        outcome: EnvResult | None = None
        results = self._results
        monotonic = time.monotonic
        while True:
            with self._lock:
                if thread.abandoned:
                    break
                command = self._next(thread, monotonic())
            if outcome is not None:
                results.put(outcome)
                outcome = None
            if command is None:
                if self._ended:
                    return
                thread.wake.acquire()
                continue
            results = self._closed if command.op == "close" else self._results
            env = self._envs[command.index]
            began = monotonic()
            try:
                outcome, failed_host = self._execute(thread, env, command)
            except _ThreadAbandoned:
                break
            env.pace += 0.3 * (monotonic() - began - env.pace)
            if failed_host is not None:
                # The result is delivered before the rest of the environment is closed.
                with self._lock:
                    if thread.abandoned:
                        break
                    self._yield_lead(thread)
                    thread.command = None
                    self._enter(thread, "close")
                results.put(outcome)
                outcome = None
                with suppress(Exception):
                    failed_host.close()
            # An idle thread must not keep the last command and its result alive.
            del command, env, failed_host
        if thread.host is not None:
            with suppress(Exception):
                thread.host.close()

    def _next(self, thread: _ExecutorThread, now: float) -> EnvCommand | None:
        """Return the next command for this thread; without one, it becomes idle. Called with the lock held."""
        thread.command = thread.host = None
        thread.until = math.inf
        if not self._queue:
            self._yield_lead(thread)
            if not self._ended:
                self._idle.append(thread)
            return None
        command = thread.command = self._queue.popleft()
        self._taken += 1
        thread.phase = command.op
        thread.until = now + self._seconds[command.op]
        env = self._envs[command.index]
        thread.host = env.host
        if env.pace > _SLOW:
            self._yield_lead(thread)
            if self._queue and self._leads == 0:
                self._start_thread()
        elif not thread.leads:
            thread.leads = True
            self._leads += 1
        return command

    def _yield_lead(self, thread: _ExecutorThread) -> None:
        if thread.leads:
            thread.leads = False
            self._leads -= 1

    def _abandon_thread(self, thread: _ExecutorThread) -> None:
        """Abandon this thread. Called with the lock held."""
        thread.abandoned = True
        self._yield_lead(thread)
        self._threads.discard(thread)
        if thread.command is not None:
            env = self._envs[thread.command.index]
            if env.host is thread.host:
                env.host = None

    # Executing commands

    def _execute(
        self, thread: _ExecutorThread, env: _ThreadEnv, command: EnvCommand
    ) -> tuple[EnvResult, EnvHost | None]:
        """Return the result, and the host that failed."""
        try:
            if command.op == "step":
                host = thread.host
                if host is None:
                    raise EnvironmentFault("the environment is closed", kind="closed")
                stepped = host.step(command.action)
                following = command.reset_after(stepped)
                if following is None:
                    return EnvResult(command.index, stepped), None
                command = thread.command = following
                self._enter(thread, "reset")
            if command.op == "reset":
                return self._reset(thread, env, command)
            return EnvResult(command.index, value=self._call_or_set(thread, env, command)), None
        except EnvironmentFault as fault:
            failed_host = self._discard_host(thread, env)
            return EnvResult(
                command.index, command.final, fault=fault, replacements=command.replacements + 1
            ), failed_host
        except Exception as error:
            return EnvResult(command.index, command.final, error=error, replacements=command.replacements), None

    def _reset(self, thread: _ExecutorThread, env: _ThreadEnv, command: EnvCommand) -> tuple[EnvResult, EnvHost | None]:
        while True:
            try:
                host = self._host_for(thread, env, command.member, "reset")
                reset = host.reset(command.effective_seed(), command.options, command.member)
                return EnvResult(command.index, command.final, reset, replacements=command.replacements), None
            except EnvironmentFault:
                if command.replacements + 1 >= MAX_ATTEMPTS:
                    raise
            command.replacements += 1
            failed_host = self._discard_host(thread, env)
            if failed_host is not None:
                self._enter(thread, "close")
                with suppress(Exception):
                    failed_host.close()
            self._enter(thread, "reset")

    def _call_or_set(self, thread: _ExecutorThread, env: _ThreadEnv, command: EnvCommand) -> Any:
        if command.op == "make":
            return self._host_for(thread, env, command.member, "make").describe(command.member)
        if command.op == "close":
            host, env.host = env.host, None
            thread.host = host
            if host is not None:
                host.close()
            return None
        host = self._host_for(thread, env, command.member, command.op)
        if command.op == "set":
            name, value = command.arguments
            env.settings[name] = value
            host.set(name, value)
            return None
        return host.call(*command.arguments)

    def _host_for(self, thread: _ExecutorThread, env: _ThreadEnv, member: str, phase: str) -> EnvHost:
        """Return the slot's host, with this environment created."""
        host = env.host
        if host is None:
            host = EnvHost(self._build_specs)
            with self._lock:
                if thread.abandoned:
                    raise _ThreadAbandoned
                env.host = host
        thread.host = host
        if not host.has_env(member):
            self._enter(thread, "make")
            try:
                host.make(member)
                for name, value in env.settings.items():
                    host.set(name, value)
            except EnvironmentFault:
                raise
            except Exception as error:
                if phase == "make":
                    raise  # the first one: mostly the caller's mistake
                raise EnvironmentFault(
                    f"creating the environment raised {type(error).__name__}: {error}", kind="make"
                ) from error
            self._enter(thread, phase)
        return host

    def _discard_host(self, thread: _ExecutorThread, env: _ThreadEnv) -> EnvHost | None:
        with self._lock:
            if thread.abandoned:
                raise _ThreadAbandoned
            failed_host, env.host = env.host, None
        return failed_host

    def _enter(self, thread: _ExecutorThread, phase: str) -> None:
        thread.phase = phase
        thread.until = time.monotonic() + self._seconds[phase]

    # The watch thread

    def _watch_threads(self) -> None:
        """Start more threads when the queue is blocked, and abandon the late ones."""
        submitted = taken = stuck = called = quiet = 0
        look_for_late = 0.0
        while True:
            now = time.monotonic()
            with self._lock:
                if self._ended:
                    return
                quiet = quiet + 1 if self._submitted == submitted and not self._queue else 0
                # Threads started last time have taken one command each: that alone is not progress.
                stuck = stuck + 1 if self._queue and self._taken - taken <= called else 0
                submitted, taken, called = self._submitted, self._taken, 0
                if stuck > 1:
                    called = min(len(self._queue), 2 ** (stuck - 2))
                    self._add_threads(called)
                busy = [thread for thread in self._threads if thread.until < math.inf]
            if now >= look_for_late:
                look_for_late = now + self._shortest
                for thread in busy:
                    if thread.until <= now:
                        self._abandon(thread, now)
                    elif thread.until < look_for_late:
                        look_for_late = thread.until
            with self._wake_watch:
                if quiet <= _QUIET_TICKS:
                    self._wake_watch.wait(_TICK)
                    continue
                self._watch_sleeps = True
                if self._submitted == submitted and not self._ended:
                    self._wake_watch.wait(max(0.0, look_for_late - now) if busy else None)
                self._watch_sleeps = False

    def _add_threads(self, count: int) -> None:
        """Treat all busy threads as slow; ``count`` others continue. Called with the lock held."""
        for thread in self._threads:
            if thread.command is not None:
                self._yield_lead(thread)
        for _ in range(count):
            self._start_thread()

    def _abandon(self, thread: _ExecutorThread, now: float) -> None:
        with self._lock:
            if thread.abandoned or thread.until > now:
                return
            command, phase = thread.command, thread.phase
            self._abandon_thread(thread)
            self.abandoned += 1
            if self._queue and self._leads == 0:
                self._start_thread()
        seconds = self._seconds[phase]
        where = "" if command is None else f" of environment {command.index}"
        _log.warning(
            "%s%s did not finish within %g s; its thread cannot be killed and was abandoned (%d so far)",
            *(phase, where, seconds, self.abandoned),
        )
        if command is None:
            return
        if command.op == "close":
            self._closed.put(EnvResult(command.index))
            return
        command = EnvCommand(
            *(command.index, command.op, command.member, command.seed, command.root, command.options),
            final=command.final,
            replacements=command.replacements + 1,
        )
        if command.op == "reset" and command.replacements < MAX_ATTEMPTS:
            self.submit([command])
            return
        fault = EnvironmentFault(f"{phase} did not finish within {seconds:g} s", kind=f"{phase}_deadline")
        self._results.put(EnvResult(command.index, command.final, fault=fault, replacements=command.replacements))
