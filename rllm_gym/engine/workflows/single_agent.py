"""Workflows with one agent in one environment, for a single reply or for many turns."""

from __future__ import annotations

from typing import ClassVar

from rllm_gym.core import Episode, StopReason
from rllm_gym.engine.play import Play
from rllm_gym.engine.workflow import TaskOfSpec
from rllm_gym.engine.workflows.acting import CastWorkflow, act


class SingleTurn(CastWorkflow):
    """One question, one reply, graded by the environment. If the environment's episode does not end, it is truncated.

    Roles: ``agent`` (``agent_0``).
    """

    roles: ClassVar[tuple[str, ...]] = ("agent",)

    async def run(self, task: TaskOfSpec, play: Play) -> Episode:
        world = await play.env()
        observation, info = await world.reset()
        speaker = self.actor(play, "agent_0", "agent", world)
        reply = await speaker.say(observation, info)
        _, reward, _, _, info = await world.step(reply.action)
        speaker.reward(reward)
        speaker.info(info)
        stop_reason = world.stop_reason if world.over else StopReason.MAX_TURNS
        return play.finish(success=world.success, stop_reason=stop_reason)


class MultiTurn(CastWorkflow):
    """One agent replies to observations until the environment's episode ends. The same as
    :class:`~rllm_gym.engine.AgentExecutionEngine`, as a template for other workflows.

    Roles: ``agent`` (``agent_0``).
    """

    roles: ClassVar[tuple[str, ...]] = ("agent",)

    async def run(self, task: TaskOfSpec, play: Play) -> Episode:
        world = await play.env()
        observation, info = await world.reset()
        acted = await act(self.actor(play, "agent_0", "agent", world), world, observation, info)
        return play.finish(success=acted.success, stop_reason=acted.stop_reason)
