"""A workflow with a planner, which writes a plan, and an executor, which carries it out."""

from __future__ import annotations

from typing import ClassVar

from rllm_gym.core import Episode
from rllm_gym.engine.workflow import WorkflowTask
from rllm_gym.engine.workflow_context import WorkflowContext
from rllm_gym.engine.workflows.base import RoleWorkflow, act_until_done
from rllm_gym.engine.workflows.candidates import final_answer, format_observation
from rllm_gym.parsing.quoting import quoted

_PLANNER = (
    "You are given a task that somebody else is going to carry out. Do not carry it out. Write a short plan for them: "
    "what to do, in which order, and what to look out for."
)


class PlanExecute(RoleWorkflow):
    """A planner sees the task and writes a plan; an executor sees the task and the plan and acts to the end.

    Both are rewarded by the environment: the executor per step, the planner with the sum of these rewards.

    Roles: ``planner`` (``planner_0``) and ``executor`` (``executor_0``).
    """

    roles: ClassVar[tuple[str, ...]] = ("planner", "executor")

    async def run(self, task: WorkflowTask, context: WorkflowContext) -> Episode:
        env = await context.env()
        observation, info = await env.reset()
        planner = self.chat_agent(context, "planner_0", "planner", _PLANNER)
        plan = await planner.generate(format_observation(observation))
        executor = self.env_agent(context, "executor_0", "executor", env)
        begin = f"{format_observation(observation)}\n\nA plan for it:\n{quoted(final_answer(plan.text))}"
        acted = await act_until_done(executor, env, begin, info)
        planner.add_reward(acted.reward)
        return context.finish(reward=acted.reward, success=acted.success, stop_reason=acted.stop_reason)
