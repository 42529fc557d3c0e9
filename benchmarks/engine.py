"""Measure the engine's overhead and its concurrency with slow environments, against GEM's vector env and rLLM's loop.

    python benchmarks/engine.py                  # prints the tables; --write also writes them to benchmarks/results

No model and no tokenizer: a scripted sampler answers at once, so that rendering and sampling cost nothing.

- *Overhead*: 64 environments that answer at once, 10 turns per episode. Processor time of the whole process per turn:
  agent, messages, sampler, the switch to a worker thread and back, deadlines, the record of the episode. *Inline* is
  the engine with workers that call the environment in the thread of the event loop: what is more costs the threads.
- *Demo*: one collection of ``make demo``, 128 episodes of FrozenLake at once, with random moves. Processor seconds of
  the whole process, interleaved with the same engine inline.
- *Concurrency*: 64 environments whose step takes 20 ms (sleeping), 25 turns per episode, 64 episodes; once always
  20 ms, once between 1 and 39 ms. The fraction of the ideal is the time the environments took, over 64 times the wall
  time. The bare threads only sleep: they show the limit of this machine.

Peers: GEM's ``AsyncVectorEnv`` (gem-llm 0.1.0, in ``.venvs/peers``, a thread pool stepped in lockstep, without the
agent and the scripted sampler: its figure is stepping only); and rLLM's loop, rebuilt from its deleted
``AgentExecutionEngine``: one task per episode, ``run_in_executor`` and ``wait_for`` for each step, a thread pool of 64;
that loop records no tokens and no faults, and has no deadline on reset or close.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

EPISODES, TURNS, SLOW_TURNS, STEP = 64, 10, 25, 0.020
RESULTS = Path(__file__).parent / "results" / "engine.md"
Figures = dict[str, float]


def nap(rng: random.Random, varied: bool) -> float:
    """Return the seconds that one step sleeps; 20 ms on average."""
    return rng.uniform(0.05, 1.95) * STEP if varied else STEP


class Nap:
    """The environment, without the base class of either side."""

    def __init__(self, mode: str, turns: int) -> None:
        self.mode, self.turns = mode, turns

    def restart(self, seed: int) -> None:
        self.turn, self.rng, self.slept = 0, random.Random(seed), 0.0

    def act(self) -> bool:
        if self.mode != "instant":
            seconds = nap(self.rng, self.mode == "varied")
            self.slept += seconds
            time.sleep(seconds)
        self.turn += 1
        return self.turn >= self.turns


def slept(mode: str, turns: int) -> float:
    """Return the total sleeping time of all episodes, computed from the same random numbers."""
    total = 0.0
    for episode in range(EPISODES):
        rng = random.Random(episode)
        total += sum(nap(rng, mode == "varied") for _ in range(turns))
    return total


def call_inline() -> None:
    """Let the workers in threads of this process call the environment in the thread of the event loop."""
    from rllm_gym.runtime.request_handler import WorkRequest
    from rllm_gym.runtime.thread_worker import ThreadWorker

    async def acall(worker: ThreadWorker, request: WorkRequest, timeout: float) -> Any:  # noqa: ASYNC109 - its interface
        return worker.handler.handle(request)

    ThreadWorker.acall = acall  # type: ignore[assignment, method-assign]


def demo_collection() -> tuple[Any, Callable[[], None]]:
    from rllm_gym.agents import FrozenLakeAgent
    from rllm_gym.engine import AgentExecutionEngine, EpisodeSpec
    from rllm_gym.samplers import ScriptedSampler
    from trainers.config import TrainConfig
    from trainers.config_loading import load_yaml

    config = load_yaml(TrainConfig, "frozen_lake_full")
    moves = random.Random(0)
    engine = AgentExecutionEngine(
        env=config.env.id,
        env_kwargs={**config.env.kwargs, **config.env.train_kwargs},
        sampler=ScriptedSampler(lambda request: moves.choice(["```up```", "```down```", "```left```", "```right```"])),
        agent=lambda: FrozenLakeAgent(**config.env.agent_kwargs),
        n_parallel=config.env.parallel,
    )
    specs = [EpisodeSpec(task=number // 8, seed=number) for number in range(128)]

    def play() -> None:
        moves.seed(0)
        engine.run_sync(specs)

    return engine, play


def figures(mode: str, context: Callable[[], None], turns: int) -> Figures:
    cpu, wall = time.process_time(), time.perf_counter()
    context()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    if mode == "demo":
        return {"cpu": cpu}
    share = slept(mode, turns) / (EPISODES * wall) if mode != "instant" else 0.0
    return {"cpu": cpu / (EPISODES * turns) * 1e3, "share": share}


# This project's side


def our_engine(mode: str, turns: int, workers: str) -> tuple[Any, Callable[[], None]]:
    import gymnasium

    from rllm_gym.core import Text
    from rllm_gym.engine import AgentExecutionEngine, EpisodeSpec
    from rllm_gym.samplers import ScriptedSampler

    class Env(gymnasium.Env[str, str]):
        def __init__(self) -> None:
            self.observation_space = Text(100)
            self.action_space = Text(100)
            self.nap = Nap(mode, turns)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
            super().reset(seed=seed)
            self.nap.restart(seed or 0)
            return "go on", {}

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            return "go on", 0.0, self.nap.act(), False, {}

    engine = AgentExecutionEngine(
        env=Env, sampler=ScriptedSampler(lambda request: "on"), n_parallel=EPISODES, workers=workers, reuse_envs=True
    )
    specs = [EpisodeSpec(seed=number) for number in range(EPISODES)]

    def play() -> None:
        episodes = engine.run_sync(specs)
        assert all(episode.num_turns == turns for episode in episodes)

    return engine, play


def bare_threads(mode: str, turns: int) -> None:
    def work(seed: int) -> None:
        env = Nap(mode, turns)
        env.restart(seed)
        while not env.act():
            pass

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(EPISODES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def rllm_loop(mode: str, turns: int) -> None:
    async def episode(executor: ThreadPoolExecutor, seed: int) -> None:
        loop = asyncio.get_running_loop()
        env = Nap(mode, turns)
        await loop.run_in_executor(executor, env.restart, seed)
        messages: list[dict[str, str]] = [{"role": "user", "content": "go on"}]
        done = False
        while not done:
            prompt = [dict(message) for message in messages]
            assert prompt
            messages.append({"role": "assistant", "content": "on"})
            done = await asyncio.wait_for(loop.run_in_executor(executor, env.act), timeout=60)
            messages.append({"role": "user", "content": "go on"})

    async def play() -> None:
        with ThreadPoolExecutor(EPISODES) as executor:
            await asyncio.gather(*(episode(executor, seed) for seed in range(EPISODES)))

    asyncio.run(play())


# The peer's side, in its own virtual environment


def gem_vector(mode: str, turns: int) -> tuple[Any, Callable[[], None]]:
    from gem.core import Env
    from gem.vector.async_vector_env import AsyncVectorEnv

    class Gem(Env):  # type: ignore[misc]
        def __init__(self) -> None:
            self.nap = Nap(mode, turns)

        def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
            self.nap.restart(seed or 0)
            return "go on", {}

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            return "go on", 0.0, self.nap.act(), False, {}

        def sample_random_action(self) -> str:
            return ""

    vector = AsyncVectorEnv(env_ids=["nap"] * EPISODES, env_fns=[Gem] * EPISODES)

    def play() -> None:
        vector.reset(seed=0)
        for _ in range(turns):
            vector.step(["on"] * EPISODES)

    return vector, play


# Measuring


def measure(side: str, mode: str, rounds: int) -> list[Figures]:
    """Run each side in a new process, so that its threads cannot disturb the other side."""
    turns = TURNS if mode == "instant" else SLOW_TURNS
    engine: Any = None
    if side == "inline":
        call_inline()
    if side in ("thread", "inline", "process"):
        workers = "process" if side == "process" else "thread"
        engine, play = demo_collection() if mode == "demo" else our_engine(mode, turns, workers)
        engine.__enter__()
    elif side == "gem":
        _, play = gem_vector(mode, turns)
    else:
        play = {"bare": lambda: bare_threads(mode, turns), "rllm": lambda: rllm_loop(mode, turns)}[side]
    play()  # warm-up: workers start, imports happen
    repeat = {"instant": 10, "demo": 3}.get(mode, 1)
    results = []
    for _ in range(rounds):
        batch = [figures(mode, play, turns) for _ in range(repeat)]
        results.append({name: statistics.fmean(figure[name] for figure in batch) for name in batch[0]})
    if engine is not None:
        engine.__exit__(None, None, None)
    return results


def ask(python: str, side: str, mode: str, rounds: int) -> list[Figures]:
    command = [python, __file__, "--side", side, "--mode", mode, "--rounds", str(rounds)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    return json.loads(answer.stdout.splitlines()[-1])  # type: ignore[no-any-return]


NAMES = {
    "thread": '**engine, workers="thread"**',
    "inline": "the same, inline: no thread, no deadline",
    "process": '**engine, workers="process"**',
    "rllm": "rLLM's loop (run_in_executor, rebuilt)",
    "gem": "GEM AsyncVectorEnv (lockstep, stepping only)",
    "bare": "bare threads, only sleeping",
}


def report(rounds: int) -> str:
    from env_stepping import peers_python

    peers = str(peers_python())
    python = {side: peers if side == "gem" else sys.executable for side in NAMES}
    cpu: dict[str, float] = {}
    share: dict[str, dict[str, float]] = {"fixed": {}, "varied": {}}
    for side in ("thread", "inline", "process", "rllm", "gem"):
        cpu[side] = statistics.median(result["cpu"] for result in ask(python[side], side, "instant", rounds))
    demo: dict[str, list[float]] = {"thread": [], "inline": []}
    for _ in range(rounds):
        for side, seconds in demo.items():
            seconds += [result["cpu"] for result in ask(sys.executable, side, "demo", 1)]
    threads, inline = (statistics.median(seconds) for seconds in demo.values())
    for mode, shares in share.items():
        for side in NAMES:
            if side == "inline":
                continue
            shares[side] = statistics.median(result["share"] for result in ask(python[side], side, mode, rounds))
    # On a shared machine, `chrt -r 10 python benchmarks/engine.py` excludes the load of other processes.
    priority = ", with real-time priority" if os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO) else ""
    lines = [
        "# Overhead and concurrency of the engine",
        "",
        "By `python benchmarks/engine.py --write`, whose docstring describes the measurements.",
        "",
        f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, load average "
        f"{os.getloadavg()[0]:.1f}{priority}; median of {rounds} rounds.",
        "",
        "| 64 instant environments, 10 turns | process CPU per turn, ms | × ours |",
        "|---|---:|---:|",
    ]
    lines += [f"| {NAMES[side]} | {value:.3f} | {value / cpu['thread']:.2f} |" for side, value in cpu.items()]
    lines += [
        "",
        "| one collection of `make demo`, 128 episodes | process CPU, s |",
        "|---|---:|",
        f"| {NAMES['thread']} | {threads:.3f} |",
        f"| {NAMES['inline']} | {inline:.3f} |",
        "",
        "| 64 environments of 20 ms, 25 turns | fraction of the ideal, 20 ms | 1 to 39 ms |",
        "|---|---:|---:|",
    ]
    lines += [
        f"| {NAMES[side]} | {share['fixed'][side]:.1%} | {share['varied'][side]:.1%} |" for side in share["fixed"]
    ]
    passed = [
        (f"at most 0.3 ms of processor time per turn: {cpu['thread']:.3f}", cpu["thread"] <= 0.3),
        (
            f"the threads cost at most 0.5 s of processor time per collection of the demo: {threads - inline:.3f}",
            threads - inline <= 0.5,
        ),
        (
            f"at least 90 % of the ideal concurrency at 20 ms: {share['fixed']['thread']:.1%}",
            share["fixed"]["thread"] >= 0.9,
        ),
    ]
    lines += ["", *(f"- {text} ({'reached' if reached else 'NOT reached'})." for text, reached in passed)]
    lines += [
        f"- environments of varied speed: {share['varied']['thread'] / share['varied']['gem']:.2f} × the throughput of "
        "GEM's lockstep.",
        "- With processes only this process's time is counted, not the workers'.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    parser.add_argument("--side", choices=sorted(NAMES), help=argparse.SUPPRESS)
    parser.add_argument("--mode", choices=["instant", "demo", "fixed", "varied"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options.side, options.mode, options.rounds)))
        return
    text = report(options.rounds)
    print(text)
    if options.write:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
