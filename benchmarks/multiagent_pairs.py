r"""Pairs: a family of problems where an answer is checked by one sum, and found by looking at every pair.

``618394 13`` asks which two of the six digits add up to 13; the answer is ``\boxed{49}``, the smaller one first, and
there is one such pair alone. The problems go through ``rllm/Math-v0``, and the built-in ``SolverJudge`` plays them.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rllm_gym.agents import ChatAgent
from rllm_gym.engine.workflows import SolverJudge

SOLVERS = 3
_DIGITS = 6
_RULE = "\n\nGive the final answer in \\boxed{}."


class TinySolverJudge(SolverJudge):
    """Three solvers and a judge without system prompts, which a tiny model would only have to read."""

    def __init__(self, solvers: int = SOLVERS) -> None:
        super().__init__(solvers, agents=dict.fromkeys(self.roles, partial(ChatAgent, "")))


def problems(number: int, seed: int) -> list[dict[str, str]]:
    """Rows for ``rllm/Math-v0``, no two the same."""
    rng, rows = random.Random(seed), {}
    while len(rows) < number:
        digits = rng.sample(range(1, 10), _DIGITS)
        total = sum(rng.sample(digits, 2))
        pairs = _pairs(digits, total)
        if len(pairs) == 1:
            question = f"{''.join(map(str, digits))} {total}"
            rows[question] = {"question": question, "answer": pairs[0]}
    return list(rows.values())


def write_demonstrations(path: Path, rows: Sequence[dict[str, str]], *, right: float, seed: int) -> None:
    """Answers and verdicts in the right form, right with some probability, else any."""
    rng = random.Random(seed)
    with path.open("w") as file:
        for row in rows:
            asked = row["question"] + _RULE
            answers = [_answer(row, right, rng) for _ in range(SOLVERS)]
            shown = [f"Answer {number}:\n> {_boxed(answer)}" for number, answer in enumerate(answers, 1)]
            good = [number for number, answer in enumerate(answers, 1) if answer == row["answer"]]
            verdict = rng.choice(good) if good and rng.random() < right else rng.randint(1, SOLVERS)
            for question, reply in (
                (asked, _boxed(_answer(row, right, rng))),
                ("\n\n".join([asked, *shown]), _boxed(str(verdict))),
            ):
                chat = [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
                file.write(json.dumps({"messages": chat}) + "\n")


def _answer(row: dict[str, str], right: float, rng: random.Random) -> str:
    if rng.random() < right:
        return row["answer"]
    digits = [int(digit) for digit in row["question"].split()[0]]
    return "".join(map(str, sorted(rng.sample(digits, 2))))


def _pairs(digits: Sequence[int], total: int) -> list[str]:
    return [f"{min(a, b)}{max(a, b)}" for a, b in itertools.combinations(digits, 2) if a + b == total]


def _boxed(answer: str) -> str:
    return f"\\boxed{{{answer}}}"
