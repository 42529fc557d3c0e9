"""User-written checks: looks up functions by name, restricted to what rows may name, and calls them with a deadline."""

# ruff: noqa: ASYNC109 - the timeout is the contract

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
from collections.abc import Callable
from typing import Any

from rllm_gym.core import EnvironmentFault, TaskError
from rllm_gym.runtime import DeadlineExceeded, WorkerPool

_MAX_THREADS = 32
_pool: WorkerPool | None = None


def _forget_pool() -> None:
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)


def find_function(name: str, *parameters: str) -> Callable[..., Any]:
    """Return the function that ``"module:function"`` names.

    Args:
        name: The name.
        parameters: Names of the positional arguments it is called with.

    Raises:
        TaskError: It cannot be imported, or is not a function defined in that module that accepts these arguments.
            Functions that a module merely imports, such as ``os:system``, are rejected: rows are data.
    """
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the module's top level may raise anything
        raise TaskError(
            f"the function {name!r} cannot be imported ({type(error).__name__}: {error}); its module must be on the "
            "Python path (PYTHONPATH, or next to the script)"
        ) from error
    function = getattr(module, attribute, None)
    if not inspect.isfunction(function) or function.__module__ != module.__name__:
        raise TaskError(f"{name!r} is not a function defined in {module_name}")
    try:
        inspect.signature(function).bind(*parameters)
    except TypeError as error:
        raise TaskError(
            f"the function {name!r} does not accept the arguments ({', '.join(parameters)}): {error}"
        ) from error
    return function


async def run_check(check: Callable[..., Any], *arguments: Any, timeout: float) -> bool:
    """Return the result of a check, called in a thread. A coroutine function works as well.

    Raises:
        EnvironmentFault: It raised, returned no truth value, or exceeded its deadline; kind ``"check"``.
    """
    name = getattr(check, "__qualname__", repr(check))
    try:
        verdict = await run_in_thread(_call_check, check, arguments, timeout=timeout)
    except EnvironmentFault:
        raise
    except Exception as error:
        raise EnvironmentFault(
            f"the check {name} raised {type(error).__name__}: {error}; a check must return True or False", kind="check"
        ) from error
    if not isinstance(verdict, bool):
        raise EnvironmentFault(
            f"the check {name} returned {verdict!r:.80}; a check must return True or False", kind="check"
        )
    return verdict


def _call_check(check: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    verdict = check(*arguments)
    if inspect.iscoroutine(verdict):
        verdict = asyncio.run(verdict)
    return verdict.item() if type(verdict).__module__ == "numpy" and hasattr(verdict, "item") else verdict


async def run_in_thread(function: Callable[..., Any], *arguments: Any, timeout: float) -> Any:
    """Run ``function(*arguments)`` in a thread, with a deadline in seconds.

    Raises:
        EnvironmentFault: It exceeded its deadline; kind ``"check"``.
        Exception: The exception that it raised.
    """
    global _pool
    if _pool is None:
        _pool = WorkerPool("thread", max_workers=_MAX_THREADS, name="checks")
    try:
        return await _pool.arun(function, *arguments, timeout=timeout)
    except DeadlineExceeded as error:
        name = getattr(function, "__qualname__", repr(function))
        raise EnvironmentFault(f"{name} did not finish within {timeout:g} s", kind="check") from error
