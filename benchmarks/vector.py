"""Measure many concurrent environments, and how much slow ones delay fast ones, against Gymnasium and GEM.

    python benchmarks/vector.py                  # prints the tables; --write also writes them to benchmarks/results

- *Uneven latency*: 64 environments whose step sleeps, lognormal, median 20 ms, 99th percentile 500 ms. Gymnasium's
  ``AsyncVectorEnv`` steps them in lockstep; ours serves each one as it answers (``send``/``recv``). Steps per second
  over the same number of seconds, and the fraction of the ideal: the time environments slept, over 64 times the wall
  time.
- *Cheap environments*: FrozenLake and Math, 1 to 256 at once. Steps per second (including resets, by autoreset), and
  the processor time per step of one environment: of the whole process tree, and of the program's own process, which
  has to train or sample meanwhile. *Overhead* is that of the tree minus the environment's own, measured alone in the
  same round.

GEM's vector environments (gem-llm 0.1.0, in ``.venvs/peers``) step its closest game (the 2 × 2 puzzle) and its
``MathEnv`` on the same problems; they batch no infos and no spaces. Its asynchronous one cannot step its ``MathEnv``,
whose grader sets signal handlers, which is only possible in a main thread. Each side runs in its own process,
alternating.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "vector.md"
SLEEPERS, MEDIAN, P99 = 64, 0.020, 0.500
SIZES = (1, 4, 16, 64, 256)
PROBLEMS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(3, 43) for b in (5, 12, 31)]
REPLIES = {"FrozenLake": ("I go ```down```", "I go ```up```"), "Math": ("\\boxed{17}", "The answer is \\boxed{8}.")}
GEM_REPLIES = {"FrozenLake": ("\\boxed{down}", "\\boxed{up}"), "Math": REPLIES["Math"]}
OURS = ("ours, thread", "ours, process", "Gymnasium Sync", "Gymnasium Async")
GEMS = {"FrozenLake": ("GEM Sync", "GEM Async"), "Math": ("GEM Sync",)}
BARE = "a single environment"

Step = Callable[[], None]


# Uneven latency


def sleeper(asynchronous: bool = False) -> Any:
    """Create an environment that sleeps at every step and reports how long."""
    import asyncio
    import math

    import gymnasium

    from rllm_gym.core import AsyncTextEnv, Outcome, Task, Text

    sigma = math.log(P99 / MEDIAN) / statistics.NormalDist().inv_cdf(0.99)

    class Sleeper(gymnasium.Env[str, str]):
        observation_space, action_space = Text(10), Text(10)
        metadata: dict[str, Any] = {}  # noqa: RUF012

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            super().reset(seed=seed)
            return "", {"slept": 0.0}

        def step(self, action: str) -> Any:
            begin = time.perf_counter()
            time.sleep(float(self.np_random.lognormal(math.log(MEDIAN), sigma)))
            return "", 0.0, False, False, {"slept": time.perf_counter() - begin}

    class AsyncSleeper(AsyncTextEnv):
        def __init__(self) -> None:
            super().__init__(tasks=[Task("sleep", "sleep")], max_turns=10**9)

        async def _async_begin(self, task: Task) -> str:
            return ""

        async def _async_act(self, action: str) -> Outcome:
            begin = time.perf_counter()
            await asyncio.sleep(float(self.np_random.lognormal(math.log(MEDIAN), sigma)))
            return Outcome("", info={"slept": time.perf_counter() - begin})

    return AsyncSleeper() if asynchronous else Sleeper()


def own_pace(workers: str, seconds: float) -> dict[str, float]:
    from rllm_gym.vector import TextVectorEnv

    envs = TextVectorEnv(
        SLEEPERS, env_id=sleeper, workers=workers, **({"asynchronous": True} if workers == "asyncio" else {})
    )
    envs.reset(seed=0)
    sent = [0.0] * SLEEPERS
    steps, slept = 0, 0.0
    begin = time.perf_counter()
    end = begin + seconds
    envs.send([""] * SLEEPERS)
    sent = [begin] * SLEEPERS
    while (now := time.perf_counter()) < end:
        try:
            received = envs.recv(timeout=end - now)
        except TimeoutError:
            break
        ids = received.env_ids.tolist()
        steps += len(ids)
        slept += float(received.infos["slept"].sum())
        envs.send([""] * len(ids), ids)
        now = time.perf_counter()
        for index in ids:
            sent[index] = now
    # Steps still sleeping are counted up to the end.
    slept += sum(end - item for item in sent if item < end)
    envs.close(terminate=True)
    return {"steps/s": steps / seconds, "share": slept / (SLEEPERS * seconds)}


def lockstep(seconds: float) -> dict[str, float]:
    import gymnasium

    envs = gymnasium.vector.AsyncVectorEnv([sleeper] * SLEEPERS, shared_memory=False)
    envs.reset(seed=0)
    steps, slept = 0, 0.0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        *_, infos = envs.step([""] * SLEEPERS)
        steps += SLEEPERS
        slept += float(infos["slept"].sum())
    wall = time.perf_counter() - begin
    envs.close()
    return {"steps/s": steps / wall, "share": slept / (SLEEPERS * wall)}


# Cheap environments


@contextmanager
def ours(name: str, env_name: str, count: int) -> Iterator[Step]:
    import gymnasium

    import rllm_gym

    assert rllm_gym.__version__
    env_id, kwargs = {
        "FrozenLake": ("rllm/FrozenLake-v0", {"p_frozen": 1.0}),
        "Math": ("rllm/Math-v0", {"tasks": PROBLEMS}),
    }[env_name]
    if name == BARE:
        single = gymnasium.make(env_id, disable_env_checker=True, **kwargs)
        single.reset(seed=0)
        turn, over = 0, False
        replies = REPLIES[env_name]

        def alone() -> None:
            nonlocal turn, over
            if over:
                single.reset()
                over = False
                return
            turn += 1
            _, _, terminated, truncated, _ = single.step(replies[turn % 2])
            over = terminated or truncated

        yield alone
        single.close()
        return
    how: dict[str, dict[str, Any]] = {
        "ours, thread": {},
        "ours, process": {"workers": "process"},
        "Gymnasium Sync": {"vectorization_mode": "sync"},
        "Gymnasium Async": {"vectorization_mode": "async", "vector_kwargs": {"shared_memory": False}},
    }
    envs = gymnasium.make_vec(env_id, count, **how[name], **kwargs)
    envs.reset(seed=0)
    yield stepping(envs, REPLIES[env_name], count)
    envs.close()


@contextmanager
def gems(name: str, env_name: str, count: int) -> Iterator[Step]:
    import logging
    from functools import partial

    logging.disable(logging.CRITICAL)
    import gem
    from gem.vector.async_vector_env import AsyncVectorEnv
    from gem.vector.sync_vector_env import SyncVectorEnv
    from gem.vector.vector_env import AutoresetMode
    from gem_math import gem_math

    make = gem_math(PROBLEMS) if env_name == "Math" else partial(gem.make, "game:FifteenPuzzle-v0-easy")
    kind = SyncVectorEnv if name == "GEM Sync" else AsyncVectorEnv
    envs = kind(env_ids=[env_name] * count, env_fns=[make] * count, autoreset_mode=AutoresetMode.NEXT_STEP)
    envs.reset(seed=0)
    yield stepping(envs, GEM_REPLIES[env_name], count)


def stepping(envs: Any, replies: tuple[str, str], count: int) -> Step:
    batches = [[replies[(turn + index) % 2] for index in range(count)] for turn in (0, 1)]
    turn = 0

    def step() -> None:
        nonlocal turn
        turn += 1
        envs.step(batches[turn % 2])

    return step


def tree_seconds() -> float:
    """Return the processor time of this process and of all its living descendants."""
    total = time.process_time()
    try:
        import psutil
    except ModuleNotFoundError:  # in GEM's virtual environment, which starts no processes
        return total
    for child in psutil.Process().children(recursive=True):
        times = child.cpu_times()
        total += times.user + times.system
    return total


def measure(step: Step, count: int, seconds: float) -> tuple[float, float, float]:
    """Return steps per second of wall time, and microseconds of processor time per step: of the process tree, and of
    this process. Takes about ``seconds``.
    """
    for _ in range(3):
        step()
    batches, begin, cpu, own = 0, time.perf_counter(), tree_seconds(), time.process_time()
    while time.perf_counter() - begin < seconds:
        for _ in range(max(1, 256 // count)):
            step()
        batches += max(1, 256 // count)
    wall, own = time.perf_counter() - begin, time.process_time() - own
    steps = batches * count
    return steps / wall, (tree_seconds() - cpu) / steps * 1e6, own / steps * 1e6


def work_for(side: str) -> None:
    """Run a worker: read ``{"name", "env_name", "count", "seconds"}`` from each line, answer with the two figures."""
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        make = ours if side == "ours" else gems
        with make(request["name"], request["env_name"], request["count"]) as step:
            answer = measure(step, request["count"], request["seconds"])
        print(json.dumps(answer), flush=True)


class Worker:
    """A process of one side. Ends with the ``with`` block."""

    def __init__(self, python: Path, side: str) -> None:
        self.process = subprocess.Popen(
            [python, __file__, "--worker", side],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if side == "gems" else None,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        self._answer()

    def ask(self, **request: Any) -> tuple[float, float, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        steps, cpu, own = self._answer()
        return float(steps), float(cpu), float(own)

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            # GEM prints lines that are not JSON.
            if line[:1] in '["':
                return json.loads(line)
        raise RuntimeError(f"a worker process exited (status {self.process.wait()})")

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


# Report


def uneven(rounds: int, seconds: float) -> list[str]:
    sides: dict[str, Callable[[], dict[str, float]]] = {
        **{f"ours, {kind}": lambda kind=kind: own_pace(kind, seconds) for kind in ("thread", "process", "asyncio")},
        "Gymnasium Async, lockstep": lambda: lockstep(seconds),
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            found[name].append(run())
    rate = {name: statistics.median(item["steps/s"] for item in all_) for name, all_ in found.items()}
    share = {name: statistics.median(item["share"] for item in all_) for name, all_ in found.items()}
    peer = "Gymnasium Async, lockstep"
    rows = [f"| {name} | {rate[name]:.0f} | {rate[name] / rate[peer]:.1f} | {share[name]:.1%} |" for name in sides]
    best = rate["ours, thread"] / rate[peer]
    return [
        f"| {SLEEPERS} environments, median 20 ms, p99 500 ms | steps/s | × lockstep | fraction of the ideal |",
        "|---|---:|---:|---:|",
        *rows,
        "",
        f"- at least 5 × the lockstep: {best:.1f} × ({'reached' if best >= 5 else 'not reached'}).",
        f"- at least 95 % of the ideal: {share['ours, thread']:.1%} "
        f"({'reached' if share['ours, thread'] >= 0.95 else 'not reached'}).",
    ]


def cheap(rounds: int, seconds: float, sizes: tuple[int, ...]) -> list[str]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from env_stepping import peers_python

    found: dict[tuple[str, str, int], list[tuple[float, float, float]]] = {}
    with Worker(Path(sys.executable), "ours") as our_worker, Worker(peers_python(), "gems") as gem_worker:
        for _ in range(rounds):
            for env_name in REPLIES:
                bare = our_worker.ask(name=BARE, env_name=env_name, count=1, seconds=seconds)
                found.setdefault((BARE, env_name, 1), []).append(bare)
                for count in sizes:
                    for name in (*OURS, *GEMS[env_name]):
                        worker = our_worker if name in OURS else gem_worker
                        figures = worker.ask(name=name, env_name=env_name, count=count, seconds=seconds)
                        found.setdefault((name, env_name, count), []).append(figures)

    def median(name: str, env_name: str, count: int, figure: int) -> float:
        return statistics.median(item[figure] for item in found[name, env_name, count])

    lines = []
    for env_name in REPLIES:
        alone = median(BARE, env_name, 1, 1)
        lines += ["", f"### {env_name} (alone: {alone:.1f} µs of processor time per step)", ""]
        lines += [f"| steps/s | {' | '.join(map(str, sizes))} |", f"|---|{'---:|' * len(sizes)}"]
        for name in (*OURS, *GEMS[env_name]):
            lines.append(f"| {name} | {' | '.join(f'{median(name, env_name, count, 0):,.0f}' for count in sizes)} |")
        lines += [
            "",
            f"| µs of processor time per step | {' | '.join(map(str, sizes))} |",
            f"|---|{'---:|' * len(sizes)}",
        ]
        for name in (*OURS, *GEMS[env_name]):
            lines.append(f"| {name} | {' | '.join(f'{median(name, env_name, count, 1):.1f}' for count in sizes)} |")
        lines += [
            "",
            f"| µs of the program's own processor time per step | {' | '.join(map(str, sizes))} |",
            f"|---|{'---:|' * len(sizes)}",
        ]
        processes = ("ours, process", "Gymnasium Async")
        own_times = {name: [median(name, env_name, count, 2) for count in sizes] for name in processes}
        for name in processes:
            lines.append(f"| {name} | {' | '.join(f'{own:.1f}' for own in own_times[name])} |")
        ratios = [ours / theirs for ours, theirs in zip(*own_times.values(), strict=True)]
        lines += [f"| ratio | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |", ""]
        for count in sizes:
            (rate, own), (sync_rate, sync), (async_rate, asynchronous) = (
                [median(name, env_name, count, figure) for figure in (0, 1)]
                for name in ("ours, thread", "Gymnasium Sync", "Gymnasium Async")
            )
            lines.append(
                f"- {count} environments: overhead {own - alone:.1f} µs per step, Gymnasium Sync "
                f"{sync - alone:.1f} µs, Gymnasium Async {asynchronous - alone:.1f} µs; {rate / async_rate:.2f} × the "
                "steps/s of Async, "
                f"{rate / sync_rate:.2f} × those of Sync."
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of each measurement of cheap environments")
    parser.add_argument("--asleep", type=float, default=15.0, help="seconds of each measurement of uneven latency")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--write", action="store_true", help="also write benchmarks/results/vector.md")
    parser.add_argument("--worker", choices=["ours", "gems"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work_for(options.worker)
        return
    begin_load = os.getloadavg()[0]
    slow = uneven(options.rounds, options.asleep)
    print("\n".join(slow), flush=True)
    quick = cheap(options.rounds, options.seconds, tuple(options.sizes))
    head = (
        f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, load average "
        f"{begin_load:.1f} at the start and {os.getloadavg()[0]:.1f} at the end; medians of {options.rounds} "
        "interleaved rounds."
    )
    print("\n".join([*quick, "", head]))
    if options.write:
        title = (
            "# Vector environments\n\nBy `python benchmarks/vector.py --write`, whose docstring "
            "describes the measurements.\n"
        )
        text = "\n".join([head, "", "## Uneven latency", "", *slow, "", "## Cheap environments", *quick])
        RESULTS.write_text(f"{title}\n{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
