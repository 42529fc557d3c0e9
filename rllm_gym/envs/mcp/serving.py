"""Creation of MCP servers from methods: a schema per class, a server per episode, refusals as error messages."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rllm_gym.core.per_process import PerProcess
from rllm_gym.mcp.servers import InProcessServer


class Refusal(Exception):
    """Raised by a tool that refuses a request; the model reads its message."""


ToolMethod = Callable[..., Any]

_turn = PerProcess(threading.Lock)
"""Heavy tools of all episodes run one at a time, so that their peak memory does not add up."""


def heavy(method: ToolMethod) -> ToolMethod:
    """Mark a tool that may be slow: it runs in a thread, one call at a time, in the order of the calls."""
    method.heavy = True  # type: ignore[attr-defined]
    return method


def server(name: str, tools: Callable[[], Sequence[ToolMethod]], *, instructions: str = "") -> InProcessServer:
    """Return a server that is created again for each episode.

    Args:
        name: Name of the server; a prefix of its tools' names if two servers offer a tool of the same name.
        tools: Returns the bound methods, whose public names and docstrings the model reads. A method that returns text
            gives text; any other return type gives structured content.
        instructions: The server's description of itself.
    """

    def make(workspace: Path, seed: int) -> Any:
        from mcp.server import MCPServer

        return MCPServer(
            name, instructions=instructions or None, tools=[_tool(method) for method in tools()], log_level="ERROR"
        )

    return InProcessServer(make, name=name, restartable=True)  # the state is that of the methods


def _tool(method: ToolMethod) -> Any:
    function = getattr(method, "__func__", method)
    run = _in_thread(method) if getattr(method, "heavy", False) else _at_once(method)
    # Creating the schema takes a millisecond, and the schema is the same for every instance of a class.
    return _described(function).model_copy(update={"fn": run})


def _at_once(method: ToolMethod) -> ToolMethod:
    """Run the tool on the event loop: concurrent calls run one after the other, in order."""
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
        with _turn():
            return method(**arguments)

    async def run(**arguments: Any) -> Any:
        try:
            async with lock:
                return await anyio.to_thread.run_sync(taking_turns, arguments)
        except Refusal as refusal:
            raise ToolError(str(refusal)) from None

    return run


def _lock_of(method: ToolMethod) -> Any:
    """Return one lock for all heavy tools of a state: anyio's lock is acquired in the order of the requests."""
    import anyio

    state = method.__self__  # type: ignore[attr-defined]
    if not hasattr(state, "_heavy_lock"):
        state._heavy_lock = anyio.Lock()
    return state._heavy_lock


@cache
def _described(function: ToolMethod) -> Any:
    """Return the tool's schema, with each argument's description from the docstring."""
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
    """Split a docstring into its text and the descriptions in its ``Args:`` section."""
    text, _, arguments = inspect.cleandoc(function.__doc__ or "").partition("\n\nArgs:\n")
    described = {name: " ".join(about.split()) for name, about in _ARGUMENT.findall(inspect.cleandoc(arguments))}
    return text, described
