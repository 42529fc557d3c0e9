"""Reference solutions of built-in tasks as replies, for demonstrations and to show that every task can be solved."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rllm_gym.envs.mcp.domains import Call, FinalAnswer, InfeasibleReport, ToolTask
from rllm_gym.envs.mcp.env import MCPEnv
from rllm_gym.envs.mcp.prompt import REPORT_INFEASIBLE
from rllm_gym.envs.mcp.task import SolutionStep
from rllm_gym.envs.mcp.task_instance import BuiltinTaskInstance
from rllm_gym.mcp import MCPTool


def tool_task_of(env: Any) -> ToolTask:
    """Return the built-in task of the running episode.

    Raises:
        ValueError: There is none: the episode has not begun, or its task is a row with its own servers.
    """
    instance = getattr(env.unwrapped, "_instance", None)
    if not isinstance(instance, BuiltinTaskInstance):
        raise ValueError("no reference solution: only built-in tasks of rllm/MCP-v0 have one; call reset() first")
    return instance.task


def next_reply(env: Any) -> str:
    """Return the next reply of the solution, in an episode that uses only such replies from the first turn on."""
    base: MCPEnv = env.unwrapped
    return replies(tool_task_of(base).calls, list(base.available_tools.values()))[base.turn]


def replies(moves: Iterable[SolutionStep], tools: Sequence[MCPTool]) -> list[str]:
    """Convert moves to the replies of a model that is offered ``tools``.

    Raises:
        ValueError: A move calls a tool that is not offered.
    """
    return [_reply(move, tools) for move in moves]


def _reply(move: SolutionStep, tools: Sequence[MCPTool]) -> str:
    if isinstance(move, FinalAnswer):
        return move.text
    if isinstance(move, InfeasibleReport):
        return _call(REPORT_INFEASIBLE.name, {"reason": move.reason})
    return _call(_name_of(move, tools), dict(move.arguments))


def _name_of(call: Call, tools: Sequence[MCPTool]) -> str:
    for tool in tools:
        if tool.remote_name == call.tool and call.server in ("", tool.server):
            return tool.name
    raise ValueError(f"the server {call.server!r} has no tool {call.tool!r}")


def _call(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}</tool_call>"
