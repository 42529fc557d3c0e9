"""``rllm/MCP-v0``: tasks with the tools of MCP servers, built-in (:mod:`rllm_gym.envs.mcp.worlds`) or user-provided."""

from rllm_gym.envs.mcp.env import MCPEnv
from rllm_gym.envs.mcp.task_instance import ToolCallRecord, ToolState
from rllm_gym.envs.mcp.worlds import TEMPLATES

__all__ = ["TEMPLATES", "MCPEnv", "ToolCallRecord", "ToolState"]
