"""Places driven by coroutines: environments in workers of a pool (processes, Ray actors), or asynchronous ones."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import gymnasium

from rllm_gym.core import EnvironmentFault
from rllm_gym.vector.host import Description, Host, awaitable, build, checked_reset, checked_step, shown
from rllm_gym.vector.inbox import Inbox
from rllm_gym.vector.orders import ATTEMPTS, Begun, Deadlines, Order, Outcome, Recipe, Stepped
from rllm_gym.workers import (
    Actor,
    BackgroundLoop,
    DeadlineExceeded,
    MemoryExceeded,
    WorkerDied,
    WorkerError,
    WorkerPool,
)

T = TypeVar("T")


class Place(ABC):
    """The place of one environment. Methods raise :class:`EnvironmentFault` when it fails or exceeds a deadline."""

    def __init__(self, recipes: Mapping[str, Recipe], deadlines: Deadlines) -> None:
        self.recipes = recipes
        self.deadlines = deadlines
        self.settings: dict[str, Any] = {}

    @abstractmethod
    async def make(self, member: str) -> Description:
        """Create this environment, unless it exists. Exceptions of its constructor are not converted."""

    @abstractmethod
    async def reset(self, member: str, seed: int | None, options: dict[str, Any] | None) -> Begun: ...

    @abstractmethod
    async def step(self, action: Any) -> Stepped: ...

    @abstractmethod
    async def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    @abstractmethod
    async def set(self, name: str, value: Any) -> None: ...

    @abstractmethod
    def give_up(self) -> Coroutine[Any, Any, None]:
        """Empty the place at once; the returned coroutine then closes its environments, within the deadline."""


class WorkerPlace(Place):
    """In a separate worker: a process, or whatever the pool provides."""

    def __init__(self, recipes: Mapping[str, Recipe], deadlines: Deadlines, pool: WorkerPool) -> None:
        super().__init__(recipes, deadlines)
        self._pool = pool
        self._actor: Actor | None = None
        self._made: dict[str, Description] = {}

    async def make(self, member: str) -> Description:
        if member not in self._made:
            seconds = self.deadlines.make
            if self._actor is None:
                self._made.clear()
                try:
                    self._actor = await self._pool.aactor(Host, self.recipes, timeout=seconds)
                except (DeadlineExceeded, WorkerDied) as error:
                    raise EnvironmentFault(f"no worker could be started: {error}", kind="worker_died") from error
            self._made[member] = await self._ask("make", "make", member)
            for name, value in self.settings.items():
                await self._ask("make", "set", name, value)
        return self._made[member]

    async def reset(self, member: str, seed: int | None, options: dict[str, Any] | None) -> Begun:
        return await self._ask("reset", "reset", member, seed, options)  # type: ignore[no-any-return]

    async def step(self, action: Any) -> Stepped:
        return await self._ask("step", "step", action)  # type: ignore[no-any-return]

    async def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return await self._ask("step", "call", name, args, kwargs)

    async def set(self, name: str, value: Any) -> None:
        await self._ask("step", "set", name, value)

    def give_up(self) -> Coroutine[Any, Any, None]:
        actor, self._actor = self._actor, None
        self._made.clear()
        return self._end(actor)

    async def _end(self, actor: Actor | None) -> None:
        if actor is not None:
            with suppress(Exception):
                await actor.aclose(self.deadlines.close)

    async def _ask(self, phase: str, method: str, *args: Any) -> Any:
        seconds = getattr(self.deadlines, phase)
        actor = self._actor
        if actor is None:
            raise EnvironmentFault("the environment is gone", kind="closed")
        try:
            return await actor.acall(method, *args, timeout=seconds)
        except DeadlineExceeded:
            raise EnvironmentFault(f"{phase} was not done within {seconds:g} s", kind=f"{phase}_deadline") from None
        except MemoryExceeded as error:
            raise EnvironmentFault(f"{phase} needed too much memory: {error}", kind="memory") from error
        except WorkerDied as error:
            raise EnvironmentFault(f"the worker died in {phase}: {error}", kind="worker_died") from error
        except WorkerError as error:
            raise EnvironmentFault(f"what {phase} returned cannot travel: {error}", kind="garbage") from error


class CoroutinePlace(Place):
    """On the event loop itself: the environment's own coroutines are awaited.

    The constructor is a blocking function: it runs in a thread of ``pool``.
    """

    def __init__(self, recipes: Mapping[str, Recipe], deadlines: Deadlines, pool: WorkerPool) -> None:
        super().__init__(recipes, deadlines)
        self._pool = pool
        self._envs: dict[str, gymnasium.Env[Any, Any]] = {}
        self._member = ""
        self._elapsed = 0

    async def make(self, member: str) -> Description:
        env = self._envs.get(member)
        if env is None:
            seconds = self.deadlines.make
            try:
                # No wrapper may change ``step``, so the limit of steps is counted here.
                env = await self._pool.arun(partial(build, limit_steps=False), self.recipes[member], timeout=seconds)
            except DeadlineExceeded:
                raise EnvironmentFault(f"make was not done within {seconds:g} s", kind="make_deadline") from None
            awaitable(env)
            self._envs[member] = env
            for name, value in self.settings.items():
                env.set_wrapper_attr(name, value)
        self._member = self._member or member
        return Description.of(env)

    async def reset(self, member: str, seed: int | None, options: dict[str, Any] | None) -> Begun:
        env = self._envs[member]
        result = await self._awaited("reset", env.unwrapped.async_reset(seed=seed, options=options))  # type: ignore[attr-defined]
        self._member, self._elapsed = member, 0
        return checked_reset(result, env, _is_text(env))

    async def step(self, action: Any) -> Stepped:
        env = self._envs[self._member]
        result = await self._awaited("step", env.unwrapped.async_step(action))  # type: ignore[attr-defined]
        observation, reward, terminated, truncated, info = checked_step(result, env, _is_text(env))
        self._elapsed += 1
        limit = self.recipes[self._member].max_episode_steps
        if limit is not None and self._elapsed >= limit:
            truncated = True
        return observation, reward, terminated, truncated, info

    async def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        env = self._envs[self._member]
        found = getattr(env, name) if name == "render" else env.get_wrapper_attr(name)
        if not callable(found):
            return found
        result = found(*args, **kwargs)
        return await self._within("step", result) if asyncio.iscoroutine(result) else result

    async def set(self, name: str, value: Any) -> None:
        for env in self._envs.values():
            env.set_wrapper_attr(name, value)

    def give_up(self) -> Coroutine[Any, Any, None]:
        envs, self._envs, self._member = self._envs, {}, ""
        return self._end(envs)

    async def _end(self, envs: Mapping[str, gymnasium.Env[Any, Any]]) -> None:
        for env in envs.values():
            with suppress(Exception):
                await self._within("close", env.unwrapped.async_close())  # type: ignore[attr-defined]

    async def _awaited(self, phase: str, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return await self._within(phase, coroutine)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            raise shown(error, phase) from error

    async def _within(self, phase: str, coroutine: Coroutine[Any, Any, T]) -> T:
        seconds = getattr(self.deadlines, phase)
        try:
            async with asyncio.timeout(seconds) as deadline:
                return await coroutine
        except TimeoutError:
            if not deadline.expired():
                raise
            raise EnvironmentFault(f"{phase} was not done within {seconds:g} s", kind=f"{phase}_deadline") from None


class LoopStage:
    """Executes commands on an event loop in a separate thread.

    Args:
        place: Creates a place.
        count: Number of places.
        deadlines: Deadlines of each call.
        inbox: Receives results.
        pool: The pool of the workers, closed with this object.
    """

    def __init__(
        self, place: Callable[[], Place], count: int, deadlines: Deadlines, inbox: Inbox, pool: WorkerPool
    ) -> None:
        self._places = [place() for _ in range(count)]
        self._deadlines = deadlines
        self._inbox = inbox
        self._pool = pool
        self._pid = os.getpid()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._ended = False
        self._loop = BackgroundLoop("vector-environments")

    @property
    def abandoned(self) -> int:
        """Number of threads abandoned so far."""
        return self._pool.abandoned

    def submit(self, orders: Sequence[Order]) -> None:
        """Start commands without waiting. Each place may have at most one command in progress."""
        self._loop.call_soon(partial(self._begin, list(orders)))

    def close(self) -> None:
        """Close every environment and end its worker, within the deadline. Work in progress is cancelled."""
        if self._ended or os.getpid() != self._pid:
            return  # called twice, or in a fork: the workers belong to the parent
        self._ended = True
        try:
            with suppress(TimeoutError):
                self._loop.start(self._clear()).result(2 * self._deadlines.close + 10.0)
        finally:
            self._pool.close()
            self._loop.close()

    async def _clear(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # Environments that broke before are not cancelled: each closes within its own deadline.
        await asyncio.gather(*map(self._give_up, self._places), *self._closing, return_exceptions=True)

    def _begin(self, orders: Sequence[Order]) -> None:
        for order in orders:
            _start(self._serve(self._places[order.index], order), self._tasks)

    def _give_up(self, place: Place) -> asyncio.Task[None]:
        """Empty a place at once. The task closes what was in it, also if whoever waits for it is cancelled."""
        return _start(place.give_up(), self._closing)

    async def _serve(self, place: Place, order: Order) -> None:
        try:
            outcome = await self._carry_out(place, order)
        except EnvironmentFault as fault:
            self._give_up(place)
            outcome = Outcome(order.index, order.final, fault=fault, lost=order.lost + 1)
        except Exception as error:
            outcome = Outcome(order.index, order.final, error=error, lost=order.lost)
        self._inbox.put(outcome)

    async def _carry_out(self, place: Place, order: Order) -> Outcome:
        if order.op == "step":
            stepped = await place.step(order.action)
            if order.again is None or not (stepped[2] or stepped[3]):
                return Outcome(order.index, stepped)
            order.final = stepped
            order.op, (order.member, order.seed) = "reset", order.again
        if order.op == "reset":
            return await self._reset(place, order)
        description = await place.make(order.member)
        if order.op == "make":
            return Outcome(order.index, value=description)
        if order.op == "set":
            name, value = order.arguments
            place.settings[name] = value
            await place.set(name, value)
            return Outcome(order.index)
        return Outcome(order.index, value=await place.call(*order.arguments))

    async def _reset(self, place: Place, order: Order) -> Outcome:
        while True:
            try:
                await _remade(place, order.member)
                begun = await place.reset(order.member, order.effective_seed(), order.options)
                return Outcome(order.index, order.final, begun, lost=order.lost)
            except EnvironmentFault:
                if order.lost + 1 >= ATTEMPTS:
                    raise
            order.lost += 1
            await asyncio.shield(self._give_up(place))


def _start(coroutine: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    """Run a coroutine as a task that is a member of ``tasks`` until it is done."""
    task = asyncio.get_running_loop().create_task(coroutine)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


async def _remade(place: Place, member: str) -> None:
    try:
        await place.make(member)
    except EnvironmentFault:
        raise
    except Exception as error:
        raise EnvironmentFault(f"making the environment raised {type(error).__name__}: {error}", kind="make") from error


def _is_text(env: gymnasium.Env[Any, Any]) -> bool:
    return isinstance(env.observation_space, gymnasium.spaces.Text)
