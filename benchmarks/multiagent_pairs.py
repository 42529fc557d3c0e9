r"""Pairs: problems whose answer is checked with one addition, but found only by trying every pair.

``618395 17`` asks which two of the six digits add up to 17; the answer is ``\boxed{89}``, in ascending order, and it is
the only such pair of fifteen. The problems use ``rllm/Math-v0`` and the built-in ``BestOfN``: solvers answer
independently, and a judge decides for each answer separately whether it is right.
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
    """Solvers and judges (``verifier``) without system prompts, which would only be longer input for a tiny model."""

    def __init__(self) -> None:
        super().__init__(SOLVERS, agents=dict.fromkeys(self.roles, partial(ChatAgent, "")))


def problems(number: int, seed: int) -> list[dict[str, str]]:
    """Return rows for ``rllm/Math-v0``, all different."""
    rng, rows = random.Random(seed), dict[str, dict[str, str]]()
    while len(rows) < number:
        digits = rng.sample(range(1, 10), _DIGITS)
        total = sum(rng.sample(digits, _CHOSEN))
        found = [item for item in itertools.combinations(sorted(digits), _CHOSEN) if sum(item) == total]
        if len(found) == 1:
            question = f"{_joined(digits)} {total}"
            rows[question] = {"question": question, "answer": _joined(found[0])}
    return list(rows.values())


def write_demonstrations(path: Path, rows: Sequence[dict[str, str]], *, solved: float, seed: int) -> None:
    """Write answers that are right with probability ``solved``, else random, and two correct checks for each answer,
    which are cheap to produce."""
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
