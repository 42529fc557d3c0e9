"""Stand-ins that the interpreter accepts as the real kind: generators, coroutines, coroutine functions."""

from __future__ import annotations

from typing import Any

from .codec import MalformedMessage
from .proxies import RemoteOperations

_SHORTEST_PAUSE = 0.0001
_LONGEST_PAUSE = 0.01
"""Seconds between two questions whether something of the other side is done."""


def callable_kind(value: Any) -> str:
    """Return the kind of a generator, coroutine or coroutine function; ``""`` for other objects."""
    name = type(value).__name__ if type(value).__module__ == "builtins" else ""
    if name in ("generator", "coroutine", "async_generator"):
        return name
    flags = getattr(getattr(value, "__code__", None), "co_flags", 0) if name in ("function", "method") else 0
    return "coroutine function" if flags & 0x80 else ""


def wrap_proxy(peer: RemoteOperations, flavour: Any, proxy: Any) -> Any:
    """Return a generator, coroutine or coroutine function of this side that forwards to the stand-in's object."""
    if flavour == "generator":
        return _generator(peer, proxy)
    if flavour == "coroutine":
        return _coroutine(peer, proxy)
    if flavour == "async_generator":
        return _async_generator(peer, proxy)
    if flavour == "coroutine function":

        async def function(*args: Any, **kwargs: Any) -> Any:
            return await peer.call(proxy, args, kwargs)

        return function
    raise MalformedMessage("unknown kind of callable")


def _generator(peer: RemoteOperations, proxy: Any) -> Any:
    step: tuple[str, tuple[Any, ...]] = ("next", ())
    while True:
        try:
            value = peer.ask(step[0], proxy, *step[1])
        except StopIteration as end:
            return end.value
        try:
            sent = yield value
            step = ("next", ()) if sent is None else ("send", (sent,))
        except GeneratorExit:
            peer.close(proxy)
            raise
        except BaseException as error:
            step = ("throw", (error,))


async def _coroutine(peer: RemoteOperations, proxy: Any) -> Any:
    return await awaited(peer, proxy)


async def awaited(peer: RemoteOperations, target: Any) -> Any:
    """Await something of the other side, while the tasks of this side's event loop go on."""
    import asyncio

    number, state, value = peer.ask("start", target)
    pause = _SHORTEST_PAUSE
    try:
        while state == "pending":
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            state, value = peer.ask("poll", number)
    except asyncio.CancelledError:
        if state == "pending":
            peer.ask("cancel", number)
        raise
    if state == "cancelled":
        cancelled = asyncio.CancelledError()
        peer.check_cancelled(cancelled)
        raise cancelled
    return value


async def _async_generator(peer: RemoteOperations, proxy: Any) -> Any:
    while True:
        try:
            value = peer.ask("await_anext", proxy)
        except StopAsyncIteration:
            return
        try:
            yield value
        except GeneratorExit:
            peer.ask("await_aclose", proxy)
            raise
