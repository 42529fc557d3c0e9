"""Code shared by the built-in workflows: choosing the agent of a role, and running one agent in one environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rllm_gym.agents import BaseAgent, ChatAgent, default_agent
from rllm_gym.core import StopReason
from rllm_gym.engine.agent_session import AgentSession
from rllm_gym.engine.handles import EnvironmentHandle
from rllm_gym.engine.workflow import Workflow
from rllm_gym.engine.workflow_context import WorkflowContext

Agents = Mapping[str, Callable[[], BaseAgent]]


class RoleWorkflow(Workflow):
    """A workflow whose roles can be filled by the user's own agents.

    Args:
        agents: Agent factories by role. A role that is left out uses the agent of the environment's family if it acts
            in the environment, and otherwise a chat agent with the workflow's own system prompt.

    Raises:
        ValueError: There is no such role.
    """

    def __init__(self, agents: Agents | None = None) -> None:
        self.agents = dict(agents or {})
        unknown = sorted(set(self.agents) - set(self.roles))
        if unknown:
            raise ValueError(
                f"{type(self).__name__} has no role {', '.join(map(repr, unknown))}; its roles are {self.roles}"
            )

    def env_agent(self, context: WorkflowContext, name: str, role: str, env: EnvironmentHandle) -> AgentSession:
        """Return an agent that acts in an environment, with its tools. The environment must have been reset."""
        make = self.agents.get(role) or default_agent(env.env_id)
        return context.agent(name, role, agent=make(), tools=env.tools)

    def chat_agent(self, context: WorkflowContext, name: str, role: str, system: str) -> AgentSession:
        """Return an agent that only replies and does not act in an environment."""
        make = self.agents.get(role)
        return context.agent(name, role, agent=ChatAgent(system) if make is None else make())


@dataclass(frozen=True, slots=True)
class EnvAttempt:
    """The result of an agent's episode in an environment.

    Attributes:
        text: Its replies, joined by blank lines.
        reward: Sum of the rewards.
        success: Whether the task was solved.
        stop_reason: Why the environment's episode ended.
        info: The last info.
    """

    text: str
    reward: float
    success: bool
    stop_reason: StopReason
    info: dict[str, Any]


async def act_until_done(
    session: AgentSession, env: EnvironmentHandle, observation: Any, info: dict[str, Any]
) -> EnvAttempt:
    """Run an agent in an environment until its episode ends. Each step gets the environment's reward and info.

    Raises:
        Truncated: A limit prevents the agent from replying.
        EnvironmentFault: The environment failed.
    """
    replies = []
    while not env.done:
        reply = await session.generate(observation, info)
        replies.append(reply.text)
        observation, reward, _, _, info = await env.step(reply.action)
        session.add_reward(reward)
        session.add_info(info)
    session.observe(observation, info, done=True)
    return EnvAttempt("\n\n".join(replies), env.reward, env.success, env.stop_reason, info)
