"""rLLM's MCP environment: one server for all episodes of the process, whose tools a :class:`ToolAgent` calls."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import threading
from typing import TYPE_CHECKING, Any

from rllm_gym.compat.rewards import RewardFunction
from rllm_gym.compat.tool import Tool, ToolOutput
from rllm_gym.compat.tools import ToolEnvironment
from rllm_gym.core import EnvironmentFault

if TYPE_CHECKING:
    from rllm_gym.mcp import ToolSession

_TIMEOUT_S = 30.0
"""Of the start of the server, and of each call."""
_log = logging.getLogger(__name__)


class MCPTool(Tool):
    """A tool of an MCP server.

    Args:
        session: Has ``await session.call(name, arguments)``, see :class:`rllm_gym.mcp.ToolSession`.
        tool_name, tool_description, tool_schema: The tool as the server lists it.
    """

    def __init__(self, session: Any, tool_name: str, tool_description: str, tool_schema: dict[str, Any]) -> None:
        self.session = session
        self._tool_schema = tool_schema
        super().__init__(name=tool_name, description=tool_description or tool_name)

    @property
    def json(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": self._tool_schema}
        return {"type": "function", "function": function}

    async def async_forward(self, /, *args: Any, **kwargs: Any) -> ToolOutput:
        result = await self.session.call(str(self.name), kwargs)
        name = str(self.name)
        return ToolOutput(name, error=result.text) if result.is_error else ToolOutput(name, output=result.text)

    def forward(self, /, *args: Any, **kwargs: Any) -> ToolOutput:
        return asyncio.run(self.async_forward(*args, **kwargs))


class MCPConnectionManager:
    """A connection to an MCP server that is a program, in a thread of its own.

    Args:
        mcp_server_command, mcp_server_args: The program, which runs in the current directory.
        mcp_server_env: Environment variables in addition to ``PATH``, ``HOME`` and ``LANG``.
    """

    def __init__(
        self,
        mcp_server_command: str,
        mcp_server_args: list[str] | None = None,
        mcp_server_env: dict[str, str] | None = None,
    ) -> None:
        self.mcp_server_command = mcp_server_command
        self.mcp_server_args = mcp_server_args or []
        self.mcp_server_env = mcp_server_env
        self.request_queue: queue.Queue[Any] = queue.Queue()
        self.worker_thread: threading.Thread | None = None
        self.tool_map: dict[str, MCPTool] = {}
        self.running = False

    def start(self) -> None:
        """Start the server, and list its tools in :attr:`tool_map`.

        Raises:
            RuntimeError: It did not start.
        """
        if self.running:
            return
        self.running = True
        answers: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.worker_thread = threading.Thread(target=self._serve, args=(answers,), name="mcp-connection", daemon=True)
        self.worker_thread.start()
        outcome, value = answers.get(timeout=2 * _TIMEOUT_S)
        if outcome == "error":
            self.running = False
            raise RuntimeError(f"Failed to initialize MCP connection: {value}")

    def stop(self) -> None:
        """End the server. Does nothing if it is not running."""
        if not self.running:
            return
        self.running = False
        self.request_queue.put(None)
        if self.worker_thread is not None:
            self.worker_thread.join(timeout=5)

    def execute_tool_calls(self, tool_calls: list[dict[str, Any]]) -> dict[str, str]:
        """Return the output of each call by its id. Calls of several threads run concurrently.

        Raises:
            EnvironmentFault: The server failed and cannot be started again.
            RuntimeError: The connection is not running.
        """
        if not self.running:
            raise RuntimeError("Connection manager not running: call start() first")
        answers: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.request_queue.put((tool_calls, answers))
        outcome, value = answers.get(timeout=3 * _TIMEOUT_S)
        if outcome == "error":
            raise value if isinstance(value, EnvironmentFault) else RuntimeError(f"Tool execution failed: {value}")
        outputs: dict[str, str] = value
        return outputs

    # Called in threads, which are daemons: a program that does not call stop() ends nevertheless

    def _serve(self, started: queue.Queue[tuple[str, Any]]) -> None:
        try:
            session = asyncio.run(self._open())
            for tool in session.tools:
                entry = MCPTool(session, tool.name, tool.description, tool.input_schema)
                self.tool_map |= {tool.name: entry, tool.name.replace("-", "_"): entry}
        except Exception as error:
            started.put(("error", error))
            return
        started.put(("success", self.tool_map))
        while (request := self.request_queue.get()) is not None:
            threading.Thread(target=asyncio.run, args=(self._answer(*request),), daemon=True).start()
        asyncio.run(session.close())

    async def _open(self) -> ToolSession:
        from rllm_gym.mcp import StdioServer, shared_pool

        environment = {"HOME": os.environ.get("HOME", "/"), **(self.mcp_server_env or {})}
        arguments = tuple(self.mcp_server_args)
        server = StdioServer(self.mcp_server_command, arguments, environment, os.getcwd(), timeout=_TIMEOUT_S)
        pool = shared_pool()
        return await pool.open([server], workspace=await pool.workspace([server]))

    async def _answer(self, tool_calls: list[dict[str, Any]], answers: queue.Queue[tuple[str, Any]]) -> None:
        try:
            outputs = await asyncio.gather(*(self._output(call) for call in tool_calls))
            ids = [str(call.get("id", number)) for number, call in enumerate(tool_calls)]
            answers.put(("success", dict(zip(ids, outputs, strict=True))))
        except Exception as error:
            answers.put(("error", error))

    async def _output(self, call: dict[str, Any]) -> str:
        function = call.get("function") or {}
        tool = self.tool_map.get(str(function.get("name")))
        if tool is None:
            return f"Error: Tool {function.get('name')!r} not found; there are {sorted(self.tool_map)}"
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                arguments = None
        if not isinstance(arguments, dict):
            return "Error: the arguments are not a JSON object"
        return (await tool.async_forward(**arguments)).to_string()


class MCPEnvironment(ToolEnvironment):
    """A :class:`ToolEnvironment` whose calls are sent to an MCP server, which all environments of the process share.

    Args:
        task, reward_fn, max_steps: As of :class:`ToolEnvironment`.
        mcp_server_command, mcp_server_args, mcp_server_env: See :class:`MCPConnectionManager`. The first environment
            starts the server; :meth:`cleanup_global_resources` ends it.

    Raises:
        RuntimeError: The server did not start.
        ValueError: Another server is running.
    """

    _connection_manager: MCPConnectionManager | None = None
    _manager_lock = threading.Lock()

    def __init__(
        self,
        task: dict[str, Any] | None = None,
        mcp_server_command: str | None = None,
        mcp_server_args: list[str] | None = None,
        mcp_server_env: dict[str, str] | None = None,
        reward_fn: RewardFunction | None = None,
        max_steps: int = 10,
    ) -> None:
        super().__init__(task=task, reward_fn=reward_fn, max_steps=max_steps)
        self.mcp_server_command = mcp_server_command
        self.mcp_server_args = mcp_server_args or []
        self.mcp_server_env = mcp_server_env
        with MCPEnvironment._manager_lock:
            manager = MCPEnvironment._connection_manager
            if mcp_server_command is not None and manager is None:
                manager = MCPConnectionManager(mcp_server_command, self.mcp_server_args, mcp_server_env)
                manager.start()
                MCPEnvironment._connection_manager = manager
            if isinstance(running := getattr(manager, "mcp_server_command", None), str):
                started = (running, getattr(manager, "mcp_server_args", None))
                if mcp_server_command is not None and started != (mcp_server_command, self.mcp_server_args):
                    raise ValueError(
                        f"the MCP server {started} is running, not {(mcp_server_command, self.mcp_server_args)}: call "
                        "MCPEnvironment.cleanup_global_resources() first"
                    )

    def reset(self) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset()
        return observation or {}, info

    def _execute_tool_calls(self, tool_calls: list[dict[str, Any]]) -> dict[str, str]:
        manager = MCPEnvironment._connection_manager
        if manager is None:
            return {}
        try:
            return manager.execute_tool_calls(tool_calls)
        except EnvironmentFault:
            raise
        except Exception as error:
            _log.warning("the tool calls failed: %s", error)
            return {}

    @staticmethod
    def cleanup_global_resources() -> None:
        """End the server."""
        with MCPEnvironment._manager_lock:
            if MCPEnvironment._connection_manager is not None:
                MCPEnvironment._connection_manager.stop()
                MCPEnvironment._connection_manager = None

    @staticmethod
    def from_dict(env_args: dict[str, Any]) -> MCPEnvironment:
        row = dict(env_args)
        names = ("mcp_server_command", "mcp_server_args", "mcp_server_env", "reward_fn", "max_steps")
        options = {name: row.pop(name) for name in names if name in row}
        return MCPEnvironment(task=row, **options)
