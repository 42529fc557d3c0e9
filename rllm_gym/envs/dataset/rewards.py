"""Calls a user's reward functions, with the signature of TRL's, and checks what they return."""

from __future__ import annotations

import asyncio
import inspect
import math
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rllm_gym.core import EnvironmentFault, Task
from rllm_gym.core.async_env import shared_loop
from rllm_gym.core.importing import import_object
from rllm_gym.envs.dataset.rows import prompt_key

RewardFunction = Callable[..., Any]
"""``f(prompts, completions, **columns)``: returns one number per completion, or ``None`` where it does not apply; may
be a coroutine function, or an object with ``__call__``."""

FAULT = "reward_function"
"""The kind of the faults of reward functions."""


class RewardFunctions:
    """One or more reward functions and their weights.

    Args:
        functions: A function, ``"module:name"`` of one, or a list of them.
        weights: One weight per function; ``None`` for 1 each.

    Raises:
        TypeError: A function cannot be called.
        ValueError: A function cannot be imported, or the weights are not one finite number per function.
    """

    def __init__(self, functions: Any, weights: Any = None) -> None:
        each = list(functions) if isinstance(functions, list | tuple) else [functions]
        if not each:
            raise ValueError("reward=[] has no function; give a function or 'module:name'")
        weights = [1.0] * len(each) if weights is None else [weights] if isinstance(weights, int | float) else weights
        if len(weights) != len(each) or not all(_is_number(weight) and math.isfinite(weight) for weight in weights):
            raise ValueError(
                f"reward_weights={weights!r:.200} must be one finite number for each of {len(each)} functions"
            )
        self._functions: dict[str, tuple[_Function, float]] = {}
        for source, weight in zip(each, weights, strict=True):
            function = import_object(source, "reward") if isinstance(source, str) else source
            if not callable(function):
                raise TypeError(f"reward={source!r:.200} is not a function; give a function or 'module:name'")
            name = getattr(function, "__name__", type(function).__name__).strip("<>")
            if name in self._functions:
                name = f"{name}_{len(self._functions) + 1}"
            self._functions[name] = _Function(name, function, inspect.signature(function)), float(weight)

    def check(self, task: Task) -> None:
        """Check that the functions can be called with the columns of a row.

        Raises:
            ValueError: A function has a parameter without a default that is no column; names both.
        """
        for function, _ in self._functions.values():
            function.arguments(task, "")

    def score(self, task: Task, completion: str) -> dict[str, float]:
        """Return the weighted reward of each function that applies to a completion.

        Raises:
            EnvironmentFault: A function raised an exception, or did not return one finite number or ``None``, or none
                applies; names the function and the row.
        """
        awaited: list[Awaitable[Any]] = []
        results: dict[str, Any] = {}
        try:
            for name, (function, _) in self._functions.items():
                results[name] = function.call(task, completion)
        except EnvironmentFault:
            for result in filter(inspect.iscoroutine, results.values()):
                result.close()
            raise
        for name, (function, _) in self._functions.items():
            if inspect.isawaitable(results[name]):
                awaited.append(function.awaited(task, results[name]))
        if awaited:
            replaced = iter(shared_loop().run(_gather(awaited)))
            results = {
                name: next(replaced) if inspect.isawaitable(result) else result for name, result in results.items()
            }
        rewards = {
            name: reward * weight
            for name, (function, weight) in self._functions.items()
            if (reward := function.checked(task, results[name], weight)) is not None
        }
        if not rewards:
            raise EnvironmentFault(
                f"every reward function ({', '.join(self._functions)}) returned None for row {task.task_id!r}, which "
                "has no reward; let one apply to it, or remove the row",
                kind=FAULT,
            )
        return rewards


@dataclass(frozen=True)
class _Function:
    name: str
    function: RewardFunction
    signature: inspect.Signature

    def arguments(self, task: Task, completion: str) -> dict[str, Any]:
        row = task.to_json()["data"]  # a copy, which the function may change
        prompt = row.pop(prompt_key(row))
        columns = {name: [value] for name, value in row.items()}
        replied: Any = completion if isinstance(prompt, str) else [{"role": "assistant", "content": completion}]
        offered = {"prompts": [prompt], "completions": [replied], **columns}
        parameters = self.signature.parameters.values()
        missing = [
            parameter.name
            for parameter in parameters
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            and (parameter.name not in offered or parameter.kind is parameter.POSITIONAL_ONLY)
        ]
        if missing:
            raise ValueError(
                f"reward function {self.name!r} has the parameter {missing[0]!r}, which is no column of row "
                f"{task.task_id!r} (or can only be given by position); it can have prompts, completions, "
                f"{', '.join(columns) or 'no column'}"
            )
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return offered
        return {name: value for name, value in offered.items() if name in self.signature.parameters}

    def call(self, task: Task, completion: str) -> Any:
        try:
            return self.function(**self.arguments(task, completion))
        except (Exception, SystemExit) as error:
            raise self._raised(task, error) from error

    async def awaited(self, task: Task, result: Awaitable[Any]) -> Any:
        try:
            return await result
        except (Exception, SystemExit) as error:
            raise self._raised(task, error) from error

    def checked(self, task: Task, results: Any, weight: float) -> float | None:
        """Return the only result, if it is a finite number or ``None``."""
        try:
            values = list(results)
        except Exception as error:  # of a generator, which runs here
            if isinstance(error, TypeError):
                raise self._fault(task, f"returned {results!r:.200}") from error
            raise self._raised(task, error) from error
        try:
            if len(values) != 1:
                raise self._fault(task, f"returned {len(values)} results")
            value = values[0].item() if hasattr(values[0], "item") else values[0]
            if value is None or (_is_number(value) and math.isfinite(value * weight)):
                return None if value is None else float(value)
        except (TypeError, ValueError, OverflowError):
            pass  # not a list of numbers
        raise self._fault(task, f"returned {results!r:.200}")

    def _raised(self, task: Task, error: BaseException) -> EnvironmentFault:
        if isinstance(error, EnvironmentFault):
            return EnvironmentFault(f"reward function {self.name!r}, row {task.task_id!r}: {error}", kind=error.kind)
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error}"[:1000]
        return self._fault(
            task, f"raised {text} ({place.filename}:{place.lineno})", fix="correct the function or the row"
        )

    def _fault(self, task: Task, what: str, *, fix: str = "") -> EnvironmentFault:
        fix = fix or "it must return a list with one finite number or None for each of the completions (here 1)"
        return EnvironmentFault(f"reward function {self.name!r} {what} for row {task.task_id!r}; {fix}", kind=FAULT)


async def _gather(awaited: Sequence[Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*awaited)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
