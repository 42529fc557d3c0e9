r"""Pairs: a family of problems where an answer is checked by one sum, and found by looking at every pair.

``618395 17`` asks which two of the six digits add up to 17; the answer is ``\boxed{89}``, in ascending order, and there
is one such pair alone, of fifteen. The problems go through ``rllm/Math-v0``, and the built-in ``BestOfN`` plays them:
solvers answer independently, and a judge says of each answer alone whether it is right.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rllm_gym.agents import ChatAgent
from rllm_gym.engine.workflows import BestOfN

SOLVERS = 4
_DIGITS, _CHOSEN = 6, 2
_RULE = "\n\nGive the final answer in \\boxed{}."


class TinyTeam(BestOfN):
    """Solvers and judges (``verifier``) without system prompts, which a tiny model would only have to read."""

    def __init__(self) -> None:
        super().__init__(SOLVERS, agents=dict.fromkeys(self.roles, partial(ChatAgent, "")))


def problems(number: int, seed: int) -> list[dict[str, str]]:
    """Rows for ``rllm/Math-v0``, no two the same."""
    rng, rows = random.Random(seed), dict[str, dict[str, str]]()
    while len(rows) < number:
        digits = rng.sample(range(1, 10), _DIGITS)
        total = sum(rng.sample(digits, _CHOSEN))
        found = [each for each in itertools.combinations(sorted(digits), _CHOSEN) if sum(each) == total]
        if len(found) == 1:
            question = f"{_joined(digits)} {total}"
            rows[question] = {"question": question, "answer": _joined(found[0])}
    return list(rows.values())


def write_demonstrations(path: Path, rows: Sequence[dict[str, str]], *, solved: float, seed: int) -> None:
    """Answers that are right with some probability, else any; and for each of them two checks, which are right: they
    cost nobody anything."""
    rng = random.Random(seed)
    with path.open("w") as file:
        for row in rows:
            asked = row["question"] + _RULE
            turns = [(asked, _boxed(_answer(row, solved, rng)))]
            for shown in (_answer(row, 0.5, rng), _answer(row, 0.5, rng)):
                verdict = "yes" if shown == row["answer"] else "no"
                turns.append((f"{asked}\n\nThe answer:\n> {_boxed(shown)}", verdict))
            for question, reply in turns:
                chat = [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
                file.write(json.dumps({"messages": chat}) + "\n")


def _answer(row: dict[str, str], right: float, rng: random.Random) -> str:
    digits = [int(digit) for digit in row["question"].split()[0]]
    return row["answer"] if rng.random() < right else _joined(sorted(rng.sample(digits, _CHOSEN)))


def _joined(digits: Sequence[int]) -> str:
    return "".join(map(str, digits))


def _boxed(answer: str) -> str:
    return f"\\boxed{{{answer}}}"
