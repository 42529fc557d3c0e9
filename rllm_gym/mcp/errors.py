"""What can go wrong between an episode and its MCP servers."""

from __future__ import annotations

from typing import Any

from rllm_gym.core.errors import EnvironmentFault


class ServerFault(EnvironmentFault):
    """A server broke: the episode cannot go on, and nobody is to blame but the world.

    ``kind`` is ``"server_start"`` (it did not come up), ``"server_died"`` (it ended or hung up), ``"server_deadline"``
    (no answer in time) or ``"server_protocol"`` (what it sent is no MCP, or too much of it).
    """


class RemoteError(Exception):
    """The server answered a request with a JSON-RPC error: it lives, and it refuses.

    Args:
        code: The error's code, such as -32602 for arguments that do not fit.
        message: Its message.
    """

    def __init__(self, code: Any, message: Any) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} (error {self.code})"
