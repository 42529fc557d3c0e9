"""Measure latency and throughput of a verdict: ``grade_math`` against plain math-verify, on the same replies.

Replies are the solutions of MATH-500 (right), the boxed answer of another row (wrong), and pairs that need a worker
(``2\\sqrt{2}`` for ``\\sqrt{8}``). Plain math-verify is ``verify(parse(gold), parse(reply))`` in this thread with its
defaults and with the golds parsed beforehand, as in common use.

    python benchmarks/grading.py [--data ../shared/data]
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import math_verify
from rich.console import Console
from rich.table import Table

from rllm_gym.grading import grade_math

Pair = tuple[str, str, bool]
ROOT = Path(__file__).resolve().parent.parent


def replies(folder: Path) -> dict[str, list[Pair]]:
    """Return (reply, gold, whether it is correct) by kind."""
    rows = [json.loads(line) for line in (folder / "math500.jsonl").open()]
    answers = [row["answer"] for row in rows]
    kinds: dict[str, list[Pair]] = {
        "MATH-500 solutions": [(row["solution"], row["answer"], True) for row in rows],
        "wrong answers": [
            (f"So it is $\\boxed{{{other}}}$.", answer, False)
            for answer, other in zip(answers, answers[7:] + answers[:7], strict=True)
            if other != answer
        ],
        "radicals (worker)": [
            (f"$\\boxed{{\\sqrt{{{4 * n}}}+\\sqrt{{{9 * n}}}}}$", f"5\\sqrt{{{n}}}", True) for n in range(2, 202)
        ],
        "polynomials (worker)": [(f"$\\boxed{{(x+{n})^2}}$", f"x^2+{2 * n}x+{n * n}", True) for n in range(1, 201)],
    }
    return kinds


def measure(grade: Callable[[str, str], bool], pairs: list[Pair]) -> tuple[float, float, float]:
    """Return median and 99th percentile in milliseconds, and the fraction of correct verdicts."""
    seconds, right = [], 0
    for reply, gold, expected in pairs:
        began = time.perf_counter()
        right += grade(reply, gold) is expected
        seconds.append(time.perf_counter() - began)
    seconds.sort()
    return 1000 * statistics.median(seconds), 1000 * seconds[int(0.99 * len(seconds))], right / len(pairs)


def plain_math_verify(golds: dict[str, list[object]]) -> Callable[[str, str], bool]:
    def grade(reply: str, gold: str) -> bool:
        return bool(math_verify.verify(golds[gold], math_verify.parse(reply)))

    return grade


def ours(reply: str, gold: str) -> bool:
    return grade_math(reply, gold).correct


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument(
        "--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder that contains math500.jsonl"
    )
    folder = arguments.parse_args().data
    if not (folder / "math500.jsonl").is_file():
        raise SystemExit(f"no {folder / 'math500.jsonl'}: pass the folder that contains math500.jsonl with --data")
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    kinds = replies(folder)
    golds = {gold: math_verify.parse(f"${gold}$") for pairs in kinds.values() for _, gold, _ in pairs}
    theirs = plain_math_verify(golds)
    ours(r"\boxed{\sqrt{8}}", r"2\sqrt{2}")  # warm-up: workers start once per program

    table = Table(title="one verdict, one caller")
    for column in ("replies", "ours p50", "p99", "right", "math-verify p50", "p99", "right", "ratio of p50"):
        table.add_column(column, justify="left" if column == "replies" else "right")
    for kind, pairs in kinds.items():
        a, b = measure(ours, pairs), measure(theirs, pairs)
        table.add_row(
            kind, f"{a[0]:.3f} ms", f"{a[1]:.2f} ms", f"{a[2]:.1%}", f"{b[0]:.3f} ms", f"{b[1]:.2f} ms", f"{b[2]:.1%}",
            f"{b[0] / a[0]:.0f}x",
        )  # fmt: skip
    console = Console(width=120)
    console.print(table)

    everything = [pair for pairs in kinds.values() for pair in pairs]
    began = time.perf_counter()
    for reply, gold, _ in everything:
        theirs(reply, gold)
    plain = len(everything) / (time.perf_counter() - began)
    rates = Table(title=f"verdicts per second, {len(everything)} replies mixed")
    rates.add_column("how")
    rates.add_column("verdicts/s", justify="right")
    rates.add_column("ratio", justify="right")
    rates.add_row("math-verify, one thread (its timeouts work only in the main thread)", f"{plain:,.0f}", "1.0x")
    for callers in (1, 64):
        with ThreadPoolExecutor(callers) as threads:
            began = time.perf_counter()
            list(threads.map(lambda pair: ours(pair[0], pair[1]), everything))
            rate = len(everything) / (time.perf_counter() - began)
        rates.add_row(f"grade_math, {callers} caller{'s' * (callers > 1)}", f"{rate:,.0f}", f"{rate / plain:.1f}x")
    console.print(rates)

    hang = r"\boxed{\int \frac{\sin(x^7+x^5)}{x^{11}+\ln(x)} dx}"
    grade_math(hang, "42", timeout=0.1)
    hostile = Table(title="hostile answers, deadline 1 s")
    hostile.add_column("answer")
    hostile.add_column("verdict")
    hostile.add_column("seconds", justify="right")
    for name, reply in [
        ("9**9**9**9", r"\boxed{9**9**9**9}"),
        ("9^{9^{9^9}}", r"\boxed{9^{9^{9^9}}}"),
        ("((10!)!)!", r"\boxed{((10!)!)!}"),
        ("1 MB of LaTeX", "\\boxed{" + r"\sqrt{2}+" * 120_000 + "1}"),
        ("an integral on which SymPy hangs", hang),
    ]:
        verdict = grade_math(reply, "42", timeout=1.0)
        hostile.add_row(name, verdict.method, f"{verdict.seconds:.3f}")
    console.print(hostile)


if __name__ == "__main__":
    main()
