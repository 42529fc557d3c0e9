"""Operations that one side may request on objects of the other: attributes, calls, operators, iteration, awaiting."""

from __future__ import annotations

import copy
import math
import operator
import os
from collections.abc import Callable
from typing import Any

from .concurrent_calls import NESTED
from .proxies import ARITHMETIC, ORDER


def _reflected(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda left, right: function(right, left)


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    name: divmod if name == "divmod" else pow if name == "pow" else getattr(operator, f"__{name}__")
    for name in ARITHMETIC
}


def _signature(target: Any) -> list[tuple[str, int, list[Any], list[Any]]]:
    import inspect

    found = inspect.signature(target)
    rows = [(item.name, int(item.kind), item.default, item.annotation) for item in found.parameters.values()]
    # The last row is the result's.
    rows.append(("return", 0, inspect.Parameter.empty, found.return_annotation))
    return [
        (name, kind, *([] if value is inspect.Parameter.empty else [value] for value in values))  # type: ignore[misc]
        for name, kind, *values in rows
    ]


def _method(target: Any, name: str) -> Any:
    """Return a special method as Python finds it: in the type, and bound by its descriptor, as those of mocks are."""
    cls = type(target)
    for base in cls.__mro__:
        if name in vars(base):
            found = vars(base)[name]
            bind = getattr(type(found), "__get__", None)
            return found if bind is None else bind(found, target, cls)
    raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")


def _enter(target: Any) -> Any:
    return _method(target, "__enter__")()


def _exit(target: Any, error: BaseException | None) -> Any:
    return _method(target, "__exit__")(*_details(error))


def _details(error: BaseException | None) -> tuple[Any, Any, Any]:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


def _special(name: str) -> Callable[..., Any]:
    return lambda target, *args: _method(target, name)(*args)


BINARY: dict[str, Callable[..., Any]] = {
    **_ARITHMETIC,
    **{f"r{name}": _reflected(function) for name, function in _ARITHMETIC.items()},
    **{f"i{name}": getattr(operator, f"__i{name}__", function) for name, function in _ARITHMETIC.items()},
    **{name: getattr(operator, name) for name in ORDER},
}
"""Binary operators. The ``r`` prefix marks reversed operands."""

UNARY: dict[str, Callable[..., Any]] = {
    "int": int,
    "float": float,
    "complex": complex,
    "index": operator.index,
    "neg": operator.neg,
    "pos": operator.pos,
    "abs": abs,
    "invert": operator.invert,
    "round": round,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
}
"""What numbers have besides binary operators, and their conversions."""

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda target, args, kwargs: target(*args, **kwargs),
    "getattr": getattr,
    "setattr": setattr,
    "delattr": delattr,
    "len": len,
    "bool": bool,
    "iter": iter,
    "next": next,
    "send": lambda target, value: target.send(value),
    "throw": lambda target, error: target.throw(error),
    "close": lambda target: target.close(),
    "reversed": reversed,
    "bytes": bytes,
    "fspath": os.fspath,
    "length_hint": operator.length_hint,
    "str": str,
    "repr": repr,
    "format": format,
    "hash": hash,
    "dir": dir,
    "eq": lambda left, right: bool(left == right),
    "eq object": operator.eq,
    "ne object": operator.ne,
    "contains": lambda target, item: item in target,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "enter": _enter,
    "exit": _exit,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "signature": _signature,
    "aiter": aiter,
    "isinstance": lambda cls, value: isinstance(value, cls),
    "issubclass": lambda cls, other: issubclass(other, cls),
    **{name: _special(f"__{name}__") for name in ("get", "set", "delete", "set_name")},
    **UNARY,
    **BINARY,
}


_TURN_S = 0.002
"""How long the tasks of one side go on before those of the other side do, in seconds."""


class Operations:
    """The executor of requested operations. Owns the event loop for awaited results."""

    def __init__(self) -> None:
        self._loop: Any = None
        self._tasks: dict[int, Any] = {}
        self._started = 0

    def do(self, operation: str, operands: list[Any]) -> Any:
        if operation == "start":
            return self._start(*operands)
        if operation in ("poll", "cancel"):
            return self._poll(*operands, cancel=operation == "cancel")
        if operation.startswith("await"):
            return self._await(operation, operands)
        function = _OPERATIONS.get(operation)
        if function is None:
            raise TypeError(f"no operation {operation[:40]!r}")
        return function(*operands)

    def _start(self, target: Any) -> tuple[int, str, Any]:
        """Start to await a value. Returns a number for :meth:`_poll`, and what that returns."""

        async def outcome() -> Any:
            return await target

        self._started += 1
        self._tasks[self._started] = self._loop_here()[0].create_task(outcome())
        return (self._started, *self._poll(self._started))

    def _loop_here(self) -> tuple[Any, bool]:
        """Return the event loop of this side, and whether it is running."""
        import asyncio

        try:
            return asyncio.get_running_loop(), True
        except RuntimeError:
            self._loop = self._loop or asyncio.new_event_loop()
            return self._loop, False

    def _poll(self, number: int, *, cancel: bool = False) -> tuple[str, Any]:
        """Let the tasks of this side go on; return whether one is ``"done"``, ``"pending"`` or ``"cancelled"``."""
        import asyncio

        task = self._tasks[number]
        loop, running = self._loop_here()
        if cancel:
            task.cancel()
        if not running and not task.done():
            loop.run_until_complete(asyncio.wait({task}, timeout=_TURN_S))
        if not task.done():
            return "pending", None
        del self._tasks[number]
        return ("cancelled", None) if task.cancelled() else ("done", task.result())

    def _await(self, operation: str, operands: list[Any]) -> Any:
        target, *rest = operands

        async def outcome() -> Any:
            name = operation.removeprefix("await_")
            if name == "aclose":
                return await target.aclose()
            if name not in ("aenter", "aexit", "anext"):
                raise TypeError(f"no operation {operation[:40]!r}")
            arguments = _details(*rest) if name == "aexit" else rest
            return await getattr(type(target), f"__{name}__")(target, *arguments)

        return self.drive(outcome())

    def drive(self, coroutine: Any) -> Any:
        """Run a coroutine to its end; in a thread with its own loop if this thread's loop is already running."""
        import asyncio

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
            return self._loop.run_until_complete(coroutine)
        import threading

        outcome: list[Any] = []

        def run() -> None:
            try:
                outcome.append((True, asyncio.run(coroutine)))
            except BaseException as error:
                outcome.append((False, error))

        thread = threading.Thread(target=run)
        setattr(thread, NESTED, True)
        thread.start()
        thread.join()
        succeeded, value = outcome[0]
        if succeeded:
            return value
        raise value
