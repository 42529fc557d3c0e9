"""A debate workflow: two or more debaters argue for their answers in rounds, then a judge answers."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from rllm_gym.core import Episode
from rllm_gym.engine.handles import EnvironmentHandle
from rllm_gym.engine.play import Play
from rllm_gym.engine.speaker import Speaker
from rllm_gym.engine.workflow import TaskOfSpec
from rllm_gym.engine.workflows.acting import Agents, CastWorkflow, act, whole
from rllm_gym.engine.workflows.candidates import answer_of, shown
from rllm_gym.multiagent.quoting import quoted


class Debate(CastWorkflow):
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
        agents: See :class:`CastWorkflow`.
    """

    roles: ClassVar[tuple[str, ...]] = ("debater", "judge")

    def __init__(self, debaters: int = 2, rounds: int = 2, *, agents: Agents | None = None) -> None:
        self.debaters = whole("debaters", debaters, 2)
        self.rounds = whole("rounds", rounds)
        super().__init__(agents)

    async def run(self, task: TaskOfSpec, play: Play) -> Episode:
        stage = await play.env()
        worlds = [await play.env() for _ in range(self.debaters)]
        observation, info = await stage.reset()
        debaters = [self.actor(play, f"debater_{n}", "debater", stage) for n in range(self.debaters)]
        said = await self._argue(debaters, observation, info)
        judge = self.actor(play, "judge_0", "judge", stage)
        judged = await act(judge, stage, _to_judge(observation, debaters, said), info)
        play.metrics["judge_success"] = float(judged.success)
        async with asyncio.TaskGroup() as group:
            graded = [
                group.create_task(_grade(speaker, world, action, judged.reward))
                for speaker, world, (_, action) in zip(debaters, worlds, said, strict=True)
            ]
        play.metrics["debater_success"] = sum(task.result() for task in graded) / self.debaters
        return play.finish(reward=judged.reward, success=judged.success, stop_reason=judged.stop_reason)

    async def _argue(self, debaters: list[Speaker], observation: Any, info: dict[str, Any]) -> list[tuple[str, Any]]:
        """Return the last reply of each debater, as text and as action."""
        said: list[tuple[str, Any]] = []
        for turn in range(self.rounds):
            async with asyncio.TaskGroup() as group:
                replies = [
                    group.create_task(
                        speaker.say(observation if turn == 0 else _to_debater(number, debaters, said), info)
                    )
                    for number, speaker in enumerate(debaters)
                ]
            said = [(reply.result().text, reply.result().action) for reply in replies]
        return said


async def _grade(speaker: Speaker, world: EnvironmentHandle, action: Any, shared: float) -> bool:
    await world.reset()
    _, reward, _, _, info = await world.step(action)
    if not world.over:
        speaker.reward(shared)
        return shared > 0
    speaker.reward(reward)
    speaker.info(info)
    return world.success


def _to_debater(number: int, debaters: list[Speaker], said: list[tuple[str, Any]]) -> str:
    others = [
        f"{speaker.name} says:\n{quoted(answer_of(text))}"
        for place, (speaker, (text, _)) in enumerate(zip(debaters, said, strict=True))
        if place != number
    ]
    return "\n\n".join([*others, "Say where they are wrong or you were, and answer again in the form asked for."])


def _to_judge(observation: Any, debaters: list[Speaker], said: list[tuple[str, Any]]) -> str:
    parts = [shown(observation), "Others have debated it. In the end they said:"]
    for speaker, (text, _) in zip(debaters, said, strict=True):
        parts.append(f"{speaker.name}:\n{quoted(answer_of(text))}")
    return "\n\n".join([*parts, "They may all be wrong. Give your own answer in the form asked for."])
