"""reasoning-gym's tasks as an environment: ``gym.make("rllm/ReasoningGym-v0", dataset="chain_sum")``.

Its generators and verifiers run in worker processes: some set the global random state or depend on the order of sets,
some take minutes on an adversarial answer, and some evaluate the answer as Python. Workers isolate these effects: the
hash seed is fixed, hanging calls are killed, and answers are parsed instead of evaluated.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import importlib.util
import json
import math
import os
import pickle
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rllm_gym.core import EnvironmentFault, InvalidAction, Outcome, Task, TaskError, TextEnv
from rllm_gym.core.per_process import PerProcess
from rllm_gym.data.procedural import ProceduralTaskset
from rllm_gym.parsing.boxed import strip_thinking
from rllm_gym.runtime import DeadlineExceeded, MemoryExceeded, WorkerDied, WorkerError, WorkerPool

MAX_ANSWER_CHARS = 20_000
"""Maximum characters of an answer that is verified; a longer one scores 0."""
MEMORY_MB = 1024
"""Private memory in MB of one worker above what it holds when it starts."""
QUESTION_TIMEOUT_S = 120.0
"""Deadline in seconds for generating one question; the slowest generators search for seconds."""
SCORE_SECONDS = 20.0
"""Deadline in seconds for verifying one answer, after which it is wrong."""
_START_SECONDS = 120.0
_INSTALL = "reasoning-gym is not installed: pip install 'rllm-gym[reasoning-gym]'"


class ReasoningGymEnv(TextEnv):
    """One question of one of reasoning-gym's generators, graded by its own verifier; a single turn.

    ## Description
    Answer a question of one kind: sums, puzzles, logic, games, geometry, about a hundred kinds.

    ## Action space
    Any text. The last ``<answer>…</answer>`` after ``</think>`` is the answer; a reply without one is invalid.

    ## Observation space
    The question, and how to mark the answer.

    ## Starting state
    The question of the task. Task *i* of a seed is generated from SHA-256 of split, seed and *i*, so that two seeds
    share no questions (reasoning-gym itself adds the index to the seed), and train, validation and test share none by
    the text of the question.

    ## Rewards
    The verifier's score, from 0 to 1; some verifiers give partial scores. ``success`` is the full score.

    ## Episode end
    Terminates with the reply.

    ## Information
    The keys of :class:`~rllm_gym.core.TextEnv`.

    ## Arguments
    Args:
        dataset: Name of the generator, such as ``"chain_sum"`` or ``"countdown"``.
        config: The generator's own settings, such as ``{"min_terms": 2, "max_terms": 4}``.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        seed: Seed of the sequence of questions.
        size: Number of tasks.
        render_mode: ``"ansi"`` or ``None``.

    Raises:
        ModuleNotFoundError: ``pip install 'rllm-gym[reasoning-gym]'``.
        ValueError: There is no such generator, or it rejects the settings.

    ## Version history
    v0: first release.
    """

    def __init__(
        self,
        dataset: str = "chain_sum",
        *,
        config: Mapping[str, Any] | None = None,
        split: str = "train",
        seed: int = 0,
        size: int = 1_000_000,
        render_mode: str | None = None,
    ) -> None:
        if importlib.util.find_spec("reasoning_gym") is None:
            raise ModuleNotFoundError(_INSTALL, name="reasoning_gym")
        settings = _settings(config)
        _in_worker(check_settings, dataset, settings, timeout=_START_SECONDS)
        tasks = ProceduralTaskset(
            _TaskGenerator(dataset, settings), name=f"reasoning_gym/{dataset}", split=split, seed=seed, size=size
        )
        super().__init__(tasks=tasks, max_turns=1, render_mode=render_mode)
        self._entry = b""

    def _begin(self, task: Task) -> str:
        self._entry = self._entry_of(task)
        return f"{task.content}\n\nGive the final answer between <answer> and </answer>."

    def _act(self, action: str) -> Outcome:
        answer = _last_answer(action)
        if answer is None:
            raise InvalidAction(
                "The reply has no answer between <answer> and </answer>; what stands inside <think> is none."
            )
        reward = self._score(answer)
        solved = reward >= 1.0
        return Outcome("Correct." if solved else "Not correct.", {"score": reward}, terminated=True, success=solved)

    def _env_state(self) -> dict[str, Any]:
        return {}  # the task determines the state

    def _restore_env_state(self, state: dict[str, Any]) -> None:
        self._entry = self._entry_of(self.task)

    def _entry_of(self, task: Task) -> bytes:
        """Regenerate the verifier's data from the parameters in the task.

        Raises:
            TaskError: The task has no such parameters, or they give another question here.
            EnvironmentFault: The generator failed.
        """
        data = task.data
        try:
            recipe = str(data["dataset"]), _settings(json.loads(data["config"])), int(data["seed"])
        except (KeyError, TypeError, ValueError) as error:
            raise TaskError(
                f"task {task.task_id!r} is not of rllm/ReasoningGym-v0: its data needs dataset, config and seed"
            ) from error
        question, entry = _make_question(*recipe)
        if question != task.content:
            raise TaskError(
                f"task {task.task_id!r} gives a different question here; it was created with another version of "
                "reasoning-gym"
            )
        return entry

    def _score(self, answer: str) -> float:
        if len(answer) > MAX_ANSWER_CHARS:
            return 0.0
        data = self.task.data
        recipe = str(data["dataset"]), str(data["config"])
        try:
            return float(_in_worker(score, *recipe, self._entry, answer, timeout=SCORE_SECONDS))
        except (DeadlineExceeded, MemoryExceeded, WorkerDied):
            # If the same worker succeeds with a plain answer, the reply is at fault; otherwise the environment is.
            try:
                _in_worker(score, *recipe, self._entry, "0", timeout=SCORE_SECONDS)
            except (DeadlineExceeded, WorkerError, WorkerDied) as error:
                raise EnvironmentFault(f"the verifier of {recipe[0]!r} failed: {error}", kind="verifier") from error
            return 0.0
        except WorkerError as error:
            raise EnvironmentFault(f"the verifier of {recipe[0]!r} failed: {error}", kind="verifier") from error


def _last_answer(reply: str) -> str | None:
    """Return the text between the last pair of tags, in time linear in the length of the reply.

    A regular expression would scan all that follows each of a hundred thousand opening tags, and block every thread.
    """
    text = strip_thinking(reply) or ""
    begin = text.rfind("<answer>", 0, max(0, text.rfind("</answer>")))
    return None if begin < 0 else text[begin + len("<answer>") : text.find("</answer>", begin)].strip()


@dataclass(frozen=True)
class _TaskGenerator:
    dataset: str
    config: str

    def __call__(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        seed = rng.getrandbits(31)  # the range that every generator accepts, including NumPy's legacy one
        question, _ = _make_question(self.dataset, self.config, seed)
        return question, {"dataset": self.dataset, "config": self.config, "seed": seed}


def _settings(config: Mapping[str, Any] | None) -> str:
    """Return the settings as canonical JSON."""
    for taken in ("seed", "size"):
        if taken in (config or {}):
            raise ValueError(f"config has {taken!r}, which rllm/ReasoningGym-v0 sets itself: use its own argument")
    try:
        return json.dumps(dict(config or {}), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"config={config!r:.200} must be JSON types ({error})") from error


def _make_question(dataset: str, config: str, seed: int) -> tuple[str, bytes]:
    try:
        question, entry = _in_worker(make_question, dataset, config, seed, timeout=QUESTION_TIMEOUT_S)
    except (DeadlineExceeded, WorkerDied, WorkerError) as error:
        raise EnvironmentFault(f"the generator {dataset!r} failed: {error}", kind="generator") from error
    return str(question), bytes(entry)


# Workers


@PerProcess
def _pool() -> WorkerPool:
    return WorkerPool(
        "process",
        max_workers=(os.cpu_count() or 1) + 1,
        memory_mb=MEMORY_MB,
        name="reasoning-gym",
        preload=("rllm_gym.integrations.reasoning_gym", "reasoning_gym", "sympy.physics.units"),
        hash_seed=0,  # some generators iterate over sets
    )


def _in_worker(function: Any, *arguments: Any, timeout: float) -> Any:
    return _pool().run(function, *arguments, timeout=timeout)


# Functions that run in workers


def check_settings(dataset: str, config: str) -> None:
    """Check a generator and its settings. Runs in a worker.

    Raises:
        ValueError: There is no such generator, or it rejects the settings.
    """
    factory = importlib.import_module("reasoning_gym.factory")
    if dataset not in factory.DATASETS:
        similar = difflib.get_close_matches(dataset, factory.DATASETS, n=3)
        raise ValueError(
            f"reasoning-gym has no dataset {dataset!r}; similar names: {', '.join(similar) or 'none'} "
            f"(of {len(factory.DATASETS)}: reasoning_gym.factory.DATASETS)"
        )
    try:
        _create_dataset(dataset, config, 0)
    except Exception as error:
        raise ValueError(f"{dataset!r} rejects config={config}: {type(error).__name__}: {error}") from None


def make_question(dataset: str, config: str, seed: int) -> tuple[str, bytes]:
    """Return the question, and the verifier's data as bytes that only a worker unpickles. Runs in a worker."""
    entry = _create_dataset(dataset, config, seed)[0]
    return str(entry["question"]), pickle.dumps(entry)


def score(dataset: str, config: str, entry: bytes, answer: str) -> float:
    """Return the verifier's score, 0 if it fails on the reply. Runs in a worker.

    Raises:
        ValueError: The verifier fails on any answer, or its score is not a number from 0 to 1.
    """
    _seal()
    known = pickle.loads(entry)  # noqa: S301 - our own make_question() created it; it never left the two processes
    verifier = _verifier(dataset, config)
    try:
        found = float(verifier.score_answer(answer, known))
    except MemoryError:
        raise
    except Exception:
        gold = known.get("answer")
        if isinstance(gold, str):
            verifier.score_answer(gold, known)
        return 0.0
    if not math.isfinite(found) or not 0.0 <= found <= 1.0:
        raise ValueError(f"the verifier of {dataset!r} returned {found!r}, which is not a score from 0 to 1")
    return found


def _create_dataset(dataset: str, config: str, seed: int) -> Any:
    # A new dataset for each seed: some generators draw from it when they are created.
    factory = importlib.import_module("reasoning_gym.factory")
    return factory.create_dataset(dataset, **json.loads(config), seed=seed, size=1)


@functools.lru_cache(maxsize=8)
def _verifier(dataset: str, config: str) -> Any:
    return _create_dataset(dataset, config, 0)


_PYTHON_READERS = (
    "algorithmic.binary_matrix",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "games.n_queens",
)
"""Modules whose verifiers call ``eval`` on the answer."""
_FORMULA_READERS = ("games.countdown", "games.puzzle24")
"""Modules whose verifiers call SymPy's ``parse_expr``, which evaluates Python, under a name of their own."""
_FORMULA = re.compile(r"[0-9A-Za-z+\-*/^()., \t\n]*")
_ATTRIBUTE = re.compile(r"[A-Za-z_)]\s*\.|\.\s*[A-Za-z_(]")
_FUNCTIONS = frozenset(
    {"exp", "log", "ln", "sqrt", "sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan"}
    | {"sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "Abs", "pi", "Integral"}
)


@functools.cache
def _seal() -> None:
    """Have answers parsed, not evaluated, in this process permanently."""
    sympy: Any = importlib.import_module("sympy")
    parsing: Any = importlib.import_module("sympy.parsing.sympy_parser")
    importlib.import_module("sympy.physics.units")  # it evaluates its own names when SymPy first needs it
    evaluate = parsing.parse_expr

    @functools.wraps(evaluate)
    def read_formula(text: Any, *arguments: Any, **keywords: Any) -> Any:
        names = re.findall(r"[A-Za-z_]\w*", text) if isinstance(text, str) else []
        plain = isinstance(text, str) and _FORMULA.fullmatch(text) and not _ATTRIBUTE.search(text)
        if not plain or any(len(name) > 1 and name not in _FUNCTIONS for name in names):
            raise SyntaxError("only numbers, one-letter names and elementary functions are read in an answer")
        return evaluate(text, *arguments, **keywords)

    sympy.parse_expr = parsing.parse_expr = read_formula
    readers: list[tuple[tuple[str, ...], str, Any]] = [
        (_FORMULA_READERS, "parse_expr", read_formula),
        (_PYTHON_READERS, "eval", ast.literal_eval),
    ]
    for modules, name, reader in readers:
        for module in modules:
            setattr(importlib.import_module(f"reasoning_gym.{module}"), name, reader)
