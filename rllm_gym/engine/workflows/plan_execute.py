"""A workflow with a planner, which writes a plan, and an executor, which carries it out."""

from __future__ import annotations

from typing import ClassVar

from rllm_gym.core import Episode
from rllm_gym.engine.play import Play
from rllm_gym.engine.workflow import TaskOfSpec
from rllm_gym.engine.workflows.acting import CastWorkflow, act
from rllm_gym.engine.workflows.candidates import answer_of, shown
from rllm_gym.multiagent.quoting import quoted

_PLANNER = (
    "You are given a task that somebody else is going to carry out. Do not carry it out. Write a short plan for them: "
    "what to do, in which order, and what to look out for."
)


class PlanExecute(CastWorkflow):
    """A planner sees the task and writes a plan; an executor sees the task and the plan and acts to the end.

    Both are rewarded by the environment: the executor per step, the planner with the sum of these rewards.

    Roles: ``planner`` (``planner_0``) and ``executor`` (``executor_0``).
    """

    roles: ClassVar[tuple[str, ...]] = ("planner", "executor")

    async def run(self, task: TaskOfSpec, play: Play) -> Episode:
        world = await play.env()
        observation, info = await world.reset()
        planner = self.talker(play, "planner_0", "planner", _PLANNER)
        plan = await planner.say(shown(observation))
        executor = self.actor(play, "executor_0", "executor", world)
        begin = f"{shown(observation)}\n\nA plan for it:\n{quoted(answer_of(plan.text))}"
        acted = await act(executor, world, begin, info)
        planner.reward(acted.reward)
        return play.finish(reward=acted.reward, success=acted.success, stop_reason=acted.stop_reason)
