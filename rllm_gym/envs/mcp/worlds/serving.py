"""From the methods of a world to an MCP server: schemas once a class, a server an episode, refusals as words."""

from __future__ import annotations

import inspect
import os
import re
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rllm_gym.mcp.servers import InProcessServer


class Refusal(Exception):
    """Raised by a tool that does not do what was asked; the model reads its message."""


ToolMethod = Callable[..., Any]

_turn = threading.Lock()
"""Heavy tools of all episodes take turns: what one of them may use up in memory is used up once."""


def _new_turn() -> None:
    global _turn
    _turn = threading.Lock()


os.register_at_fork(after_in_child=_new_turn)  # the thread that held it is not in the child


def heavy(method: ToolMethod) -> ToolMethod:
    """Mark a tool that may take longer than a moment: it runs in a thread, one at a time, in the order of its calls."""
    method.heavy = True  # type: ignore[attr-defined]
    return method


def server(name: str, tools: Callable[[], Sequence[ToolMethod]], *, instructions: str = "") -> InProcessServer:
    """A server made anew for each episode.

    Args:
        name: What the server is called; its tools carry it where two servers offer one of the same name.
        tools: Gives the bound methods, public name and docstring as the model reads them. A method that returns text
            gives text; any other return type gives structured content.
        instructions: What the server says about itself.
    """

    def make(workspace: Path, seed: int) -> Any:
        from mcp.server import MCPServer

        return MCPServer(
            name, instructions=instructions or None, tools=[_tool(method) for method in tools()], log_level="ERROR"
        )

    return InProcessServer(make, name=name)


def _tool(method: ToolMethod) -> Any:
    function = getattr(method, "__func__", method)
    run = _in_thread(method) if getattr(method, "heavy", False) else _at_once(method)
    # The schema takes a millisecond to make and is the same for every world of a class.
    return _described(function).model_copy(update={"fn": run})


def _at_once(method: ToolMethod) -> ToolMethod:
    """On the loop: calls that are made together run one after the other, in their order."""
    from mcp.server.mcpserver.exceptions import ToolError

    async def run(**arguments: Any) -> Any:
        try:
            return method(**arguments)
        except Refusal as refusal:
            raise ToolError(str(refusal)) from None

    return run


def _in_thread(method: ToolMethod) -> ToolMethod:
    import anyio
    from mcp.server.mcpserver.exceptions import ToolError

    lock = _lock_of(method)

    def taking_turns(arguments: dict[str, Any]) -> Any:
        with _turn:
            return method(**arguments)

    async def run(**arguments: Any) -> Any:
        try:
            async with lock:
                return await anyio.to_thread.run_sync(taking_turns, arguments)
        except Refusal as refusal:
            raise ToolError(str(refusal)) from None

    return run


def _lock_of(method: ToolMethod) -> Any:
    """One lock for all heavy tools of a world: anyio's hands itself on in the order it was asked."""
    import anyio

    world = method.__self__  # type: ignore[attr-defined]
    if not hasattr(world, "_heavy_lock"):
        world._heavy_lock = anyio.Lock()
    return world._heavy_lock


@cache
def _described(function: ToolMethod) -> Any:
    """The tool's schema, with what the docstring says about each argument where a model looks for it."""
    from mcp.server.mcpserver.tools import Tool

    signature = inspect.signature(function, eval_str=True)
    text, arguments = _docstring(function)
    bare = _without_self(function, signature)
    tool = Tool.from_function(
        bare,
        name=function.__name__,
        description=text,
        structured_output=False if signature.return_annotation is str else None,
    )
    for name, about in arguments.items():
        tool.parameters["properties"][name]["description"] = about
    return tool.model_copy(update={"is_async": True})


def _without_self(function: ToolMethod, signature: inspect.Signature) -> ToolMethod:
    parameters = [parameter for name, parameter in signature.parameters.items() if name != "self"]

    def bare(**arguments: Any) -> Any:
        raise NotImplementedError("replaced by the bound method")

    bare.__name__ = function.__name__
    bare.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    bare.__annotations__ = {
        **{parameter.name: parameter.annotation for parameter in parameters},
        "return": signature.return_annotation,
    }
    return bare


_ARGUMENT = re.compile(r"^(\w+): (.*(?:\n {4,}.*)*)", re.MULTILINE)


def _docstring(function: ToolMethod) -> tuple[str, dict[str, str]]:
    """A docstring's text, and what its ``Args:`` section says."""
    text, _, arguments = inspect.cleandoc(function.__doc__ or "").partition("\n\nArgs:\n")
    described = {name: " ".join(about.split()) for name, about in _ARGUMENT.findall(inspect.cleandoc(arguments))}
    return text, described
