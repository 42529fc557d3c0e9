"""Agents: convert observations to messages and replies to actions. All system prompts are in this package."""

from rllm_gym.agents.base import Action, BaseAgent
from rllm_gym.agents.chat import ChatAgent
from rllm_gym.agents.dataset import DatasetAgent
from rllm_gym.agents.mcp import MCPAgent
from rllm_gym.agents.registry import CodeAgent, FrozenLakeAgent, MathAgent, default_agent, register_agent
from rllm_gym.agents.swe import SWEAgent
from rllm_gym.agents.tool import ToolAgent
from rllm_gym.agents.web import WebAgent

__all__ = [
    "Action",
    "BaseAgent",
    "ChatAgent",
    "CodeAgent",
    "DatasetAgent",
    "FrozenLakeAgent",
    "MCPAgent",
    "MathAgent",
    "SWEAgent",
    "ToolAgent",
    "WebAgent",
    "default_agent",
    "register_agent",
]
