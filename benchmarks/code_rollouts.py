"""Measure the overhead of the engine and the environment over the sandbox: 512 episodes of rllm/Code-v0, 4 tests each.

    python benchmarks/code_rollouts.py           # prints the table; --write also writes it to benchmarks/results

The same programs are graded twice in the same run, alternating: directly in the pool with ``grade_program``, with the
engine's concurrency; and as episodes of ``AgentExecutionEngine`` with a scripted sampler (no model and no tokenizer,
so that sampling costs nothing). 5 % of the programs are hostile: endless loops, fork bombs, memory bombs, output
floods; no program occurs twice. The ratio of the rates is the fraction of the sandbox's throughput that remains with
engine, agent, parsing and environment.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from rllm_gym.engine import AgentExecutionEngine
from rllm_gym.grading.code import StdioTest, StdioTests, grade_program
from rllm_gym.samplers import SamplingRequest, ScriptedSampler
from rllm_gym.sandbox import Limits, SandboxPool, shared_pool

EPISODES, TESTS, PARALLEL, PIECES = 512, 4, 64, 8
TIME_LIMIT_S = 0.2
RESULTS = Path(__file__).parent / "results" / "code_rollouts.md"

HOSTILE = (
    "while True: pass",
    "import os\nwhile True: os.fork()",
    "x = []\nwhile True: x.append(bytearray(1 << 24))",
    "while True: print('x' * 65536)",
    "import os, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.fork() or os.setsid()\nwhile True: pass",
)


def task(number: int) -> dict[str, Any]:
    tests = [{"stdin": f"{number + k} {k}\n", "stdout": f"{number + 2 * k}\n"} for k in range(TESTS)]
    return {
        "id": str(number),
        "prompt": f"Add the two numbers of the line ({number}).",
        "kind": "stdio",
        "tests": tests,
        "cpu_s": TIME_LIMIT_S,
    }


def program(number: int) -> str:
    """Return a correct program, or (every twentieth) a hostile one."""
    if number % 20 == 7:
        return f"# {number}\n{HOSTILE[number // 20 % len(HOSTILE)]}\n"
    return f"# {number}\nimport sys\n\nfirst, second = map(int, sys.stdin.readline().split())\nprint(first + second)\n"


def is_correct(number: int) -> bool:
    return number % 20 != 7


async def run_directly(pool: SandboxPool, numbers: range) -> None:
    """Run only the programs and their tests, with as many concurrent gradings as the engine has episodes."""
    limits = Limits(cpu_s=TIME_LIMIT_S, wall_s=5 + 3 * TIME_LIMIT_S)
    semaphore = asyncio.Semaphore(PARALLEL)

    async def one(number: int) -> None:
        tests = tuple(StdioTest(test["stdin"], test["stdout"]) for test in task(number)["tests"])
        async with semaphore:
            verdict = await grade_program(
                pool, program(number), StdioTests(tests, limits=limits), stop_at_first_failure=True
            )
        assert verdict.correct == is_correct(number), verdict

    await asyncio.gather(*map(one, numbers))


def reply(request: SamplingRequest) -> str:
    prompt = request.messages[-1]["content"]
    number = int(prompt.partition("(")[2].partition(")")[0])
    return f"I add them.\n\n```python\n{program(number)}```\n"


async def episodes(engine: AgentExecutionEngine, numbers: range) -> None:
    played = await engine.run([str(number) for number in numbers])
    assert [episode.reward for episode in played] == [float(is_correct(number)) for number in numbers]
    assert not any(episode.fault for episode in played)


async def measure(rounds: int) -> tuple[list[float], list[float], str]:
    """Return the seconds of all programs, directly and as episodes, for each round."""
    pool = shared_pool()
    engine = AgentExecutionEngine(
        env="rllm/Code-v0",
        env_kwargs={"tasks": [task(number) for number in range(EPISODES)]},
        sampler=ScriptedSampler(reply),
        n_parallel=PARALLEL,
    )
    size = EPISODES // PIECES
    pieces = [range(start, start + size) for start in range(0, EPISODES, size)]
    direct: list[float] = []
    played: list[float] = []
    async with engine:
        # Warm-up: workers start, environments are created.
        await run_directly(pool, pieces[0])
        await episodes(engine, pieces[0])
        for turn in range(rounds):
            spent = {"direct": 0.0, "episodes": 0.0}
            for number, piece in enumerate(pieces):
                # They alternate, each first equally often, so that other load on the machine affects both alike.
                order = ("direct", "episodes") if (number + turn) % 2 else ("episodes", "direct")
                for side in order:
                    began = time.perf_counter()
                    await (run_directly(pool, piece) if side == "direct" else episodes(engine, piece))
                    spent[side] += time.perf_counter() - began
            direct.append(spent["direct"])
            played.append(spent["episodes"])
    return direct, played, pool.tier.value


def report(rounds: int) -> str:
    direct, played, tier = asyncio.run(measure(rounds))
    ratio = statistics.median(one / other for one, other in zip(direct, played))
    lines = [
        "# Overhead of the engine on program grading",
        "",
        "By `python benchmarks/code_rollouts.py --write`, whose docstring describes the measurements.",
        "",
        f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, load average "
        f"{os.getloadavg()[0]:.1f}; sandbox tier {tier}; {EPISODES} programs of {TESTS} tests, 5 % hostile, {PARALLEL} "
        f"concurrently; median of {rounds} rounds.",
        "",
        "| | seconds | programs/s |",
        "|---|---:|---:|",
    ]
    for name, seconds in (
        ("`grade_program`, directly in the pool", direct),
        ("episodes of `AgentExecutionEngine`", played),
    ):
        median = statistics.median(seconds)
        lines.append(f"| {name} | {median:.2f} | {EPISODES / median:.0f} |")
    lines += [
        "",
        f"- at least 90 % of the sandbox's throughput: {ratio:.1%} ({'reached' if ratio >= 0.9 else 'NOT reached'}).",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    text = report(options.rounds)
    print(text)
    if options.write:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
