"""Reference solutions of built-in questions as replies, for demonstrations and to show that every one can be solved."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from rllm_gym.core import Task
from rllm_gym.envs.search.env import SearchEnv


def replies(task: Task) -> list[str]:
    """Return a solution: for each article that is needed, a search that finds it and a call that reads it, then the
    answer with citations.

    Raises:
        ValueError: The task is not a built-in question.
    """
    if "queries" not in task.data:
        raise ValueError(f"task {task.task_id!r} has no reference solution: only built-in questions have one")
    found = []
    for query, document in zip(task.data["queries"], task.data["supporting"], strict=True):
        found += [_call("search", {"query": query}), _call("read", {"id": document})]
    cited = " ".join(f"[{document}]" for document in task.data["supporting"])
    return [*found, f"\\boxed{{{task.data['answers'][0]}}} {cited}"]


def next_reply(env: Any, rng: random.Random | None = None) -> str:
    """Return the next reply of the solution. Each call of the episode so far counts as one of its replies.

    This is a demonstration policy for ``rllm-gym sft``, which passes the environment and a random generator. Nothing is
    random.
    """
    base: SearchEnv = env.unwrapped
    solution = replies(base.task)
    return solution[min(base.calls_made, len(solution) - 1)]


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}</tool_call>"
