"""User-written checks of rows: finds them by name, restricted to what rows may name, and runs them with a deadline.

A check is called twice: with the start state, before the model's first action, and with the end state. If it hangs with
the start state, returns no score or has a misspelt name, it is broken, which is a fault; other errors may come from
what the model is to create. If it does not finish with the end state, the score is 0, because what the model has left
behind may be why: a model must not be able to void its episode.
"""

# ruff: noqa: ASYNC109 - the timeout is the contract

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rllm_gym.core import EnvironmentFault, TaskError
from rllm_gym.core.importing import import_object
from rllm_gym.core.per_process import PerProcess
from rllm_gym.runtime import DeadlineExceeded, WorkerPool

TRIAL_ANSWER = "0"
"""The answer, or the reason why the task is infeasible, with which a check is called before the first action."""

_MAX_THREADS = 32
_logger = logging.getLogger(__name__)
_pool = PerProcess(lambda: WorkerPool("thread", max_workers=_MAX_THREADS, name="checks"))


def find_function(name: str, *parameters: str) -> Callable[..., Any]:
    """Return the function that ``"module:function"`` names.

    Args:
        name: The name.
        parameters: Names of the positional arguments it is called with.

    Raises:
        TaskError: It cannot be imported, or is not a function defined in that module that accepts these arguments.
            Functions that a module merely imports, such as ``os:system``, are rejected: rows are data.
    """
    try:
        function = import_object(name, "function")
    except ValueError as error:
        raise TaskError(str(error)) from error
    module_name = name.partition(":")[0]
    if not inspect.isfunction(function) or function.__module__ != module_name:
        raise TaskError(f"{name!r} is not a function defined in {module_name}")
    check_signature(function, name, *parameters)
    return function


def check_signature(function: Callable[..., Any], name: str, *parameters: str) -> None:
    """Check that a function accepts positional arguments of these names.

    Raises:
        TaskError: It does not.
    """
    try:
        inspect.signature(function).bind(*parameters)
    except ValueError:  # a built-in function without a signature
        return
    except TypeError as error:
        raise TaskError(
            f"the function {name!r} does not accept the arguments ({', '.join(parameters)}): {error}"
        ) from error


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check has found.

    Attributes:
        score: From 0 to 1, which is the reward.
        components: Numbers from 0 to 1 by name that explain the score; they are reported and not added to it.
        error: The assertion that failed, or why the check has not finished; else ``""``.
    """

    score: float
    components: Mapping[str, float] = field(default_factory=dict)
    error: str = ""

    @property
    def passed(self) -> bool:
        """Whether the score is 1."""
        return self.score == 1


FAILED = CheckResult(0.0)
PASSED = CheckResult(1.0)

_RESULTS = "a check must return True, False, a number from 0 to 1, or such a number with {name: number from 0 to 1}"


class NoScore(ValueError):
    """A check returned something else than a score."""


async def run_check(
    check: Callable[..., Any],
    *arguments: Any,
    timeout: float,
    fault_of: str = "",
    is_trial: bool = False,
) -> CheckResult:
    """Return the result of a check, called in a thread. A coroutine function works as well.

    A check returns a truth value, a number from 0 to 1, or a pair of one of these and a dictionary of named components,
    numbers from 0 to 1. An assertion that fails is the score 0. If it raises anything else, returns anything else, or
    exceeds its deadline, the score is 0 too, with a warning in the log.

    Args:
        check: The check.
        arguments: Its arguments.
        timeout: Its deadline in seconds.
        fault_of: What to name in a fault, if no model can be why the check does not finish; ``""`` if one can.
        is_trial: Whether the only faults are errors for which no state of a page or a server is the reason: a hang, no
            score, and a misspelt name in the check's own file. Others are the score 0 without a warning.

    Raises:
        EnvironmentFault: The check raised this itself; or it did not finish, with ``fault_of``: kind ``"check"``.
    """
    try:
        return _result(await _in_thread(run_function, check, *arguments, timeout=timeout))
    except EnvironmentFault:
        raise
    except AssertionError as error:
        return CheckResult(0.0, error=f"AssertionError: {error!s:.1000}")
    except Exception as error:
        words = f"failed with {type(error).__name__}: {error!s:.1000}"
        if isinstance(error, DeadlineExceeded):
            words = f"did not finish within {timeout:g} s"
        is_fault = not is_trial or _is_broken(error, check)
    words = f"the check {getattr(check, '__qualname__', repr(check))} {words}"
    if not fault_of:
        _logger.warning("%s; this counts as unsolved", words)
    elif is_fault:
        raise EnvironmentFault(f"{fault_of}: {words}", kind="check")
    return CheckResult(0.0, error=words)


def _is_broken(error: Exception, check: Callable[..., Any]) -> bool:
    if isinstance(error, NameError) and not isinstance(error, UnboundLocalError):
        frames = list(traceback.walk_tb(error.__traceback__))
        own = getattr(inspect.unwrap(check), "__code__", None)
        return bool(frames) and own is not None and frames[-1][0].f_code.co_filename == own.co_filename
    return isinstance(error, NoScore | DeadlineExceeded)


def _result(verdict: Any) -> CheckResult:
    try:
        score, components = verdict if isinstance(verdict, tuple) else (verdict, {})
        return CheckResult(_fraction(score), {str(key): _fraction(value) for key, value in components.items()})
    except Exception as error:  # values of any type
        raise NoScore(f"{error!s:.200}; {_RESULTS}") from error


def start_of(task_id: str) -> str:
    """Return what to name in a fault of a check that is called before the first action."""
    return f"task {task_id!r}, before the first action, with the answer {TRIAL_ANSWER!r}"


def _fraction(value: Any) -> float:
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, int | float) or not 0 <= value <= 1 or math.isnan(value):
        raise ValueError(f"{value!r:.80} is not a number from 0 to 1")
    return float(value)


def run_function(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function, or of a coroutine function, on an event loop of its own."""
    result = function(*arguments)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


async def run_in_thread(function: Callable[..., Any], *arguments: Any, timeout: float) -> Any:
    """Run ``function(*arguments)`` in a thread, with a deadline in seconds.

    Raises:
        EnvironmentFault: It exceeded its deadline; kind ``"check"``.
        Exception: The exception that it raised.
    """
    try:
        return await _in_thread(function, *arguments, timeout=timeout)
    except DeadlineExceeded as error:
        name = getattr(function, "__qualname__", repr(function))
        raise EnvironmentFault(f"{name} did not finish within {timeout:g} s", kind="check") from error


async def _in_thread(function: Callable[..., Any], *arguments: Any, timeout: float) -> Any:
    return await _pool().arun(function, *arguments, timeout=timeout)
