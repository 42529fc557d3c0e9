"""Workflows that choose among several answers to one task: with a judge of all answers, or a verifier per answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rllm_gym.argument_checks import check_int
from rllm_gym.core import Episode, InvalidAction, StopReason
from rllm_gym.engine.agent_session import check_finite
from rllm_gym.engine.token_budget import Truncated
from rllm_gym.engine.workflow import WorkflowTask
from rllm_gym.engine.workflow_context import WorkflowContext
from rllm_gym.engine.workflows.base import Agents, EnvAttempt, RoleWorkflow, act_until_done
from rllm_gym.parsing.boxed import last_boxed, strip_thinking
from rllm_gym.parsing.choices import parse_choice
from rllm_gym.parsing.quoting import quoted

_JUDGE = (
    "You are given a problem and several answers to it, each line of which begins with '>'. At most some of them are "
    "right. Check them, decide which one is right, and put its number in \\boxed{}."
)
_VERIFIER = (
    "You are given a problem and an answer to it, each line of which begins with '>'. Check the answer, decide whether "
    "it is right, and put yes or no in \\boxed{}."
)


class _CandidateWorkflow(RoleWorkflow):
    """Base class: several solvers answer the same task concurrently, each in its own environment."""

    async def _solve(self, context: WorkflowContext, solvers: int) -> tuple[Any, list[EnvAttempt | None]]:
        """Return the first observation, and the result of each solver; ``None`` for one that a limit cut off.

        Raises:
            Truncated: A limit cut all of them off.
        """
        envs = [await context.env() for _ in range(solvers)]
        cuts: list[Truncated] = []

        async def solve(number: int) -> tuple[Any, EnvAttempt | None]:
            env = envs[number]
            observation, info = await env.reset()
            session = self.env_agent(context, f"solver_{number}", "solver", env)
            try:
                return observation, await act_until_done(session, env, observation, info)
            except Truncated as cut:
                cuts.append(cut)
                return observation, None

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(solve(number)) for number in range(solvers)]
        solved = [task.result() for task in tasks]
        answers = [answer for _, answer in solved]
        context.metrics["solver_success"] = sum(bool(a and a.success) for a in answers) / solvers
        context.metrics["any_success"] = float(any(a and a.success for a in answers))
        if not any(answers):
            raise cuts[0]
        return solved[0][0], answers


class SolverJudge(_CandidateWorkflow):
    """Solvers answer independently; a judge sees the task and all answers and chooses one.

    The environment rewards each solver for its own answer. The judge gets reward 1 for choosing an answer that solves
    the task, else 0. Reward and success of the episode are those of the chosen answer; if the judge chooses none, the
    episode fails. Metrics: ``solver_success`` (fraction of the solvers), ``any_success``, ``judge_success``,
    ``judge_valid``.

    Roles: ``solver`` (``solver_0`` …) and ``judge`` (``judge_0``).

    Args:
        solvers: Number of solvers, at least 1.
        agents: See :class:`RoleWorkflow`.
    """

    roles: ClassVar[tuple[str, ...]] = ("solver", "judge")

    def __init__(self, solvers: int = 2, *, agents: Agents | None = None) -> None:
        self.solvers = check_int("solvers", solvers)
        super().__init__(agents)

    async def run(self, task: WorkflowTask, context: WorkflowContext) -> Episode:
        observation, answers = await self._solve(context, self.solvers)
        judge = self.chat_agent(context, "judge_0", "judge", _JUDGE)
        reply = await judge.generate(_judge_prompt(observation, answers))
        number = _parse_choice(reply.text, [str(n + 1) for n in range(self.solvers)])
        chosen = None if number is None else answers[int(number) - 1]
        judge.add_reward(float(chosen is not None and chosen.success))
        context.metrics["judge_valid"] = float(number is not None)
        context.metrics["judge_success"] = float(chosen is not None and chosen.success)
        return _finish(context, chosen)


class BestOfN(_CandidateWorkflow):
    """The same solver answers ``n`` times; a verifier scores each answer separately, and the first answer with the
    highest score is chosen.

    The environment rewards each solver for its own answer. A verifier that is an agent gets reward 1 for a correct
    verdict, else 0. Reward and success of the episode are those of the chosen answer. Metrics: ``solver_success``,
    ``any_success``, ``verifier_accuracy`` (agents only), ``best_success``.

    Roles: ``solver`` (``solver_0`` …) and ``verifier`` (``verifier_0`` …, one per answer).

    Args:
        n: Number of answers, at least 1.
        verifier: A function of the first observation and the text of the answer that returns a score, higher is
            better; it runs in a worker. ``None``: an agent that answers yes or no.
        agents: See :class:`RoleWorkflow`.
    """

    roles: ClassVar[tuple[str, ...]] = ("solver", "verifier")

    def __init__(
        self, n: int = 4, *, verifier: Callable[[Any, str], float] | None = None, agents: Agents | None = None
    ) -> None:
        self.n = check_int("n", n)
        self.verifier = verifier
        super().__init__(agents)
        if verifier is not None and "verifier" in self.agents:
            raise ValueError(
                "verifier= is a function, so agents['verifier'] would have no effect; pass only one of them"
            )

    async def run(self, task: WorkflowTask, context: WorkflowContext) -> Episode:
        observation, answers = await self._solve(context, self.n)
        async with asyncio.TaskGroup() as group:
            verdicts = {
                number: group.create_task(self._verify(context, number, observation, answer))
                for number, answer in enumerate(answers)
                if answer is not None
            }
        best = max(verdicts, key=lambda number: (verdicts[number].result(), -number))
        chosen = answers[best]
        if self.verifier is None:
            right = [
                float((verdict.result() > 0) == bool(answer and answer.success))
                for verdict, answer in ((verdicts[number], answers[number]) for number in verdicts)
            ]
            context.metrics["verifier_accuracy"] = sum(right) / len(right)
        context.metrics["best_success"] = float(chosen is not None and chosen.success)
        return _finish(context, chosen)

    async def _verify(self, context: WorkflowContext, number: int, observation: Any, answer: EnvAttempt) -> float:
        if self.verifier is not None:
            return check_finite("the verdict", await context.call(self.verifier, observation, answer.text))
        session = self.chat_agent(context, f"verifier_{number}", "verifier", _VERIFIER)
        reply = await session.generate(
            f"{format_observation(observation)}\n\nThe answer:\n{quoted(final_answer(answer.text))}"
        )
        verdict = _parse_choice(reply.text, ["yes", "no"])
        right = verdict is not None and (verdict == "yes") == answer.success
        session.add_reward(float(right))
        # A missing verdict counts as a no.
        return float(verdict == "yes")


def _finish(context: WorkflowContext, chosen: EnvAttempt | None) -> Episode:
    if chosen is None:
        return context.finish(reward=0.0, success=False, stop_reason=StopReason.FAILURE)
    return context.finish(
        reward=chosen.reward, success=chosen.success, stop_reason=chosen.stop_reason, info=chosen.info
    )


def _judge_prompt(observation: Any, answers: Sequence[EnvAttempt | None]) -> str:
    parts = [format_observation(observation)]
    for number, answer in enumerate(answers, 1):
        parts.append(f"Answer {number}:\n{quoted(final_answer(answer.text) if answer else '(none)')}")
    return "\n\n".join(parts)


def format_observation(observation: Any) -> str:
    return observation if isinstance(observation, str) else str(observation)


def final_answer(text: str) -> str:
    """Return the part of a reply that other agents see: without its reasoning, or ``"(none)"`` if nothing is left."""
    return (strip_thinking(text) or "").strip() or "(none)"


def _parse_choice(text: str, choices: list[str]) -> str | None:
    try:
        return parse_choice(last_boxed(text) or text, choices, "a choice")
    except InvalidAction:
        return None
