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
from rllm_gym.vector.host import Host
from rllm_gym.vector.inbox import Inbox
from rllm_gym.vector.orders import ATTEMPTS, Deadlines, Order, Outcome, Recipe

_log = logging.getLogger(__name__)

_SLOW = 0.001
"""Seconds, averaged over its last calls, above which an environment is served by a dedicated thread."""
_TICK = 0.002
"""Seconds between two checks of a queue that may be blocked."""
_QUIET_TICKS = 25
"""Checks without a new command after which the watch thread sleeps until the next one."""
_numbers = itertools.count()


class _Left(Exception):
    """This thread was abandoned; its results are ignored."""


class _Place:
    """The place of one environment: its host, the duration of its calls, and the attributes set on it."""

    def __init__(self) -> None:
        self.host: Host | None = None
        self.pace = 0.0
        self.settings: dict[str, Any] = {}


class _Runner:
    """One thread.

    Attributes:
        order: The command in progress.
        host: The host it is using.
        phase: Which deadline counts, and ``until`` when it passes.
        leads: Whether it will soon take the next command from the queue.
        left: Whether it exceeded a deadline and was abandoned.
    """

    def __init__(self) -> None:
        self.wake = threading.Lock()
        self.wake.acquire()
        self.thread: threading.Thread | None = None
        self.order: Order | None = None
        self.host: Host | None = None
        self.phase = ""
        self.until = math.inf
        self.leads = True
        self.left = False


class ThreadStage:
    """Executes commands in threads. A late thread cannot be killed: it is abandoned, counted, and logged.

    Args:
        recipes: The environments that a place can create, by name.
        count: Number of places.
        deadlines: Seconds that each call may take.
        inbox: Receives results.
    """

    def __init__(self, recipes: Mapping[str, Recipe], count: int, deadlines: Deadlines, inbox: Inbox) -> None:
        self._recipes = recipes
        self._deadlines = deadlines
        self._seconds = {name: getattr(deadlines, name) for name in ("make", "reset", "step", "close")}
        self._shortest = min(self._seconds.values())
        self._seconds |= {"call": deadlines.step, "set": deadlines.step}
        self._inbox = inbox
        self._closed = Inbox()
        self._name = f"vector-{next(_numbers)}"
        self._pid = os.getpid()
        self._places = [_Place() for _ in range(count)]
        # The attributes below are protected by the lock.
        self._lock = threading.Lock()
        self._line: deque[Order] = deque()
        self._runners: set[_Runner] = set()
        self._idle: list[_Runner] = []
        self._leads = 0
        self._submitted = 0
        self._taken = 0
        self._ended = False
        self.abandoned = 0
        """Number of threads abandoned so far."""
        self._bell = threading.Condition(threading.Lock())
        self._watch_sleeps = False
        self._watch: threading.Thread | None = None

    def submit(self, orders: Sequence[Order]) -> None:
        """Start commands without waiting. Each place may have at most one command in progress."""
        with self._lock:
            self._line.extend(orders)
            self._submitted += 1
            if self._leads == 0:
                self._call_up()
            if self._watch is None:
                self._watch = threading.Thread(target=self._look_after, name=f"{self._name}-watch", daemon=True)
                self._watch.start()
        if self._watch_sleeps:
            with self._bell:
                self._watch_sleeps = False
                self._bell.notify()

    def close(self) -> None:
        """Close every idle environment and end the threads; busy threads close theirs when they return."""
        if os.getpid() != self._pid:
            return  # in a fork, threads and environments belong to the parent
        with self._lock:
            if self._ended:
                return
            self._line.clear()
            for runner in list(self._runners):
                if runner.order is not None:
                    self._leave(runner)
            standing = [index for index, place in enumerate(self._places) if place.host is not None]
        if standing:
            self.submit([Order(index, "close") for index in standing])
            self._closed.take(len(standing), self._deadlines.close * 2)
        with self._lock:
            self._ended = True
            threads = [runner.thread for runner in self._runners]
            for runner in self._idle:
                runner.wake.release()
            self._idle.clear()
        with self._bell:
            self._bell.notify()
        for thread in (*threads, self._watch):
            if thread is not None and thread is not threading.current_thread():
                thread.join(self._deadlines.close)

    # The queue

    def _call_up(self) -> None:
        """Let one more thread work through the queue. Called with the lock held."""
        self._leads += 1
        if self._idle:
            runner = self._idle.pop()
            runner.leads = True
            runner.wake.release()
            return
        runner = _Runner()
        name = f"{self._name}-{len(self._runners)}"
        runner.thread = threading.Thread(target=self._run, args=(runner,), name=name, daemon=True)
        self._runners.add(runner)
        try:
            runner.thread.start()
        except RuntimeError:  # the machine has no more threads: use the existing ones
            self._runners.discard(runner)
            self._leads -= 1
            if not self._runners:
                raise

    def _run(self, runner: _Runner) -> None:
        outcome: Outcome | None = None
        inbox = self._inbox
        monotonic = time.monotonic
        while True:
            with self._lock:
                if runner.left:
                    break
                order = self._next(runner, monotonic())
            if outcome is not None:
                inbox.put(outcome)
                outcome = None
            if order is None:
                if self._ended:
                    return
                runner.wake.acquire()
                continue
            inbox = self._closed if order.op == "close" else self._inbox
            place = self._places[order.index]
            began = monotonic()
            try:
                outcome, broken = self._carry_out(runner, place, order)
            except _Left:
                break
            place.pace += 0.3 * (monotonic() - began - place.pace)
            if broken is not None:
                # The result is delivered before the rest of the environment is closed.
                with self._lock:
                    if runner.left:
                        break
                    self._step_aside(runner)
                    runner.order = None
                    self._enter(runner, "close")
                inbox.put(outcome)
                outcome = None
                with suppress(Exception):
                    broken.close()
            # An idle thread must not keep the last command and its result alive.
            del order, place, broken
        if runner.host is not None:
            with suppress(Exception):
                runner.host.close()

    def _next(self, runner: _Runner, now: float) -> Order | None:
        """Return the next command for this thread; without one, it becomes idle. Called with the lock held."""
        runner.order = runner.host = None
        runner.until = math.inf
        if not self._line:
            self._step_aside(runner)
            if not self._ended:
                self._idle.append(runner)
            return None
        order = runner.order = self._line.popleft()
        self._taken += 1
        runner.phase = order.op
        runner.until = now + self._seconds[order.op]
        place = self._places[order.index]
        runner.host = place.host
        if place.pace > _SLOW:
            self._step_aside(runner)
            if self._line and self._leads == 0:
                self._call_up()
        elif not runner.leads:
            runner.leads = True
            self._leads += 1
        return order

    def _step_aside(self, runner: _Runner) -> None:
        if runner.leads:
            runner.leads = False
            self._leads -= 1

    def _leave(self, runner: _Runner) -> None:
        """Abandon this thread. Called with the lock held."""
        runner.left = True
        self._step_aside(runner)
        self._runners.discard(runner)
        if runner.order is not None:
            place = self._places[runner.order.index]
            if place.host is runner.host:
                place.host = None

    # Executing commands

    def _carry_out(self, runner: _Runner, place: _Place, order: Order) -> tuple[Outcome, Host | None]:
        """Return the result, and the host that failed."""
        try:
            if order.op == "step":
                host = runner.host
                if host is None:
                    raise EnvironmentFault("the environment is gone", kind="closed")
                stepped = host.step(order.action)
                if order.again is None or not (stepped[2] or stepped[3]):
                    return Outcome(order.index, stepped), None
                order.final = stepped
                order.op, (order.member, order.seed) = "reset", order.again
                self._enter(runner, "reset")
            if order.op == "reset":
                return self._reset(runner, place, order)
            return Outcome(order.index, value=self._other(runner, place, order)), None
        except EnvironmentFault as fault:
            broken = self._give_up(runner, place)
            return Outcome(order.index, order.final, fault=fault, lost=order.lost + 1), broken
        except Exception as error:
            return Outcome(order.index, order.final, error=error, lost=order.lost), None

    def _reset(self, runner: _Runner, place: _Place, order: Order) -> tuple[Outcome, Host | None]:
        while True:
            try:
                host = self._standing(runner, place, order.member, "reset")
                begun = host.reset(order.member, order.effective_seed(), order.options)
                return Outcome(order.index, order.final, begun, lost=order.lost), None
            except EnvironmentFault:
                if order.lost + 1 >= ATTEMPTS:
                    raise
            order.lost += 1
            broken = self._give_up(runner, place)
            if broken is not None:
                self._enter(runner, "close")
                with suppress(Exception):
                    broken.close()
            self._enter(runner, "reset")

    def _other(self, runner: _Runner, place: _Place, order: Order) -> Any:
        if order.op == "make":
            return self._standing(runner, place, order.member, "make").make(order.member)
        if order.op == "close":
            host, place.host = place.host, None
            runner.host = host
            if host is not None:
                host.close()
            return None
        host = self._standing(runner, place, order.member, order.op)
        if order.op == "set":
            name, value = order.arguments
            place.settings[name] = value
            host.set(name, value)
            return None
        return host.call(*order.arguments)

    def _standing(self, runner: _Runner, place: _Place, member: str, phase: str) -> Host:
        """Return the place's host, with this environment created."""
        host = place.host
        if host is None:
            host = Host(self._recipes)
            with self._lock:
                if runner.left:
                    raise _Left
                place.host = host
        runner.host = host
        if not host.made(member):
            self._enter(runner, "make")
            try:
                host.make(member)
                for name, value in place.settings.items():
                    host.set(name, value)
            except EnvironmentFault:
                raise
            except Exception as error:
                if phase == "make":
                    raise  # the first one: mostly the caller's mistake
                raise EnvironmentFault(
                    f"making the environment raised {type(error).__name__}: {error}", kind="make"
                ) from error
            self._enter(runner, phase)
        return host

    def _give_up(self, runner: _Runner, place: _Place) -> Host | None:
        with self._lock:
            if runner.left:
                raise _Left
            broken, place.host = place.host, None
        return broken

    def _enter(self, runner: _Runner, phase: str) -> None:
        runner.phase = phase
        runner.until = time.monotonic() + self._seconds[phase]

    # The watch thread

    def _look_after(self) -> None:
        """Start more threads when the queue is blocked, and abandon the late ones."""
        submitted = taken = stuck = called = quiet = 0
        look_for_late = 0.0
        while True:
            now = time.monotonic()
            with self._lock:
                if self._ended:
                    return
                quiet = quiet + 1 if self._submitted == submitted and not self._line else 0
                # Threads started last time have taken one command each: that alone is not progress.
                stuck = stuck + 1 if self._line and self._taken - taken <= called else 0
                submitted, taken, called = self._submitted, self._taken, 0
                if stuck > 1:
                    called = min(len(self._line), 2 ** (stuck - 2))
                    self._reinforce(called)
                busy = [runner for runner in self._runners if runner.until < math.inf]
            if now >= look_for_late:
                look_for_late = now + self._shortest
                for runner in busy:
                    if runner.until <= now:
                        self._abandon(runner, now)
                    elif runner.until < look_for_late:
                        look_for_late = runner.until
            with self._bell:
                if quiet <= _QUIET_TICKS:
                    self._bell.wait(_TICK)
                    continue
                self._watch_sleeps = True
                if self._submitted == submitted and not self._ended:
                    self._bell.wait(max(0.0, look_for_late - now) if busy else None)
                self._watch_sleeps = False

    def _reinforce(self, count: int) -> None:
        """Treat all busy threads as slow; ``count`` others continue. Called with the lock held."""
        for runner in self._runners:
            if runner.order is not None:
                self._step_aside(runner)
        for _ in range(count):
            self._call_up()

    def _abandon(self, runner: _Runner, now: float) -> None:
        with self._lock:
            if runner.left or runner.until > now:
                return
            order, phase = runner.order, runner.phase
            self._leave(runner)
            self.abandoned += 1
            if self._line and self._leads == 0:
                self._call_up()
        seconds = self._seconds[phase]
        where = "" if order is None else f" of environment {order.index}"
        _log.warning(
            "%s%s was not done within %g s; its thread cannot be killed and was left behind (%d so far)",
            *(phase, where, seconds, self.abandoned),
        )
        if order is None:
            return
        if order.op == "close":
            self._closed.put(Outcome(order.index))
            return
        order = Order(
            *(order.index, order.op, order.member, order.seed, order.root, order.options),
            final=order.final,
            lost=order.lost + 1,
        )
        if order.op == "reset" and order.lost < ATTEMPTS:
            self.submit([order])
            return
        fault = EnvironmentFault(f"{phase} was not done within {seconds:g} s", kind=f"{phase}_deadline")
        self._inbox.put(Outcome(order.index, order.final, fault=fault, lost=order.lost))
