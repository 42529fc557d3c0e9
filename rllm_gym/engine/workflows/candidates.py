"""Workflows that choose among several answers to one task: with a judge of all answers, or a verifier per answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rllm_gym.core import Episode, InvalidAction, StopReason
from rllm_gym.engine.play import Play
from rllm_gym.engine.speaker import Truncated, finite
from rllm_gym.engine.workflow import TaskOfSpec
from rllm_gym.engine.workflows.acting import Agents, Attempted, CastWorkflow, act, whole
from rllm_gym.multiagent.quoting import quoted
from rllm_gym.parsing.boxed import last_boxed, strip_thinking
from rllm_gym.parsing.choices import parse_choice

_JUDGE = (
    "You are given a problem and several answers to it, each line of which begins with '>'. At most some of them are "
    "right. Check them, decide which one is right, and put its number in \\boxed{}."
)
_VERIFIER = (
    "You are given a problem and an answer to it, each line of which begins with '>'. Check the answer, decide whether "
    "it is right, and put yes or no in \\boxed{}."
)


class _Candidates(CastWorkflow):
    """Base class: several solvers answer the same task concurrently, each in its own environment."""

    async def _solve(self, play: Play, solvers: int) -> tuple[Any, list[Attempted | None]]:
        """Return the first observation, and the result of each solver; ``None`` for one that a limit cut off.

        Raises:
            Truncated: A limit cut all of them off.
        """
        worlds = [await play.env() for _ in range(solvers)]
        cuts: list[Truncated] = []

        async def solve(number: int) -> tuple[Any, Attempted | None]:
            world = worlds[number]
            observation, info = await world.reset()
            speaker = self.actor(play, f"solver_{number}", "solver", world)
            try:
                return observation, await act(speaker, world, observation, info)
            except Truncated as cut:
                cuts.append(cut)
                return observation, None

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(solve(number)) for number in range(solvers)]
        solved = [task.result() for task in tasks]
        answers = [answer for _, answer in solved]
        play.metrics["solver_success"] = sum(bool(a and a.success) for a in answers) / solvers
        play.metrics["any_success"] = float(any(a and a.success for a in answers))
        if not any(answers):
            raise cuts[0]
        return solved[0][0], answers


class SolverJudge(_Candidates):
    """Solvers answer independently; a judge sees the task and all answers and chooses one.

    The environment rewards each solver for its own answer. The judge gets reward 1 for choosing an answer that solves
    the task, else 0. Reward and success of the episode are those of the chosen answer; if the judge chooses none, the
    episode fails. Metrics: ``solver_success`` (fraction of the solvers), ``any_success``, ``judge_success``,
    ``judge_valid``.

    Roles: ``solver`` (``solver_0`` …) and ``judge`` (``judge_0``).

    Args:
        solvers: Number of solvers, at least 1.
        agents: See :class:`CastWorkflow`.
    """

    roles: ClassVar[tuple[str, ...]] = ("solver", "judge")

    def __init__(self, solvers: int = 2, *, agents: Agents | None = None) -> None:
        self.solvers = whole("solvers", solvers)
        super().__init__(agents)

    async def run(self, task: TaskOfSpec, play: Play) -> Episode:
        observation, answers = await self._solve(play, self.solvers)
        judge = self.talker(play, "judge_0", "judge", _JUDGE)
        reply = await judge.say(_to_judge(observation, answers))
        number = _chosen(reply.text, [str(n + 1) for n in range(self.solvers)])
        chosen = None if number is None else answers[int(number) - 1]
        judge.reward(float(chosen is not None and chosen.success))
        play.metrics["judge_valid"] = float(number is not None)
        play.metrics["judge_success"] = float(chosen is not None and chosen.success)
        return _finish(play, chosen)


class BestOfN(_Candidates):
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
        agents: See :class:`CastWorkflow`.
    """

    roles: ClassVar[tuple[str, ...]] = ("solver", "verifier")

    def __init__(
        self, n: int = 4, *, verifier: Callable[[Any, str], float] | None = None, agents: Agents | None = None
    ) -> None:
        self.n = whole("n", n)
        self.verifier = verifier
        super().__init__(agents)
        if verifier is not None and "verifier" in self.agents:
            raise ValueError("a verifier that is a function and an agent for it: give one of them")

    async def run(self, task: TaskOfSpec, play: Play) -> Episode:
        observation, answers = await self._solve(play, self.n)
        async with asyncio.TaskGroup() as group:
            verdicts = {
                number: group.create_task(self._verify(play, number, observation, answer))
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
            play.metrics["verifier_accuracy"] = sum(right) / len(right)
        play.metrics["best_success"] = float(chosen is not None and chosen.success)
        return _finish(play, chosen)

    async def _verify(self, play: Play, number: int, observation: Any, answer: Attempted) -> float:
        if self.verifier is not None:
            return finite("the verdict", await play.call(self.verifier, observation, answer.text))
        speaker = self.talker(play, f"verifier_{number}", "verifier", _VERIFIER)
        reply = await speaker.say(f"{shown(observation)}\n\nThe answer:\n{quoted(answer_of(answer.text))}")
        verdict = _chosen(reply.text, ["yes", "no"])
        right = verdict is not None and (verdict == "yes") == answer.success
        speaker.reward(float(right))
        # A missing verdict counts as a no.
        return float(verdict == "yes")


def _finish(play: Play, chosen: Attempted | None) -> Episode:
    if chosen is None:
        return play.finish(reward=0.0, success=False, stop_reason=StopReason.FAILURE)
    return play.finish(reward=chosen.reward, success=chosen.success, stop_reason=chosen.stop_reason, info=chosen.info)


def _to_judge(observation: Any, answers: Sequence[Attempted | None]) -> str:
    parts = [shown(observation)]
    for number, answer in enumerate(answers, 1):
        parts.append(f"Answer {number}:\n{quoted(answer_of(answer.text) if answer else '(none)')}")
    return "\n\n".join(parts)


def shown(observation: Any) -> str:
    return observation if isinstance(observation, str) else str(observation)


def answer_of(text: str) -> str:
    """Return the part of a reply that other agents see: without its reasoning, or ``"(none)"`` if nothing is left."""
    return (strip_thinking(text) or "").strip() or "(none)"


def _chosen(text: str, choices: list[str]) -> str | None:
    try:
        return parse_choice(last_boxed(text) or text, choices, "a choice")
    except InvalidAction:
        return None
