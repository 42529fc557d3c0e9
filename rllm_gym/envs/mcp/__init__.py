"""``rllm/MCP-v0``: tasks with the tools of MCP servers, built-in (:mod:`rllm_gym.envs.mcp.domains`) or your own."""

from rllm_gym.envs.mcp.domains import TEMPLATES
from rllm_gym.envs.mcp.env import MCPEnv
from rllm_gym.envs.mcp.task_instance import ToolCallRecord, ToolState

__all__ = ["TEMPLATES", "MCPEnv", "ToolCallRecord", "ToolState"]
