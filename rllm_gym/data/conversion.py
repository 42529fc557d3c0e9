"""Conversion of rows to tasks, and the check that a row is JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from rllm_gym.core import Task, TaskError

RowToTask = Callable[[Mapping[str, Any], str], Task]
"""Converts a row and its task id to a task. Raises :class:`~rllm_gym.core.TaskError` for a row it cannot use."""

CONTENT_KEYS = ("question", "problem", "prompt", "instruction", "content")
ID_KEYS = ("task_id", "id", "unique_id")
MAX_DEPTH = 64
"""Maximum depth of nested lists and mappings in a row."""


def row_id(row: Mapping[str, Any]) -> str | None:
    """Return the row's own id, from ``task_id``, ``id`` or ``unique_id``; ``None`` if it has none.

    Raises:
        TaskError: The id is neither text nor a whole number, or is empty.
    """
    for key in ID_KEYS:
        value = row.get(key)
        if value is None:
            continue
        if isinstance(value, str) and value:
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        raise TaskError(f"its {key!r} is {value!r:.80}; an id must be a whole number or a non-empty string")
    return None


def known_format(row: Mapping[str, Any]) -> str:
    """Return ``"ShareGPT"`` or ``"Alpaca"`` for a row of that format, so that an error can say what to rename.

    >>> known_format({"conversations": [{"from": "human", "value": "Hello"}]})
    'ShareGPT'
    """
    if "conversations" in row:
        return "ShareGPT"
    return "Alpaca" if "instruction" in row and "output" in row else ""


def row_to_task(row: Mapping[str, Any], task_id: str) -> Task:
    """Return a task that stores the whole row as its data.

    The content is the first of ``question``, ``problem``, ``prompt``, ``instruction``, ``content`` that is text;
    otherwise the whole row without its ids, as JSON with sorted keys. A row written by
    :meth:`rllm_gym.core.Task.to_json` is restored to that task.

    Raises:
        TaskError: The row contains a value that JSON cannot represent.
    """
    if set(row) == {"task_id", "content", "data"} and isinstance(row["content"], str):
        data = row["data"]
        if isinstance(data, Mapping):
            check_json(data)
            return Task(task_id, row["content"], data)
    check_json(row)
    for key in CONTENT_KEYS:
        value = row.get(key)
        if isinstance(value, str) and value:
            return Task(task_id, value, row)
    content = json.dumps({key: value for key, value in row.items() if key not in ID_KEYS}, sort_keys=True)
    return Task(task_id, content, row)


def check_json(value: Any) -> None:
    """Check that ``value`` is JSON: texts, finite numbers, booleans, ``None``, lists, and mappings with text keys.

    Raises:
        TaskError: It is not; names the key and the value.
    """
    stack: list[tuple[Any, str, int]] = [(value, "", 0)]
    while stack:
        item, where, depth = stack.pop()
        if item is None or isinstance(item, str | bool | int):
            continue
        if isinstance(item, float):
            if item != item or item in (float("inf"), float("-inf")):
                raise TaskError(f"{where or 'it'} is {item}, which JSON does not support; omit it or write null")
        elif depth >= MAX_DEPTH:
            raise TaskError(f"{where[:80]} is nested more than {MAX_DEPTH} levels deep; flatten it")
        elif isinstance(item, Mapping):
            for key, inner in item.items():
                if not isinstance(key, str):
                    raise TaskError(f"{where or 'it'} has the key {key!r:.80}; keys must be strings")
                stack.append((inner, f"{where}[{key!r:.40}]", depth + 1))
        elif isinstance(item, list | tuple):
            stack.extend((inner, f"{where}[{index}]", depth + 1) for index, inner in enumerate(item))
        else:
            raise TaskError(
                f"{where or 'it'} is of type {type(item).__name__}, which is not a JSON type; convert it to a "
                "string or number, or omit it"
            )
