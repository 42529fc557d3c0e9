"""Conversion of a row of a math data set to a task: finds the problem and its answer."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from rllm_gym.core import Task, TaskError
from rllm_gym.envs.math.answer_form import FORMS
from rllm_gym.parsing.boxed import last_boxed

PROBLEM_KEYS = ("question", "problem", "prompt")
ANSWER_KEYS = ("answer", "gold", "ground_truth", "solution")

MAX_PROBLEM_CHARS = 90_000
MAX_GOLD_CHARS = 10_000


def row_to_math_task(row: Mapping[str, Any], task_id: str) -> Task:
    r"""Return a task with the problem as content and its answer in ``data["gold"]``.

    Accepts rows of GSM8K (``question``, and ``answer`` ending in ``#### 18``), of MATH (``problem``, with ``answer`` or
    a ``solution`` with the answer in ``\boxed{}``), any of ``question``, ``problem``, ``prompt`` with any of
    ``answer``, ``gold``, ``ground_truth``, and tasks written by :meth:`rllm_gym.core.Task.to_json`. A ``tolerance`` (a
    number, the largest absolute error of an answer) is kept.

    Raises:
        TaskError: The row has no problem or no answer; the message names its keys.
    """
    data = row.get("data")
    if isinstance(data, Mapping) and isinstance(row.get("content"), str):
        return math_task(Task(task_id, row["content"], data))
    key, problem = _first(row, PROBLEM_KEYS, "problem")
    if not isinstance(problem, str) or not problem.strip():
        raise TaskError(f"its {key!r} is {problem!r:.80}; the problem must be a non-empty string")
    if len(problem) > MAX_PROBLEM_CHARS:
        raise TaskError(f"its {key!r} has {len(problem)} characters; the maximum is {MAX_PROBLEM_CHARS}")
    return Task(task_id, problem, {"gold": gold_of(row)} | _tolerance_of(row))


def math_task(task: Task) -> Task:
    """Return ``task`` itself if it has a gold answer, else a task created from the row in its data.

    Raises:
        TaskError: No answer was found, or the tolerance is invalid.
    """
    gold = task.data.get("gold")
    try:
        tolerance = _tolerance_of(task.data)
        if isinstance(gold, str) and gold.strip() and len(gold) <= MAX_GOLD_CHARS:
            return task
        return Task(task.task_id, task.content, {"gold": gold_of(task.data)} | tolerance)
    except TaskError as error:
        raise TaskError(f"task {task.task_id!r}: {error}") from error


_ANGLE_UNITS = re.compile(r"radian|degree", re.IGNORECASE)


@dataclass(frozen=True)
class GoldAnswer:
    """The right answer of a task and how it is compared.

    Attributes:
        text: The answer.
        form: Its form in :mod:`rllm_gym.envs.math.answer_form`.
        tolerance: Largest absolute error, 0 unless the task specifies it.
        degrees: Whether an angle may be given in degrees or radians, since the problem names neither.
    """

    text: str
    form: str
    tolerance: float
    degrees: bool


def gold_answer(task: Task) -> GoldAnswer:
    """Return the right answer of a task.

    Raises:
        TaskError: No answer was found, or the tolerance is invalid.
    """
    data = math_task(task).data
    form = data.get("form")
    return GoldAnswer(
        data["gold"],
        form if isinstance(form, str) and form in FORMS else "expression",
        _tolerance_of(data).get("tolerance", 0.0),
        _ANGLE_UNITS.search(task.content) is None,
    )


def gold_of(row: Mapping[str, Any]) -> str:
    """Return the answer in a row, as text.

    Raises:
        TaskError: The row has no answer; the message names its keys.
    """
    key, value = _first(row, ANSWER_KEYS, "answer")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TaskError(
            f"its {key!r} is of type {type(value).__name__} ({value!r:.80}); an answer must be a string or a number"
        )
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TaskError(f"its {key!r} is {value}; an answer must be a finite number")
        return format(Decimal(repr(value)), "f")
    text = str(value)
    if "####" in text:
        text = text.rpartition("####")[2]
    elif "\\boxed" in text or "\\fbox" in text or key == "solution":
        boxed = last_boxed(text)
        if boxed is None:
            raise TaskError(f"its {key!r} has no answer: no '#### …' and no closed \\boxed{{}}")
        text = boxed
    text = text.strip()
    if not text:
        raise TaskError(f"its {key!r} is an empty answer")
    if len(text) > MAX_GOLD_CHARS:
        raise TaskError(f"its {key!r} has {len(text)} characters; the maximum is {MAX_GOLD_CHARS}")
    return text


def _tolerance_of(row: Mapping[str, Any]) -> dict[str, float]:
    value = row.get("tolerance")
    if value is None:
        return {}
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise TaskError(f"its 'tolerance' is {value!r:.80}; it must be a finite number >= 0")
    return {"tolerance": float(value)}


def _first(row: Mapping[str, Any], keys: tuple[str, ...], what: str) -> tuple[str, Any]:
    for key in keys:
        if row.get(key) is not None:
            return key, row[key]
    raise TaskError(
        f"it has no {what}: none of the keys {', '.join(map(repr, keys))} is among {sorted(map(str, row))!r:.300}; "
        "rename the field"
    )
