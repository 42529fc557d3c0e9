"""Measure what a math verdict costs, and what the own reader of formulas saves: ``grade_math`` against math-verify.

Ways:

- grade_math: spelling and plain numbers, then the own reader of formulas, then math-verify in a worker;
- without the reader: the same, but what spelling does not decide goes to math-verify in a worker;
- math-verify: ``verify(parse(gold), parse(reply))`` in this thread with its defaults and with the golds parsed
  beforehand, as in common use. Its timeouts work only in the main thread.

Real replies are those of models in math_grading_examples.jsonl: the example solutions to GSM8K that OpenAI published,
and the examples of Qwen2.5-Math. The other replies are made: the solutions of MATH-500 (right), the boxed answer of
another row (wrong), and pairs that need a worker (``2\\sqrt{2}`` for ``\\sqrt{8}``). An episode is ``reset`` and
``step`` of ``rllm/Math-v0`` with a real reply that has a ``\\boxed{}``, and no model: no user notices a larger ratio.

    python benchmarks/grading.py [--data ../shared/data]   # prints the tables; --write also writes them to the results
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gymnasium
import math_verify

import rllm_gym  # noqa: F401 - registers the environments
from rllm_gym.grading import grade_math
from rllm_gym.grading.math import grade as grade_module

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "grading.md"
REAL = "real model replies"
BOXED = "\\boxed"
SOURCES = ("openai/grade-school-math example_model_solutions", "Qwen2.5-Math eval_rm_maj_example")
CALLERS = (1, 64)
ROUNDS = 5


class Reply(NamedTuple):
    text: str
    gold: str
    correct: bool
    extract: Literal["boxed", "any"] = "boxed"


Grader = Callable[[Reply], bool]


def replies(folder: Path) -> dict[str, list[Reply]]:
    """Return the replies by kind."""
    examples = [json.loads(line) for line in (folder / "math_grading_examples.jsonl").open()]
    rows = [json.loads(line) for line in (folder / "math500.jsonl").open()]
    answers = [row["answer"] for row in rows]
    return {
        REAL: [
            Reply(row["response"], row["gold"], bool(row["expected"]), "boxed" if BOXED in row["response"] else "any")
            for row in examples
            if row["source"] in SOURCES
        ],
        "MATH-500 solutions": [Reply(row["solution"], row["answer"], True) for row in rows],
        "wrong answers": [
            Reply(f"So it is $\\boxed{{{other}}}$.", answer, False)
            for answer, other in zip(answers, answers[7:] + answers[:7], strict=True)
            if other != answer
        ],
        "radicals (worker)": [
            Reply(f"$\\boxed{{\\sqrt{{{4 * n}}}+\\sqrt{{{9 * n}}}}}$", f"5\\sqrt{{{n}}}", True) for n in range(2, 202)
        ],
        "polynomials (worker)": [
            Reply(f"$\\boxed{{(x+{n})^2}}$", f"x^2+{2 * n}x+{n * n}", True) for n in range(1, 201)
        ],
    }


def ours(reply: Reply) -> bool:
    return grade_math(reply.text, reply.gold, extract=reply.extract).correct


@contextmanager
def without_reader() -> Iterator[None]:
    """Send to math-verify what spelling does not decide."""

    def decide(gold: str, answer: str) -> Any:
        return (True, "string") if grade_module.same_spelling(gold, answer) else "grammar"

    own = grade_module._decide
    grade_module._decide = decide
    try:
        yield
    finally:
        grade_module._decide = own


def ablated(reply: Reply) -> bool:
    with without_reader():
        return ours(reply)


def plain_math_verify(kinds: dict[str, list[Reply]]) -> Grader:
    golds = {reply.gold: math_verify.parse(f"${reply.gold}$") for replies in kinds.values() for reply in replies}
    return lambda reply: bool(math_verify.verify(golds[reply.gold], math_verify.parse(reply.text)))


def seconds_of(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def by_kind(kinds: dict[str, list[Reply]], ways: dict[str, Grader]) -> list[str]:
    """Return the table of single verdicts; the ways alternate, reply by reply."""
    lines = [
        "| replies | way | wrong verdicts | p50, ms | p99, ms | p50 × ours |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for kind, pairs in kinds.items():
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        wrong = dict.fromkeys(ways, 0)
        for reply in pairs:
            for way, grade in ways.items():
                began = time.perf_counter()
                wrong[way] += grade(reply) is not reply.correct
                seconds[way].append(time.perf_counter() - began)
        base = statistics.median(seconds["grade_math"])
        for way, times in seconds.items():
            p50, p99 = statistics.median(times), sorted(times)[int(0.99 * len(times))]
            lines.append(
                f"| {kind} | {way} | {wrong[way]} of {len(pairs)} | {1000 * p50:.3f} | {1000 * p99:.2f} "
                f"| {p50 / base:.1f} |"
            )
    return lines


def throughput(everything: list[Reply], ways: dict[str, Grader]) -> list[str]:
    def rate(callers: int) -> float:
        with ThreadPoolExecutor(callers) as threads:
            return len(everything) / seconds_of(lambda: list(threads.map(ours, everything)))

    plain = len(everything) / seconds_of(lambda: [ways["math-verify"](reply) for reply in everything])
    rates = {"math-verify, one thread": plain}
    for callers in CALLERS:
        rates[f"grade_math, {callers} at once"] = rate(callers)
        with without_reader():
            rates[f"without the reader, {callers} at once"] = rate(callers)
    lines = ["| way | verdicts per second | × math-verify |", "|---|---:|---:|"]
    return lines + [f"| {way} | {value:,.0f} | {value / plain:.1f} |" for way, value in rates.items()]


def episodes(pairs: list[Reply]) -> list[str]:
    """Return the table of whole episodes without a model; the ways alternate, round by round."""
    pairs = [pair for pair in pairs if BOXED in pair.text]
    rows = [{"question": f"Problem {index}", "answer": pair.gold} for index, pair in enumerate(pairs)]
    env = gymnasium.make("rllm/Math-v0", tasks=rows)

    def play() -> None:
        for index, pair in enumerate(pairs):
            env.reset(options={"task": index})
            env.step(pair.text)

    seconds: dict[str, list[float]] = {"grade_math": [], "without the reader": []}
    for _ in range(ROUNDS):
        seconds["grade_math"].append(seconds_of(play))
        with without_reader():
            seconds["without the reader"].append(seconds_of(play))
    base = statistics.median(seconds["grade_math"])
    return ["| way | ms per episode | × grade_math |", "|---|---:|---:|"] + [
        f"| {way} | {1000 * statistics.median(times) / len(pairs):.3f} | {statistics.median(times) / base:.1f} |"
        for way, times in seconds.items()
    ]


def hostile() -> list[str]:
    hang = r"\boxed{\int \frac{\sin(x^7+x^5)}{x^{11}+\ln(x)} dx}"
    grade_math(hang, "42", timeout=0.1)
    lines = ["| answer | verdict | seconds |", "|---|---|---:|"]
    for name, reply in [
        ("`9**9**9**9`", r"\boxed{9**9**9**9}"),
        ("`9^{9^{9^9}}`", r"\boxed{9^{9^{9^9}}}"),
        ("`((10!)!)!`", r"\boxed{((10!)!)!}"),
        ("1 MB of LaTeX", "\\boxed{" + r"\sqrt{2}+" * 120_000 + "1}"),
        ("an integral on which SymPy hangs", hang),
    ]:
        verdict = grade_math(reply, "42", timeout=1.0)
        lines.append(f"| {name} | {verdict.method} | {verdict.seconds:.3f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the two files")
    parser.add_argument("--write", action="store_true", help=f"also write {RESULT.name} into benchmarks/results")
    options = parser.parse_args()
    for name in ("math500.jsonl", "math_grading_examples.jsonl"):
        if not (options.data / name).is_file():
            raise SystemExit(f"no {options.data / name}: pass the folder that contains it with --data")
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    load = os.getloadavg()[0]
    kinds = replies(options.data)
    ways: dict[str, Grader] = {
        "grade_math": ours, "without the reader": ablated, "math-verify": plain_math_verify(kinds)
    }  # fmt: skip
    ours(Reply(r"\boxed{\sqrt{8}}", r"2\sqrt{2}", True))  # warm-up: workers start once per program
    ablated(Reply(r"\boxed{\sqrt{8}}", r"2\sqrt{2}", True))
    everything = [reply for pairs in kinds.values() for reply in pairs]
    text = "\n".join(
        [
            "# Cost of a math verdict",
            "",
            "By `python benchmarks/grading.py --write`, whose docstring describes the measurements.",
            "",
            f"Python {platform.python_version()}, {os.cpu_count()} cores, load average {load:.1f} at the start.",
            "",
            *("## One verdict, one caller", "", *by_kind(kinds, ways), ""),
            *("## A whole episode of rllm/Math-v0 without a model, real model replies", "", *episodes(kinds[REAL]), ""),
            *(f"## Throughput, {len(everything)} replies mixed", "", *throughput(everything, ways), ""),
            *("## Hostile answers, deadline 1 s", "", *hostile(), ""),
        ]
    )
    print(text)
    if options.write:
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
