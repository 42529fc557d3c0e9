"""What the built-in workflows share: who plays a role, and one agent acting in one environment to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rllm_gym.agents import BaseAgent, ChatAgent, default_agent
from rllm_gym.core import StopReason
from rllm_gym.engine.handles import EnvironmentHandle
from rllm_gym.engine.play import Play
from rllm_gym.engine.speaker import Speaker
from rllm_gym.engine.workflow import Workflow

Agents = Mapping[str, Callable[[], BaseAgent]]


class CastWorkflow(Workflow):
    """A workflow whose roles can be played by agents of the user's own.

    Args:
        agents: For each role something that makes its agent; a role left out is played by the agent of the
            environment's family where it acts, and else by a chat agent with the workflow's own system prompt.

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

    def actor(self, play: Play, name: str, role: str, world: EnvironmentHandle) -> Speaker:
        """An agent that acts in an environment, with its tools. The environment has been reset."""
        make = self.agents.get(role) or default_agent(world.env_id)
        return play.agent(name, role, agent=make(), tools=world.tools)

    def talker(self, play: Play, name: str, role: str, system: str) -> Speaker:
        """An agent that only talks."""
        make = self.agents.get(role)
        return play.agent(name, role, agent=ChatAgent(system) if make is None else make())


@dataclass(frozen=True, slots=True)
class Attempted:
    """What an agent did in an environment.

    Attributes:
        text: What it said: its reply, or all of them, one after the other.
        reward: Sum of the rewards.
        success: Whether the task was solved.
        stop_reason: Why the world ended.
        info: Its last.
    """

    text: str
    reward: float
    success: bool
    stop_reason: StopReason
    info: dict[str, Any]


async def act(speaker: Speaker, world: EnvironmentHandle, observation: Any, info: dict[str, Any]) -> Attempted:
    """Observation and reply in turn until the world ends; each step has the world's reward and info.

    Raises:
        Truncated: A limit does not let the agent speak on.
        EnvironmentFault: The world broke.
    """
    said = []
    while not world.over:
        reply = await speaker.say(observation, info)
        said.append(reply.text)
        observation, reward, _, _, info = await world.step(reply.action)
        speaker.reward(reward)
        speaker.info(info)
    speaker.hear(observation, info, done=True)
    return Attempted("\n\n".join(said), world.reward, world.success, world.stop_reason, info)


def whole(name: str, value: int, least: int = 1) -> int:
    """
    Raises:
        ValueError: It is no whole number of at least ``least``.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}")
    return value
