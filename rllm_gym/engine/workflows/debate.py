"""A debate workflow: two or more debaters argue for their answers in rounds, then a judge answers."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from rllm_gym.argument_checks import check_int
from rllm_gym.core import Episode
from rllm_gym.engine.agent_session import AgentSession
from rllm_gym.engine.handles import EnvironmentHandle
from rllm_gym.engine.workflow import WorkflowTask
from rllm_gym.engine.workflow_context import WorkflowContext
from rllm_gym.engine.workflows.base import Agents, RoleWorkflow, act_until_done
from rllm_gym.engine.workflows.candidates import final_answer, format_observation
from rllm_gym.parsing.quoting import quoted


class Debate(RoleWorkflow):
    """Debaters answer the task, read each other's answers, and answer again; then the judge answers with all of them
    in its prompt.

    In each round all debaters reply concurrently. The judge's answer is passed to the environment; its reward is the
    reward of the episode. A debater's last answer is rewarded by the environment as well, in an environment of its
    own; in a multi-turn environment, where one reply is not an answer, debaters get the judge's reward. Metrics:
    ``debater_success`` (fraction of the debaters), ``judge_success``.

    Roles: ``debater`` (``debater_0`` …) and ``judge`` (``judge_0``).

    Args:
        debaters: Number of debaters, at least 2.
        rounds: Replies per debater, at least 1.
        agents: See :class:`RoleWorkflow`.
    """

    roles: ClassVar[tuple[str, ...]] = ("debater", "judge")

    def __init__(self, debaters: int = 2, rounds: int = 2, *, agents: Agents | None = None) -> None:
        self.debaters = check_int("debaters", debaters, 2)
        self.rounds = check_int("rounds", rounds)
        super().__init__(agents)

    async def run(self, task: WorkflowTask, context: WorkflowContext) -> Episode:
        judge_env = await context.env()
        envs = [await context.env() for _ in range(self.debaters)]
        observation, info = await judge_env.reset()
        debaters = [self.env_agent(context, f"debater_{n}", "debater", judge_env) for n in range(self.debaters)]
        replies = await self._argue(debaters, observation, info)
        judge = self.env_agent(context, "judge_0", "judge", judge_env)
        verdict = await act_until_done(judge, judge_env, _judge_prompt(observation, debaters, replies), info)
        context.metrics["judge_success"] = float(verdict.success)
        async with asyncio.TaskGroup() as group:
            graded = [
                group.create_task(_grade(session, env, action, verdict.reward))
                for session, env, (_, action) in zip(debaters, envs, replies, strict=True)
            ]
        context.metrics["debater_success"] = sum(task.result() for task in graded) / self.debaters
        return context.finish(reward=verdict.reward, success=verdict.success, stop_reason=verdict.stop_reason)

    async def _argue(
        self, debaters: list[AgentSession], observation: Any, info: dict[str, Any]
    ) -> list[tuple[str, Any]]:
        """Return the last reply of each debater, as text and as action."""
        message: list[tuple[str, Any]] = []
        for turn in range(self.rounds):
            async with asyncio.TaskGroup() as group:
                replies = [
                    group.create_task(
                        session.generate(observation if turn == 0 else _debater_prompt(number, debaters, message), info)
                    )
                    for number, session in enumerate(debaters)
                ]
            message = [(reply.result().text, reply.result().action) for reply in replies]
        return message


async def _grade(session: AgentSession, env: EnvironmentHandle, action: Any, shared: float) -> bool:
    await env.reset()
    _, reward, _, _, info = await env.step(action)
    if not env.done:
        session.add_reward(shared)
        return shared > 0
    session.add_reward(reward)
    session.add_info(info)
    return env.success


def _debater_prompt(number: int, debaters: list[AgentSession], replies: list[tuple[str, Any]]) -> str:
    others = [
        f"{session.name} says:\n{quoted(final_answer(text))}"
        for position, (session, (text, _)) in enumerate(zip(debaters, replies, strict=True))
        if position != number
    ]
    return "\n\n".join([*others, "Say where they are wrong or you were, and answer again in the form asked for."])


def _judge_prompt(observation: Any, debaters: list[AgentSession], replies: list[tuple[str, Any]]) -> str:
    parts = [format_observation(observation), "Others have debated it. In the end they said:"]
    for session, (text, _) in zip(debaters, replies, strict=True):
        parts.append(f"{session.name}:\n{quoted(final_answer(text))}")
    return "\n\n".join([*parts, "They may all be wrong. Give your own answer in the form asked for."])
