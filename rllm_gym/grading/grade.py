"""``grade_math``: is this reply's answer right? A quick look in the caller's thread, a killable worker for the rest."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from dataclasses import dataclass
from typing import Literal

from rllm_gym.core.errors import EnvironmentFault
from rllm_gym.grading.compare import any_of, same
from rllm_gym.grading.extract import any_answer, boxed_answer, gold_answer
from rllm_gym.grading.judges import QuickJudge
from rllm_gym.grading.notation import tidy
from rllm_gym.grading.readings import choice, decimal_comma, looks_decimal, readings, same_spelling
from rllm_gym.grading.syntax import Node
from rllm_gym.workers import DeadlineExceeded, MemoryExceeded, WorkerDied, WorkerError, WorkerPool

MAX_ANSWER_CHARS = 2000
"""Longest answer that is looked into. A longer one is right only where it is spelled exactly like the gold answer."""
MEMORY_MB = 512
"""Private memory of one grading worker above what it holds when it starts."""
_MAX_SPELLED_CHARS = 200_000

Method = Literal["string", "number", "symbolic", "no_answer", "timeout", "memory", "too_long"]


@dataclass(frozen=True, slots=True)
class MathVerdict:
    """The verdict on one reply.

    Attributes:
        correct: The answer equals the gold answer.
        extracted: The answer as it stands in the reply; ``None`` where there is none.
        method: What decided: ``"string"`` (spelling), ``"number"`` (exact rational arithmetic), ``"symbolic"`` (a
            worker's fifty digits or grammar, or floats for what is far apart), ``"no_answer"``, ``"timeout"`` and
            ``"memory"`` (the worker was killed at its deadline or cap), ``"too_long"``.
        seconds: Wall-clock time of the call.
    """

    correct: bool
    extracted: str | None
    method: Method
    seconds: float


def grade_math(
    response: str, gold: str, *, extract: Literal["boxed", "any"] = "boxed", timeout: float = 2.0
) -> MathVerdict:
    r"""Whether a reply's answer equals the gold answer.

    Safe to call from any thread; from an event loop use :func:`agrade_math`. No text is ever evaluated as code,
    whatever it is: most answers are decided here in microseconds, by spelling or exact arithmetic, and the rest in
    worker processes that are killed at their deadline and capped in memory. Workers start when they are first
    needed, are reused, and end with the program.

    Args:
        response: The model's raw reply.
        gold: The reference: an answer, or a solution that boxes it or ends in ``#### answer``.
        extract: ``"boxed"`` takes the last ``\boxed{}`` after the last closed ``</think>`` and nothing else;
            ``"any"`` falls back to ``#### x``, "the answer is x", the last formula, the last number.
        timeout: Seconds a worker may spend on this answer, counted from when it takes it up: other answers
            waiting in line never turn a right answer into a wrong one.

    Raises:
        EnvironmentFault: No worker could be started or one broke, twice. A reply cannot cause that.
        TypeError, ValueError: The arguments are not what is documented; no string is ever refused.

    >>> grade_math(r"So it is \boxed{\frac{1}{2}}.", "0.5").correct
    True
    """
    began = time.perf_counter()
    extracted, verdict = _quick(response, gold, extract, timeout)
    if verdict is None:
        verdict = _in_worker(tidy(gold_answer(gold)), tidy(extracted or ""), timeout)
    return MathVerdict(verdict[0], extracted, verdict[1], time.perf_counter() - began)


async def agrade_math(
    response: str,
    gold: str,
    *,
    extract: Literal["boxed", "any"] = "boxed",
    timeout: float = 2.0,  # noqa: ASYNC109
) -> MathVerdict:
    """:func:`grade_math`, awaited: the event loop goes on while a worker looks."""
    began = time.perf_counter()
    extracted, verdict = _quick(response, gold, extract, timeout)
    if verdict is None:
        verdict = await _ain_worker(tidy(gold_answer(gold)), tidy(extracted or ""), timeout)
    return MathVerdict(verdict[0], extracted, verdict[1], time.perf_counter() - began)


_Decision = tuple[bool, Method]


def _quick(response: str, gold: str, extract: str, timeout: float) -> tuple[str | None, _Decision | None]:
    """The extracted answer, and the verdict where no worker is needed for it."""
    if not isinstance(response, str) or not isinstance(gold, str):
        raise TypeError(f"response and gold are str; got {type(response).__name__} and {type(gold).__name__}")
    if extract not in ("boxed", "any"):
        raise ValueError(f"extract={extract!r} must be 'boxed' or 'any'")
    if not 0 < timeout < float("inf"):
        raise ValueError(f"timeout={timeout!r} must be a finite number of seconds above 0")
    extracted = boxed_answer(response) if extract == "boxed" else any_answer(response)
    if extracted is None or not extracted.strip():
        return extracted, (False, "no_answer")
    if extracted == gold and gold.isascii() and gold.isdigit():
        return extracted, (True, "string")  # by far the commonest: a whole number, spelled alike digit for digit
    if _is_plain(extracted) and _is_plain(gold):
        return extracted, (extracted == gold, "string" if extracted == gold else "number")
    reference = gold_answer(gold)
    if len(extracted) > MAX_ANSWER_CHARS or len(reference) > MAX_ANSWER_CHARS:
        alike = max(len(extracted), len(reference)) <= _MAX_SPELLED_CHARS and same_spelling(
            tidy(reference), tidy(extracted)
        )
        return extracted, (alike, "string" if alike else "too_long")
    try:
        return extracted, _decide(tidy(reference), tidy(extracted))
    except RecursionError:  # the caller's stack is nearly full; a worker's is empty
        return extracted, None


def _is_plain(text: str) -> bool:
    """A whole number written the one plain way: for such, equal spelling is equal value, and nothing else is."""
    digits = text[1:] if text[:1] == "-" else text
    return digits.isdecimal() and text.isascii() and (digits[0] != "0" or text == "0")


def _decide(gold: str, answer: str) -> _Decision | None:
    if same_spelling(gold, answer):
        return True, "string"
    ours, theirs = readings(gold), readings(answer)
    judge = QuickJudge()
    if ours and ours[0].op == "sym" and choice(answer) is not None and ours[0].args[0].upper() == choice(answer):
        return True, "string"
    if (comma := _decimal_commas(gold, answer, ours, theirs)) is not None:
        return comma, "number"
    if not ours or not theirs:
        return None
    verdict = any_of(same(mine, other, judge) for mine in ours for other in theirs)
    if verdict is None:
        return None
    if "text" in (ours[0].op, theirs[0].op):
        return verdict, "string"
    return verdict, "symbolic" if judge.symbolic else "number"


def _decimal_commas(gold: str, answer: str, ours: tuple[Node, ...], theirs: tuple[Node, ...]) -> bool | None:
    """True where one side writes the other's decimal number with a comma."""
    if (mine := decimal_comma(answer)) is not None and ours and "." in gold:
        return True if QuickJudge().equal(ours[0], mine) else None
    if looks_decimal(gold) and (mine := decimal_comma(gold)) is not None and theirs and "." in answer:
        return True if QuickJudge().equal(mine, theirs[0]) else None
    return None


# The worker pool of this process -----------------------------------------------------------------------------

_lock = threading.Lock()
_pool: WorkerPool | None = None
_pool_pid = 0


def _workers() -> WorkerPool:
    """The pool of this process, made when first needed. Its owner is the interpreter: it closes it at exit."""
    global _pool, _pool_pid
    with _lock:
        if _pool is None or _pool_pid != os.getpid():
            _pool_pid = os.getpid()
            _pool = WorkerPool(
                "process",
                # More than cores: one that is busy with a hostile answer must not hold up honest ones.
                max_workers=min(32, max(8, 4 * (os.cpu_count() or 1))),
                memory_mb=MEMORY_MB,
                name="grading",
                preload=("rllm_gym.grading.in_worker",),
            )
        return _pool


def _work(gold: str, answer: str) -> bool:
    from rllm_gym.grading.in_worker import decide  # SymPy is imported in workers only

    return decide(gold, answer)


def _in_worker(gold: str, answer: str, timeout: float) -> _Decision:
    for attempt in (1, 2):
        try:
            return _workers().run(_work, gold, answer, timeout=timeout), "symbolic"
        except DeadlineExceeded:
            return False, "timeout"
        except MemoryExceeded:
            return False, "memory"
        except (WorkerDied, WorkerError, OSError) as error:
            if attempt == 2:
                raise _broken(error) from error
    raise AssertionError("unreachable")


async def _ain_worker(gold: str, answer: str, timeout: float) -> _Decision:  # noqa: ASYNC109
    for attempt in (1, 2):
        try:
            return await (await asyncio.to_thread(_workers)).arun(_work, gold, answer, timeout=timeout), "symbolic"
        except DeadlineExceeded:
            return False, "timeout"
        except MemoryExceeded:
            return False, "memory"
        except (WorkerDied, WorkerError, OSError) as error:
            if attempt == 2:
                raise _broken(error) from error
    raise AssertionError("unreachable")


def _broken(error: BaseException) -> EnvironmentFault:
    return EnvironmentFault(
        f"grading workers do not work ({type(error).__name__}: {error}); the answer was not judged", kind="grader"
    )
