"""Errors of an episode's MCP servers."""

from __future__ import annotations

from typing import Any

from rllm_gym.core.errors import EnvironmentFault


class ServerFault(EnvironmentFault):
    """A server failed: the episode cannot continue, through no fault of the agent.

    What a call may have caused is no fault: see :meth:`rllm_gym.mcp.ToolSession.call`.

    ``kind`` is ``"server_start"`` (it did not start), ``"server_unreachable"`` (no connection, so that nothing was
    sent), ``"server_died"`` (it ended or closed the connection), ``"server_deadline"`` (no answer in time) or
    ``"server_protocol"`` (it sent invalid MCP, or too much data).
    """


class JsonRpcError(Exception):
    """The server answered a request with a JSON-RPC error: it is alive and refuses the request.

    Args:
        code: The error's code, such as -32602 for invalid arguments.
        message: Its message.
    """

    def __init__(self, code: Any, message: Any) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} (error {self.code})"
