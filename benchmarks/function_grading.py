"""Measure what a verdict by function tests costs against plain Python, and that reference solutions are paid.

Rows: the reference solutions of HumanEval and MBPP with their tests; rows of the shape of MBPP+ with literals of
several sizes; and a test with one literal that never reaches the program. Plain Python is one process per program with
its tests in it. The two alternate, row by row.

Processor time is that of the kernel's task clock for this process and all that it starts: the caller, both sandboxes of
a program, and the workers that prepare them. It needs the right to use ``perf_event_open`` (root, or
``kernel.perf_event_paranoid`` of at most 2).

    python benchmarks/function_grading.py [--data ../shared/data] [--every 1] [--write]
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import ctypes
import json
import os
import platform
import re
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from rllm_gym.grading.code import FunctionTests, grade_program
from rllm_gym.sandbox import Limits, SandboxPool

ROOT = Path(__file__).resolve().parent.parent
LIMITS = Limits(cpu_s=20, wall_s=120)
SETTLE_S = 0.1
LITERAL_RUNS = 6
RESULT = ROOT / "benchmarks" / "results" / "function_grading.md"


class ProcessorTime:
    """The seconds of processor time of this process and of all processes that it starts from now on."""

    _PERF_EVENT_OPEN = 298  # on x86-64
    _SOFTWARE, _TASK_CLOCK, _INHERIT = 1, 1, 1 << 1

    def __init__(self) -> None:
        size = 112
        wanted = bytearray(size)
        struct.pack_into("=IIQ", wanted, 0, self._SOFTWARE, size, self._TASK_CLOCK)
        struct.pack_into("=Q", wanted, 40, self._INHERIT)
        attributes = (ctypes.c_char * size).from_buffer(wanted)
        self._file = ctypes.CDLL(None, use_errno=True).syscall(self._PERF_EVENT_OPEN, attributes, 0, -1, -1, 0)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "perf_event_open")

    def now(self) -> float:
        return float(struct.unpack("Q", os.read(self._file, 8))[0]) / 1e9


MBPP_PLUS = """
def is_floats(x):
    return isinstance(x, float)

def assertion(out, exp, atol):
    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if out != exp and atol != 0:
        assert abs(out - exp) <= atol
    else:
        assert out == exp, f"out: {{out}}, exp: {{exp}}"

inputs = {inputs}
results = {results}
for i, (inp, exp) in enumerate(zip(inputs, results)):
    assertion(f(*inp), exp, 0)
"""


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
    found = {"HumanEval": humaneval, "MBPP": mbpp}
    program = "def f(values, step=-1):\n    return values[::step]"
    for kilobytes in (66, 282, 1000):
        name = f"of {kilobytes} kB"
        values = list(range(100_000, 100_000 + 125 * kilobytes))
        kept = f"known = {values}\nassert f([1, 2]) == [2, 1]\nassert f(known[:3]) == known[2::-1]"
        inputs = [[values[number : number + 3 * kilobytes], -1] for number in range(20)]
        plus = MBPP_PLUS.format(inputs=inputs, results=[case[::step] for case, step in inputs])
        for kind, text in (("a literal", kept), ("MBPP+ row", plus)):
            tests = FunctionTests("f", text, "assert", limits=LIMITS)
            found[f"{kind} {name}"] = [Row(name, program, tests)] * LITERAL_RUNS
    small = [[[number, number + 1], -1] for number in range(1000)]
    plus = MBPP_PLUS.format(inputs=small, results=[case[::step] for case, step in small])
    row = Row("of 1,000 small cases", program, FunctionTests("f", plus, "assert", limits=LIMITS))
    return found | {"MBPP+ row of 1,000 small cases": [row] * LITERAL_RUNS}


def plain(row: Row) -> None:
    """Run a program with its tests in plain Python."""
    end = f"\ncheck({row.tests.entry_point})\n" if row.tests.style == "check" else ""
    text = f"{row.program}\n{row.tests.test}{end}".encode()
    subprocess.run([sys.executable, "-"], input=text, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


async def measure(pool: SandboxPool, clock: ProcessorTime, kinds: dict[str, list[Row]]) -> list[str]:
    """Return the lines of the table."""
    lines = [
        "| rows | paid | ours, ms of processor | plain, ms of processor | ratio | ours p50, ms | ours p95, ms "
        "| plain p50, ms |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for kind, found in kinds.items():
        refused = []
        wall: tuple[list[float], list[float]] = ([], [])
        processor = [0.0, 0.0]
        for row in found:
            began, used = time.perf_counter(), clock.now()
            verdict = await grade_program(pool, row.program, row.tests)
            wall[0].append(time.perf_counter() - began)
            # The workers may still prepare the next program, which belongs to this verdict.
            await asyncio.sleep(SETTLE_S)
            middle, between = time.perf_counter(), clock.now()
            plain(row)
            wall[1].append(time.perf_counter() - middle)
            processor[0] += between - used
            processor[1] += clock.now() - between
            refused += [] if verdict.correct else [row.name]
        ours, theirs = (1000 * seconds / len(found) for seconds in processor)
        p95 = sorted(wall[0])[int(0.95 * len(wall[0]))]
        lines.append(
            f"| {kind} | {len(found) - len(refused)} of {len(found)} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} "
            f"| {1000 * statistics.median(wall[0]):.0f} | {1000 * p95:.0f} | {1000 * statistics.median(wall[1]):.0f} |"
        )
        print(lines[-1], *refused, flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the two files")
    parser.add_argument("--every", type=int, default=1, help="measure one row of this many")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.relative_to(ROOT)}")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    clock = ProcessorTime()
    with SandboxPool() as pool:
        kinds = {
            kind: found[:: options.every] if len(found) > LITERAL_RUNS else found
            for kind, found in rows(options.data).items()
        }
        for row in kinds["MBPP"][:8]:  # the workers start
            asyncio.run(grade_program(pool, row.program, row.tests))
        lines = asyncio.run(measure(pool, clock, kinds))
        tier = pool.tier.value
    if options.write:
        head = [
            "# Cost of a verdict by function tests",
            "",
            f"By `python benchmarks/function_grading.py --every {options.every} --write`, whose docstring describes "
            "the measurements.",
            "",
            f"Python {platform.python_version()}, {os.cpu_count()} cores, tier {tier}, load average {load:.1f} at "
            "the start.",
            "",
        ]
        RESULT.write_text("\n".join([*head, *lines]) + "\n", "utf-8")


if __name__ == "__main__":
    main()
