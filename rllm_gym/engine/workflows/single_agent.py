"""Workflows with one agent in one environment, for a single reply or for many turns."""

from __future__ import annotations

from typing import ClassVar

from rllm_gym.core import Episode, StopReason
from rllm_gym.engine.workflow import WorkflowTask
from rllm_gym.engine.workflow_context import WorkflowContext
from rllm_gym.engine.workflows.base import RoleWorkflow, act_until_done


class SingleTurn(RoleWorkflow):
    """One question, one reply, graded by the environment. If the environment's episode does not end, it is truncated.

    Roles: ``agent`` (``agent_0``).
    """

    roles: ClassVar[tuple[str, ...]] = ("agent",)

    async def run(self, task: WorkflowTask, context: WorkflowContext) -> Episode:
        env = await context.env()
        observation, info = await env.reset()
        session = self.env_agent(context, "agent_0", "agent", env)
        reply = await session.generate(observation, info)
        _, reward, _, _, info = await env.step(reply.action)
        session.add_reward(reward)
        session.add_info(info)
        stop_reason = env.stop_reason if env.done else StopReason.MAX_TURNS
        return context.finish(success=env.success, stop_reason=stop_reason)


class MultiTurn(RoleWorkflow):
    """One agent replies to observations until the environment's episode ends. The same as
    :class:`~rllm_gym.engine.AgentExecutionEngine`, as a template for other workflows.

    Roles: ``agent`` (``agent_0``).
    """

    roles: ClassVar[tuple[str, ...]] = ("agent",)

    async def run(self, task: WorkflowTask, context: WorkflowContext) -> Episode:
        env = await context.env()
        observation, info = await env.reset()
        acted = await act_until_done(self.env_agent(context, "agent_0", "agent", env), env, observation, info)
        return context.finish(success=acted.success, stop_reason=acted.stop_reason)
