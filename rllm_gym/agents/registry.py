"""The agents of the environment families, and the table that maps an environment id to its agent."""

from __future__ import annotations

from rllm_gym.agents.base import BaseAgent
from rllm_gym.agents.chat import ChatAgent
from rllm_gym.agents.dataset import DatasetAgent
from rllm_gym.agents.mcp import MCPAgent
from rllm_gym.agents.swe import SWEAgent
from rllm_gym.agents.tool import ToolAgent
from rllm_gym.agents.web import WebAgent


class MathAgent(ChatAgent):
    """A :class:`ChatAgent` with a system prompt for mathematics problems."""

    system_prompt = "Solve the problem step by step."  # the environment says how to give the answer


class CodeAgent(ChatAgent):
    """A :class:`ChatAgent` with a system prompt for programming problems."""

    system_prompt = (
        "Solve the programming problem in Python. Think it through, edge cases too, then give the whole program in one "
        "```python block."
    )


class FrozenLakeAgent(ChatAgent):
    """A :class:`ChatAgent` with a system prompt for FrozenLake. For tiny models, use ``system_prompt=""``."""

    system_prompt = "You walk on a frozen lake. Reach the goal in as few moves as you can and keep out of the holes."


# Id prefix -> agent; the longest matching prefix wins.
_FAMILIES: dict[str, type[BaseAgent]] = {
    "rllm/FrozenLake": FrozenLakeAgent,
    "rllm/Math": MathAgent,
    "rllm/Code": CodeAgent,
    "rllm/Dataset": DatasetAgent,
    "rllm/SWE": SWEAgent,
    "rllm/Web": WebAgent,
    "rllm/MCP": MCPAgent,
    "rllm/ToolMath": ToolAgent,
    "rllm/Search": ToolAgent,
    "rllm/MiniWoB": WebAgent,
}


def register_agent(id_prefix: str, agent: type[BaseAgent]) -> None:
    """Make ``agent`` the default agent of every environment whose id begins with ``id_prefix``."""
    _FAMILIES[id_prefix] = agent


def default_agent(env_id: str) -> type[BaseAgent]:
    """Return the agent class for an environment id; :class:`ChatAgent` if no family matches.

    >>> default_agent("rllm/MathMultiTurn-v0").__name__
    'MathAgent'
    >>> default_agent("rllm_gym:rllm/Math-v0").__name__  # as `gym.make` takes it, with the module to import
    'MathAgent'
    """
    name = env_id.rpartition(":")[2]
    fitting = [prefix for prefix in _FAMILIES if name.startswith(prefix)]
    return _FAMILIES[max(fitting, key=len)] if fitting else ChatAgent
