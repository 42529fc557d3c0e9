"""Measure what a verdict by function tests costs against plain Python, and that reference solutions are paid.

Rows: the reference solutions of HumanEval and MBPP with their tests, and rows of the shape of MBPP+ with a literal of
282 kB. Plain Python is one ``python -c`` per program with its tests in the same process. The two alternate, row by row.

    python benchmarks/function_grading.py [--data ../shared/data] [--every 1]
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from rllm_gym.grading.code import FunctionTests, grade_program
from rllm_gym.sandbox import Limits, SandboxPool

ROOT = Path(__file__).resolve().parent.parent
LIMITS = Limits(cpu_s=20, wall_s=120)


class Row(NamedTuple):
    name: str
    program: str
    tests: FunctionTests


def rows(folder: Path) -> dict[str, list[Row]]:
    """Return the rows by data set. Row 367 of MBPP lacks the trees that its tests use."""
    humaneval = []
    for row in map(json.loads, (folder / "humaneval.jsonl").open()):
        tests = FunctionTests(row["entry_point"], row["test"], "check", setup=row["prompt"], limits=LIMITS)
        humaneval.append(Row(row["task_id"], row["prompt"] + row["canonical_solution"], tests))
    mbpp = []
    for row in map(json.loads, (folder / "mbpp_test.jsonl").open()):
        text = "\n".join(row["test"])
        names = [node.name for node in ast.parse(row["code"]).body if isinstance(node, ast.FunctionDef)]
        entry = next(name for name in names if re.search(rf"\b{name}\b", text))
        if row["task_id"] != 367:
            mbpp.append(
                Row(str(row["task_id"]), row["code"], FunctionTests(entry, text, limits=LIMITS, style="assert"))
            )
    large = [list(range(number, 41_000 + number)) for number in range(3)]
    sums = "\n".join(f"assert f({values}) == {values[::-1]}" for values in large[:1])
    texts = f"inputs = {large[1]}\nassert f(inputs)[0] == inputs[-1]\nassert f([1, 2]) == [2, 1]"
    program = "def f(values):\n    return values[::-1]"
    literal = [Row(name, program, FunctionTests("f", text, "assert", limits=LIMITS)) for name, text in
               (("argument and result", sums), ("kept by the test", texts))]  # fmt: skip
    return {"HumanEval": humaneval, "MBPP": mbpp, "literals of 282 kB": literal}


def plain(row: Row) -> float:
    """Return the seconds of plain Python."""
    end = f"\ncheck({row.tests.entry_point})\n" if row.tests.style == "check" else ""
    began = time.perf_counter()
    text = f"{row.program}\n{row.tests.test}{end}".encode()
    subprocess.run([sys.executable, "-"], input=text, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


async def measure(pool: SandboxPool, kinds: dict[str, list[Row]]) -> None:
    print(
        "| rows | paid | ours p50, ms | ours p95, ms | plain p50, ms | ratio of p50 |\n|---|---:|---:|---:|---:|---:|"
    )
    for kind, found in kinds.items():
        own, other, refused = [], [], []
        for row in found:
            began = time.perf_counter()
            verdict = await grade_program(pool, row.program, row.tests)
            own.append(time.perf_counter() - began)
            other.append(plain(row))
            refused += [] if verdict.correct else [row.name]
        ours, theirs = statistics.median(own), statistics.median(other)
        p95 = sorted(own)[int(0.95 * len(own))]
        print(
            f"| {kind} | {len(found) - len(refused)} of {len(found)} | {1000 * ours:.0f} | {1000 * p95:.0f} "
            f"| {1000 * theirs:.0f} | {ours / theirs:.1f} |",
            *refused,
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the two files")
    parser.add_argument("--every", type=int, default=1, help="measure one row of this many")
    options = parser.parse_args()
    with SandboxPool() as pool:
        kinds = {kind: found[:: options.every if len(found) > 9 else 1] for kind, found in rows(options.data).items()}
        asyncio.run(measure(pool, kinds))


if __name__ == "__main__":
    main()
