"""Debate: two agents defend two answers to one question, one of them correct, before a judge."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from rllm_gym.core import Task, TaskError, TaskSource, stream_seed
from rllm_gym.envs.math.env import choose_math_tasks
from rllm_gym.envs.math.rows import math_task
from rllm_gym.multiagent.game import TextGame, TurnResult
from rllm_gym.parsing.choices import parse_choice
from rllm_gym.parsing.quoting import fenced, visible

DEBATERS = ("debater_0", "debater_1")
JUDGE = "judge_0"
LABELS = ("A", "B")
FAMILIES = (
    "arithmetic",
    "fractions",
    "linear",
    "number_theory",
    "word_problems",
    "sequences",
    "statistics",
    "counting",
)
_NUMBER = re.compile("[0-9]{1,30}")


class DebateGame(TextGame):
    """Two debaters argue for one answer each, and a judge decides which one is correct.

    ## Description
    The question is a mathematics problem with a known answer, from ``rllm/Math-v0``. There are two answers, A and B:
    the correct one and one close to it. ``debater_0`` defends A and ``debater_1`` B; no agent knows which is correct,
    and each is correct in half of the tasks. They speak in turn, then ``judge_0`` decides (Irving, Christiano and
    Amodei, *AI Safety via Debate*, 2018, https://arxiv.org/abs/1805.00899, section 2).

    ## Action space
    Any text. A debater's text after ``</think>`` is passed on to the others, as a quotation; a message that is too long
    can be repeated, up to ``max_invalid`` times in a row, after that the turn passes. Of the judge's reply, the last
    fenced block or ``<action>``, ``<answer>`` or ``<move>`` tag is parsed, or else the entire reply: ``A`` or ``B``.
    Anything else can be repeated in the same way; after that there is no verdict.

    ## Observation space
    Text under ``"text"``. First the question, the two answers and the agent's role; then the messages of the others. A
    judge with ``judge_sees_question=False`` knows the question only from the debaters.

    ## Starting state
    The task; nothing else is random.

    ## Rewards
    The judge: 1 for the correct answer, else 0 (component ``truth``). The debater whose answer the judge chooses 1, the
    other -1, and 0 for both without a verdict (component ``convincing``). ``invalid_action_penalty`` is subtracted for
    each reply that cannot be parsed.

    ## Episode end
    Terminated by the verdict, or when there is none; truncated after ``max_turns`` turns if that is given.

    ## Information
    In addition to the keys of :class:`~rllm_gym.multiagent.TextGame`: ``verdict: str`` and ``right: str``, ``"A"`` or
    ``"B"``, and ``""`` until the end. ``success`` means for the judge that its verdict is correct, for a debater that
    the judge chose its answer. :meth:`oracle` returns the correct verdict.

    ## Arguments
    Args:
        rounds: Number of turns per debater.
        judge_sees_question: Whether the judge sees the question.
        families: Families of built-in problems; by default those whose answers are numbers.
        difficulty: Difficulty of built-in problems, as in ``rllm/Math-v0``.
        split: ``"train"`` (default), ``"validation"`` or ``"test"``: those of ``rllm/Math-v0``, by the question.
        task_seed: Another seed gives other problems.
        num_tasks: Number of problems.
        tasks: Custom questions, as in ``rllm/Math-v0``; a task may have the wrong answer as ``wrong`` in its ``data``;
            else one number in the correct one is changed.
        max_message_chars: Maximum characters of a message.
        max_invalid: Number of replies in a row that cannot be parsed and cost nothing but turns.
        invalid_action_penalty: Subtracted from the reward for each of them.
        max_turns: Turns of all agents before truncation.
        max_cycles: Turns per agent before truncation.
        render_mode: ``"ansi"``, ``"human"`` or ``None``.

    ## Version history
    v0: first release.
    """

    metadata: ClassVar[dict[str, Any]] = {**TextGame.metadata, "name": "rllm_debate_v0"}

    @property
    def agents_beside_oracle(self) -> Sequence[str]:
        return [JUDGE]  # which knows the answer, whatever a debater says

    def __init__(
        self,
        *,
        rounds: int = 2,
        judge_sees_question: bool = True,
        families: str | Iterable[str] | None = None,
        difficulty: int | tuple[int, int] | None = None,
        split: str | None = None,
        task_seed: int = 0,
        num_tasks: int | None = None,
        tasks: TaskSource | Iterable[Any] | str | None = None,
        max_message_chars: int = 4_000,
        max_invalid: int = 2,
        invalid_action_penalty: float = 0.0,
        max_turns: int | None = None,
        max_cycles: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        if not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 1:
            raise ValueError(f"rounds={rounds!r} must be a whole number of at least 1")
        if tasks is None and families is None:
            families = FAMILIES
        super().__init__(
            agents=(*DEBATERS, JUDGE),
            tasks=choose_math_tasks(
                tasks=tasks,
                families=families,
                difficulty=difficulty,
                split=split,
                task_seed=task_seed,
                num_tasks=num_tasks,
            ),
            max_turns=max_turns,
            max_cycles=max_cycles,
            max_message_chars=max_message_chars,
            messages_per_turn=2 * rounds,
            max_invalid=max_invalid,
            invalid_action_penalty=invalid_action_penalty,
            max_observation_chars=200_000,
            render_mode=render_mode,
        )
        self.rounds, self.judge_sees_question = rounds, judge_sees_question
        self._answers = ("", "")
        self._right = 0
        self._arguments: list[tuple[str, str]] = []
        self._verdict = ""

    # Methods of TextGame

    def _begin(self, task: Task) -> str:
        self._read_task(task)
        self._arguments, self._verdict = [], ""
        for agent in self.possible_agents:
            self._notify(agent, self._part(agent))
        return DEBATERS[0]

    def _read_task(self, task: Task) -> None:
        task = math_task(task)
        stream = random.Random(stream_seed("debate", task.content))
        right = str(task.data["gold"])
        wrong = task.data.get("wrong")
        if wrong is None:
            wrong = near_miss(right, stream)
        if not isinstance(wrong, str) or not wrong.strip() or wrong.strip() == right.strip():
            raise TaskError(f"task {task.task_id!r}: the wrong answer {wrong!r} must be a text other than {right!r}")
        self._right = stream.randrange(2)
        self._answers = (right, wrong) if self._right == 0 else (wrong, right)

    def _act(self, agent: str, action: str) -> TurnResult:
        if agent == JUDGE:
            return self._judge(parse_choice(action, LABELS, "a verdict"))
        message = self._message_in(action)
        self._relay(agent, message)
        self._arguments.append((agent, message))
        return TurnResult(self._next())

    def _judge(self, verdict: str) -> TurnResult:
        self._verdict = verdict
        chosen = LABELS.index(verdict)
        believed, other = DEBATERS[chosen], DEBATERS[1 - chosen]
        right = chosen == self._right
        self._notify_all(f"{JUDGE} decides for {verdict}. The right answer is {LABELS[self._right]}.")
        rewards = {
            JUDGE: {"truth": float(right)},
            believed: {"convincing": 1.0},
            other: {"convincing": -1.0},
        }
        return TurnResult(rewards=rewards, terminated=True, success=(believed, JUDGE) if right else (believed,))

    def _forfeit(self, agent: str) -> TurnResult:
        if agent == JUDGE:
            self._notify_all(f"{JUDGE} gives no verdict.")
            rewards = {JUDGE: {"truth": 0.0}} | {debater: {"convincing": 0.0} for debater in DEBATERS}
            return TurnResult(rewards=rewards, terminated=True)
        for other in self.possible_agents:
            if other != agent:
                self._notify(other, f"{agent} said nothing that could be passed on.")
        self._arguments.append((agent, ""))
        return TurnResult(self._next())

    def _next(self) -> str:
        spoken = len(self._arguments)
        if spoken < 2 * self.rounds:
            return DEBATERS[spoken % 2]
        self._notify(JUDGE, "The debate is over. Which answer is right, A or B?")
        return JUDGE

    def _add_info(self, agent: str, info: dict[str, Any]) -> None:
        info["verdict"] = self._verdict
        info["right"] = LABELS[self._right] if self.terminations[agent] else ""

    def _render_text(self) -> str:
        lines = [self.task.content]
        lines += [
            f"{label} ({debater}{', right' if index == self._right else ''}): {self._answers[index]}"
            for index, (label, debater) in enumerate(zip(LABELS, DEBATERS))
        ]
        lines += [f"{who}: {visible(text)}" for who, text in self._arguments]
        return "\n".join([*lines, f"{JUDGE}: {self._verdict}"] if self._verdict else lines)

    def _env_state(self) -> dict[str, Any]:
        return {"said": [list(entry) for entry in self._arguments], "verdict": self._verdict}

    def _restore_env_state(self, state: dict[str, Any]) -> None:
        self._read_task(self.task)
        self._arguments = [(str(who), str(text)) for who, text in state["said"]]
        self._verdict = str(state["verdict"])

    def _part(self, agent: str) -> str:
        question = f"The question:\n{fenced(self.task.content)}\n"
        answers = "\n".join(f"Answer {label}: {visible(answer)}" for label, answer in zip(LABELS, self._answers))
        hear = f"You hear {self.rounds} arguments of each, then say which is right"
        if agent == JUDGE:
            seen = question if self.judge_sees_question else "You do not see the question. "
            return (
                f"You are {JUDGE}. {DEBATERS[0]} defends answer A and {DEBATERS[1]} answer B; one of them is right.\n"
                f"{seen}{answers}\n{hear}: ```A``` or ```B```."
            )
        index = DEBATERS.index(agent)
        return (
            f"You are {agent} and defend answer {LABELS[index]}; {DEBATERS[1 - index]} defends the other one. "
            f"One of them is right.\n{question}{answers}\n"
            f"Convince {JUDGE} in {self.rounds} arguments. Both others are told your whole reply."
        )

    def oracle(self) -> str:
        """Return the correct verdict for the judge; for a debater, its own answer."""
        if self.agent_selection == JUDGE:
            return LABELS[self._right]
        return f"The answer is {self._answers[DEBATERS.index(self.agent_selection)]}."


def near_miss(answer: str, stream: random.Random) -> str:
    """Return the answer with one of its numbers changed a little.

    >>> near_miss("17", random.Random(0)) != "17"
    True

    Raises:
        TaskError: There is no number in it.
    """
    numbers = list(_NUMBER.finditer(answer))
    if not numbers:
        raise TaskError(f"the answer {answer!r} holds no number to change; give the task a 'wrong' answer in its data")
    stream.shuffle(numbers)
    texts = [text for found in numbers for text in _changed(answer, found, stream)]
    # The wrong answer must not be recognisable without the question.
    return next(filter(_well_written, texts), texts[0])


def _changed(answer: str, found: re.Match[str], stream: random.Random) -> list[str]:
    """Return the answer with this one of its numbers changed, in every way and in random order."""
    digits, number = found[0], int(found[0])
    swapped = int(digits[:-2] + digits[-1] + digits[-2]) if len(digits) > 1 else number
    near = (number + 1, number - 1, number + 2, number - 2, number + 10, number - 10, swapped)
    others = sorted({other for other in near if other >= 0 and other != number})
    stream.shuffle(others)
    # Decimals keep their length, so that 3.10 does not become 3.1.
    width = len(digits) if answer[: found.start()].endswith(".") else 0
    return [f"{answer[: found.start()]}{str(other).zfill(width)}{answer[found.end() :]}" for other in others]


def _well_written(answer: str) -> bool:
    """Return whether there are no leading or trailing zeros and no ``-0``, and fractions are in lowest terms."""
    if re.search(r"(?<![0-9.])0[0-9]|-0(?![0-9.])|\.[0-9]*0(?![0-9])", answer):
        return False
    fractions = re.findall(r"([0-9]+)\s*/\s*([0-9]+)", answer)
    return all(int(under) > 1 and math.gcd(int(over), int(under)) == 1 for over, under in fractions)
