"""``grade_math`` grades the answer of a reply: a fast comparison in the caller's thread, then a killable worker."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from rllm_gym.core.errors import EnvironmentFault
from rllm_gym.core.per_process import PerProcess
from rllm_gym.grading.math.compare import any_of, same, within
from rllm_gym.grading.math.comparers import FastComparer
from rllm_gym.grading.math.extract import (
    any_answer,
    boxed_answer,
    final_boxes,
    gold_answer,
    last_number,
    line_answer,
)
from rllm_gym.grading.math.interpretations import (
    choice,
    decimal_comma,
    in_radians,
    interpretations,
    looks_decimal,
    option_letter,
    same_spelling,
)
from rllm_gym.grading.math.math_verify_limits import is_unevaluated, within_bounds
from rllm_gym.grading.math.normalize import in_dollars, normalize
from rllm_gym.grading.math.syntax import MathNode
from rllm_gym.runtime import CpuTimeExceeded, DeadlineExceeded, MemoryExceeded, WorkerDied, WorkerError, WorkerPool

MAX_ANSWER_CHARS = 2000
"""Maximum length of an answer that is parsed. A longer one is correct only if it is spelled exactly like the gold
answer."""
MEMORY_MB = 256
"""Private memory limit of one grading worker, above its memory at start."""
WALL_S = 600.0
"""Seconds after which a worker that has not used up its CPU time is killed: the machine is too busy to grade."""
_MAX_SPELLED_CHARS = 200_000

Extraction = Literal["boxed", "any", "answer_line", "last_number"]
"""Where in a reply the answer is: see :func:`grade_math`."""
_EXTRACTORS = {"boxed": boxed_answer, "any": any_answer, "answer_line": line_answer, "last_number": last_number}

Method = Literal["string", "number", "symbolic", "no_answer", "timeout", "memory", "too_long"]


@dataclass(frozen=True, slots=True)
class MathVerdict:
    """The verdict on one reply.

    Attributes:
        correct: Whether the answer equals the gold answer.
        extracted: The answer as written in the reply; ``None`` if there is none.
        method: What decided: ``"string"`` (spelling), ``"number"`` (exact rational arithmetic), ``"symbolic"`` (a
            worker's fifty digits or grammar, or floats for values that are far apart), ``"no_answer"``, ``"timeout"``
            and ``"memory"`` (the worker was killed at its limit of CPU time or memory), ``"too_long"``.
        seconds: Wall-clock time of the call.
    """

    correct: bool
    extracted: str | None
    method: Method
    seconds: float


def grade_math(
    response: str,
    gold: str,
    *,
    extract: Extraction = "boxed",
    timeout: float = 2.0,
    tolerance: float = 0.0,
    degrees: bool = False,
) -> MathVerdict:
    r"""Grade a reply: does its answer equal the gold answer?

    Callable from any thread; from an event loop use :func:`agrade_math`. No text is ever evaluated as code. Most
    answers are decided here in microseconds, by spelling or exact arithmetic, and the rest in worker processes with a
    deadline and a memory limit. Workers start on demand, are reused, and end with the program.

    Args:
        response: The model's raw reply.
        gold: The reference: an answer, or a solution that boxes it or ends in ``#### answer``.
        extract: ``"boxed"`` only uses the last ``\boxed{}`` after the last closed ``</think>``, with those directly
            before it: boxes joined by a comma, "and" or "or", or that are the items of a list, are one list, which is
            right only as a whole; items with different names (``x =``, ``y =``) only if gold is a list. ``"any"``
            falls back to ``#### x``, "the answer is x", the last formula, the last number; a reply that ends in a loop
            only has the answer that the loop states each time. ``"answer_line"``: what the last line ``Answer: x``
            states. ``"last_number"``: the last number of the reply.
        timeout: Seconds of CPU time that a worker may spend on this answer: a busy machine never makes a correct
            answer wrong.
        tolerance: Largest absolute error of an answer that is one real number, for rounded gold answers. With 0 a
            decimal is right if it is exact, or rounded to at least six places.
        degrees: Whether an angle in degrees may equal one in radians: ``60^\circ`` for ``\pi/3`` and the reverse.

    Raises:
        EnvironmentFault: No worker could be started or one broke, twice, or the machine is so busy that a worker did
            not get its CPU time within ten minutes. A reply cannot cause this.
        TypeError, ValueError: The arguments do not match this documentation; no string is ever rejected.

    >>> grade_math(r"So it is \boxed{\frac{1}{2}}.", "0.5").correct
    True
    """
    began = time.perf_counter()
    extracted, verdict = _decide_fast(response, gold, extract, timeout, tolerance, degrees)
    if isinstance(verdict, _Undecided):
        verdict = _in_workers(verdict.worker_kind, verdict.gold, verdict.answer, timeout)
    return MathVerdict(verdict[0], extracted, verdict[1], time.perf_counter() - began)


async def agrade_math(
    response: str,
    gold: str,
    *,
    extract: Extraction = "boxed",
    timeout: float = 2.0,  # noqa: ASYNC109
    tolerance: float = 0.0,
    degrees: bool = False,
) -> MathVerdict:
    """Run :func:`grade_math` without blocking the event loop: the loop continues while a worker decides."""
    began = time.perf_counter()
    extracted, verdict = _decide_fast(response, gold, extract, timeout, tolerance, degrees)
    if isinstance(verdict, _Undecided):
        verdict = await _ain_workers(verdict.worker_kind, verdict.gold, verdict.answer, timeout)
    return MathVerdict(verdict[0], extracted, verdict[1], time.perf_counter() - began)


_Decision = tuple[bool, Method]
_WorkerKind = Literal["digits", "grammar"]


@dataclass(frozen=True, slots=True)
class _Undecided:
    """Two normalized answers, and the worker pool that has to compare them."""

    worker_kind: _WorkerKind
    gold: str
    answer: str


def _decide_fast(
    response: str, gold: str, extract: str, timeout: float, tolerance: float = 0.0, degrees: bool = False
) -> tuple[str | None, _Decision | _Undecided]:
    """Return the extracted answer, and the verdict or who has to find it."""
    if not isinstance(response, str) or not isinstance(gold, str):
        raise TypeError(f"response and gold must be str; got {type(response).__name__} and {type(gold).__name__}")
    if extract not in _EXTRACTORS:
        raise ValueError(f"extract={extract!r} must be one of {', '.join(map(repr, _EXTRACTORS))}")
    if not 0 < timeout < float("inf"):
        raise ValueError(f"timeout={timeout!r} must be a finite number of seconds > 0")
    if not (isinstance(tolerance, int | float) and 0 <= tolerance < float("inf")):
        raise ValueError(f"tolerance={tolerance!r} must be a finite number >= 0")
    extracted = _EXTRACTORS[extract](response)
    if extracted and extract in ("boxed", "any"):
        boxes, joined, names = final_boxes(response)
        extracted = _of_boxes(boxes, joined, names, gold) if len(boxes) > 1 else extracted
    if extracted is None or not extracted.strip():
        return extracted, (False, "no_answer")
    if extracted == gold and gold.isascii() and gold.isdigit():
        return extracted, (True, "string")  # by far the most common case: whole numbers with identical digits
    if not tolerance and _is_plain(extracted) and _is_plain(gold):
        return extracted, (extracted == gold, "string" if extracted == gold else "number")
    reference = gold_answer(gold)
    if len(extracted) > MAX_ANSWER_CHARS or len(reference) > MAX_ANSWER_CHARS:
        equal = max(len(extracted), len(reference)) <= _MAX_SPELLED_CHARS and same_spelling(
            normalize(reference), normalize(extracted)
        )
        return extracted, (equal, "string" if equal else "too_long")
    reference, answer = map(normalize, in_dollars(reference, extracted))
    if degrees:
        reference, answer = in_radians(reference, answer)
    try:
        if tolerance and _within(reference, answer, tolerance):
            return extracted, (True, "number")
        verdict = _decide(reference, answer)
    except RecursionError:  # the caller's stack is nearly full; a worker's is empty
        verdict = "digits"
    return extracted, _Undecided(verdict, reference, answer) if isinstance(verdict, str) else verdict


def _of_boxes(boxes: list[str], joined: bool, names: list[str], gold: str) -> str:
    """Return the answer of a reply that ends in several boxes: all of them if they are joined or gold is a list."""
    readings = interpretations(normalize(gold_answer(gold))) if len(gold) <= MAX_ANSWER_CHARS else ()
    listed = bool(readings) and readings[0].op in ("list", "set")
    if (joined or listed) and (listed or len(set(boxes)) > 1):
        if "=" in gold and all(names) and len(set(names)) > 1:  # the values of x and y may not be exchanged
            boxes = [box if "=" in box else f"{name} = {box}" for box, name in zip(boxes, names)]
        return ", ".join(boxes)
    return boxes[-1]


def _within(gold: str, answer: str, tolerance: float) -> bool:
    return any(within(mine, other, tolerance) for mine in interpretations(gold) for other in interpretations(answer))


def _is_plain(text: str) -> bool:
    """Return whether a text is a whole number in canonical form, for which equal value means equal spelling."""
    digits = text[1:] if text[:1] == "-" else text
    return digits.isdecimal() and text.isascii() and (digits[0] != "0" or text == "0")


def _decide(gold: str, answer: str) -> _Decision | _WorkerKind:
    if same_spelling(gold, answer):
        return True, "string"
    gold_readings, answer_readings = interpretations(gold), interpretations(answer)
    comparer = FastComparer()
    if _same_choice(gold, answer, gold_readings, answer_readings):
        return True, "string"
    if (comma := _decimal_commas(gold, answer, gold_readings, answer_readings)) is not None:
        return comma, "number"
    if not gold_readings or not answer_readings:
        return "grammar"
    verdict = any_of(same(mine, other, comparer) for mine in gold_readings for other in answer_readings)
    if verdict is None:
        return "digits"
    if "text" in (gold_readings[0].op, answer_readings[0].op):
        return verdict, "string"
    return verdict, "symbolic" if comparer.symbolic else "number"


def _same_choice(
    gold: str, answer: str, gold_readings: tuple[MathNode, ...], answer_readings: tuple[MathNode, ...]
) -> bool:
    """Return whether gold is an option's capital letter and the answer that letter, also lower-case, or whether one
    side is the letter of an option and the other that option with its text.
    """
    letter_of_gold = option_letter(gold)
    if letter_of_gold is not None and letter_of_gold == (option_letter(answer) or "").upper():
        return True
    for letter, text in ((gold_readings, answer), (answer_readings, gold)):
        if letter and letter[0].op == "sym" and (option := choice(text)) is not None:
            return bool(letter[0].args[0].upper() == option)
    return False


def _decimal_commas(
    gold: str, answer: str, gold_readings: tuple[MathNode, ...], answer_readings: tuple[MathNode, ...]
) -> bool | None:
    """Return True if one side writes the other's decimal number with a comma."""
    if (mine := decimal_comma(answer)) is not None and gold_readings and "." in gold:
        return True if FastComparer().equal(gold_readings[0], mine) else None
    if looks_decimal(gold) and (mine := decimal_comma(gold)) is not None and answer_readings and "." in answer:
        return True if FastComparer().equal(mine, answer_readings[0]) else None
    return None


# Workers
#
# There are two pools. Computing fifty digits is bounded work of milliseconds, so a few workers suffice and no answer
# waits long for them. math-verify may take its whole deadline, so it has separate workers at low priority: sixty-four
# hostile answers at once delay neither ordinary ones nor the trainer.


@PerProcess
def _worker_pools() -> tuple[WorkerPool, WorkerPool]:
    """Return the two pools. Each starts workers on demand. The interpreter closes them at exit."""
    cores = os.cpu_count() or 1
    return (
        WorkerPool(max_workers=cores + 2, memory_mb=MEMORY_MB, name="grading", preload=[_DIGITS]),
        WorkerPool(max_workers=32, memory_mb=MEMORY_MB, name="grading-grammar", preload=[_GRAMMAR]),
    )


_DIGITS, _GRAMMAR = "rllm_gym.grading.math.numeric_worker", "rllm_gym.grading.math.math_verify_worker"


def _by_digits(gold: str, answer: str, cpu_s: float) -> tuple[bool | None, float]:
    from rllm_gym.grading.math.numeric_worker import decide  # mpmath is imported in workers only

    began = time.process_time()
    with _cpu_limit(cpu_s):
        return decide(gold, answer), time.process_time() - began


def _by_grammar(gold: str, answer: str, cpu_s: float) -> bool:
    from rllm_gym.grading.math.math_verify_worker import decide  # SymPy is imported in workers only

    with _cpu_limit(cpu_s):
        return decide(gold, answer)


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    """End this process (by SIGPROF) once it has used that much CPU time."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _is_for_grammar(gold: str, answer: str) -> bool:
    """Return whether math-verify is asked: only for a gold answer with a sum, product, integral or limit.

    Alone in an answer they are a calculation that was not carried out. Of other notations that our parser does not read
    math-verify misreads too many: ``1, 2, \\ldots`` as 1, 2 and ``1'2`` as 12.
    """
    readable = is_unevaluated(answer) or bool(interpretations(answer))
    return is_unevaluated(gold) and readable and within_bounds(gold) and within_bounds(answer)


def _in_workers(worker_kind: _WorkerKind, gold: str, answer: str, timeout: float) -> _Decision:
    for attempt in (1, 2):
        digits, grammar = _worker_pools()
        try:
            verdict, spent = None, 0.0
            if worker_kind == "digits":
                verdict, spent = digits.run(_by_digits, gold, answer, timeout, timeout=WALL_S)
            if verdict is None and not _is_for_grammar(gold, answer):
                verdict = False
            if verdict is None:
                left = max(timeout - spent, _LEAST_SECONDS)
                verdict = grammar.run(_by_grammar, gold, answer, left, timeout=WALL_S)
            return verdict, "symbolic"
        except _FAILURES as error:
            if (decision := _of_failure(error, last=attempt == 2)) is not None:
                return decision
    raise AssertionError("the second failure is final")


async def _ain_workers(worker_kind: _WorkerKind, gold: str, answer: str, timeout: float) -> _Decision:  # noqa: ASYNC109
    for attempt in (1, 2):
        digits, grammar = _worker_pools()
        try:
            verdict, spent = None, 0.0
            if worker_kind == "digits":
                verdict, spent = await digits.arun(_by_digits, gold, answer, timeout, timeout=WALL_S)
            if verdict is None and not _is_for_grammar(gold, answer):
                verdict = False
            if verdict is None:
                left = max(timeout - spent, _LEAST_SECONDS)
                verdict = await grammar.arun(_by_grammar, gold, answer, left, timeout=WALL_S)
            return verdict, "symbolic"
        except _FAILURES as error:
            if (decision := _of_failure(error, last=attempt == 2)) is not None:
                return decision
    raise AssertionError("the second failure is final")


_LEAST_SECONDS = 0.01
_FAILURES = (DeadlineExceeded, WorkerDied, WorkerError, OSError)


def _of_failure(error: Exception, *, last: bool) -> _Decision | None:
    """Return the verdict for a worker's failure that the answer caused, or raise a fault; ``None`` to try once more."""
    if isinstance(error, CpuTimeExceeded):
        return False, "timeout"
    if isinstance(error, MemoryExceeded):
        return False, "memory"
    if not last and not isinstance(error, DeadlineExceeded):
        return None
    raise EnvironmentFault(
        f"the grading workers failed ({type(error).__name__}: {error}); the answer was not graded", kind="grader"
    ) from error
