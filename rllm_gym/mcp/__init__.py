"""Clients of MCP servers: an episode's servers, its sessions with them, and the results of tools. Contains no tasks."""

from rllm_gym.mcp.errors import ServerFault
from rllm_gym.mcp.pool import ServerPool, shared_pool
from rllm_gym.mcp.results import ToolResult
from rllm_gym.mcp.servers import HttpServer, InProcessServer, Server, StdioServer
from rllm_gym.mcp.session import ToolSession
from rllm_gym.mcp.tools import MCPTool, tools_json

__all__ = [
    "HttpServer",
    "InProcessServer",
    "MCPTool",
    "Server",
    "ServerFault",
    "ServerPool",
    "StdioServer",
    "ToolResult",
    "ToolSession",
    "shared_pool",
    "tools_json",
]
