"""A small workflow for training runs of seconds: two solvers and a judge, each rewarded for words of its half of the
alphabet. It imports no torch: worker processes import it.
"""

from __future__ import annotations

import gymnasium
from echo_env import EchoEnv

from rllm_gym.core import Episode
from rllm_gym.engine import Workflow, WorkflowContext

HALVES = {"solver": ("a", "m"), "judge": ("n", "z")}


class EchoTeam(Workflow):
    """Two replies of each solver, and one of the judge after it has received them."""

    roles = ("solver", "judge")

    def __init__(self, solvers: int = 2) -> None:
        self.solvers = solvers

    async def run(self, task: object, context: WorkflowContext) -> Episode:
        received = []
        for number in range(self.solvers):
            session = context.agent(f"solver_{number}")
            for text in ("say something", "again"):
                received.append((await session.generate(text)).text)
                session.add_reward(reward_of("solver", received[-1]))
        judge = context.agent("judge_0", system="Judge.")
        judge.add_reward(reward_of("judge", (await judge.generate(" ".join(received)[:40] or "nothing")).text))
        return context.finish()


class Duel(Workflow):
    """A player and an opponent reply with one word each; the player wins if its word is not the later one."""

    roles = ("player", "opponent")

    async def run(self, task: object, context: WorkflowContext) -> Episode:
        words = {}
        for role in self.roles:
            session = context.agent(f"{role}_0")
            words[role] = (await session.generate("say something")).text
            session.add_reward(reward_of("solver", words[role]))
        return context.finish(reward=reward_of("solver", words["player"]))


def reward_of(role: str, text: str) -> float:
    """Return 1 for a word of the role's half of the alphabet."""
    first, last = HALVES[role]
    word = text.strip().lower()
    return float(bool(word) and first <= word[0] <= last)


assert "test/Echo-v0" in gymnasium.registry, EchoEnv  # whose tasks are played
