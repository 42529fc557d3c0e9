"""Measure MiniWoB tasks in ``rllm/MiniWoB-…-v0`` and BrowserGym: latency of a reset and of a step, steps per second.

    python benchmarks/web.py --peer-python PATH/TO/python [--rounds 3] [--seconds 20] [--contexts 1 4 16] [--write]

Both sides play click-test, click-checkboxes and login-user with the same script, on the pages of the PyPI package
``miniwob`` and in the same Chromium, in text. An episode is a reset, its steps and releasing its resources. Every
episode has its own context on our side, and its own browsers in BrowserGym, as its reset does. The sides alternate;
the median of the rounds counts. An additional context is an additional environment on the event loop for us and an
additional process for BrowserGym, whose Playwright is synchronous.

BrowserGym sleeps on purpose: 0.5 s before each observation and 0.1 s in each operation of its MiniWoB tasks
(``pre_observation_delay``, ``slow_mo``), so that pages come to rest. It is measured unchanged and with both delays
disabled. It takes a screenshot in every step, which cannot be disabled; our side takes none in text mode.

BrowserGym needs a separate interpreter (``pip install browsergym-miniwob==0.14.3 miniwob==1.1.0``). It launches the
browser of ``playwright install chromium``; this benchmark puts a script that starts the system's Chromium there.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parent.parent
SIDES = ROOT / "benchmarks" / "web_sides"
RESULTS = ROOT / "benchmarks" / "results" / "web.md"
sys.path[:0] = [str(ROOT), str(SIDES)]

import gymnasium  # noqa: E402
from scripted import TASKS, number_of, solve  # noqa: E402

import rllm_gym  # noqa: E402, F401  registers the ids
from rllm_gym.envs.web.browser.executable import find_chromium  # noqa: E402

DEADLINE_S = 120.0
LEAST_RATIO = 10.0


@dataclass
class Tally:
    """The result of one side in one round, for one number of contexts."""

    resets: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    episodes: int = 0
    won: int = 0
    wall: float = 0.0

    def add(self, report: dict[str, Any]) -> None:
        self.resets.append(report["reset"])
        self.steps.extend(report["steps"])
        self.episodes += 1
        self.won += report["reward"] > 0

    @property
    def steps_per_second(self) -> float:
        return len(self.steps) / self.wall


class Player(Protocol):
    """Plays one episode at a time."""

    async def play(self, task: str, seed: int) -> dict[str, Any]: ...


class Ours:
    """One environment of this project per task, on this event loop."""

    def __init__(self) -> None:
        self._envs = {task: gymnasium.make(f"rllm/MiniWoB-{task}-v0").unwrapped for task in TASKS}

    async def play(self, task: str, seed: int) -> dict[str, Any]:
        env: Any = self._envs[task]
        clock = time.perf_counter
        began = clock()
        observation, _ = await env.async_reset(seed=seed)
        reset, steps, reward = clock() - began, [], 0.0
        for move in solve(task, env.goal):
            number = number_of(move, observation)
            action = f"click({number})" if move.text is None else f"fill({number}, {json.dumps(move.text)})"
            began = clock()
            observation, reward, terminated, truncated, _ = await env.async_step(action)
            steps.append(clock() - began)
            if terminated or truncated:
                break
        await env.async_close()
        return {"reset": reset, "steps": steps, "reward": reward}


class BrowserGym:
    """A process with BrowserGym's environments."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, python: str, browsers: Path, *, sleeps: bool) -> tuple[BrowserGym, str]:
        process = await asyncio.create_subprocess_exec(
            *(python, str(SIDES / "browsergym_side.py"), json.dumps({"sleeps": sleeps})),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "PLAYWRIGHT_BROWSERS_PATH": str(browsers)},
        )
        self = cls(process)
        return self, (await self._read_reply())["ready"]

    async def play(self, task: str, seed: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"task": task, "seed": seed}).encode() + b"\n")
        return await self._read_reply()

    async def _read_reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), DEADLINE_S)
        if not line:
            raise RuntimeError(f"a BrowserGym process ended with code {await self._process.wait()}")
        return json.loads(line)  # type: ignore[no-any-return]

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 20)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


async def race(players: list[Player], seconds: float, seeds: Iterator[int]) -> Tally:
    """Let all players play episodes until the time is up. Episodes running at that time are finished, and counted with
    their full duration."""
    tally = Tally()
    for player in players:  # warm-up of processes, browsers and caches
        await player.play(TASKS[0], 0)
    began = time.perf_counter()

    async def keep_playing(player: Player) -> None:
        while time.perf_counter() - began < seconds:
            seed = next(seeds)
            tally.add(await player.play(TASKS[seed % len(TASKS)], seed))

    await asyncio.gather(*(keep_playing(player) for player in players))
    tally.wall = time.perf_counter() - began
    return tally


def browsers_for_the_peer(folder: Path, python: str, chromium: str) -> Path:
    """Create the folder in which the peer's Playwright looks for Chromium, with a script that starts ours."""
    script = (
        "import json, pathlib, playwright;"
        "p = pathlib.Path(playwright.__file__).parent / 'driver/package/browsers.json';"
        "print(next(b['revision'] for b in json.loads(p.read_text())['browsers'] if b['name'] == 'chromium'))"
    )
    revision = subprocess.run([python, "-c", script], check=True, capture_output=True, text=True).stdout.strip()
    place = folder / f"chromium-{revision}" / "chrome-linux" / "chrome"
    place.parent.mkdir(parents=True)
    # As root, Chromium starts only with --no-sandbox, which Playwright does not pass to the browser of BrowserGym's
    # chat.
    place.write_text(f'#!/bin/sh\nexec {chromium} --no-sandbox "$@"\n')
    place.chmod(0o755)
    return folder


async def measure(args: argparse.Namespace) -> tuple[dict[tuple[str, int], list[Tally]], str]:
    folder = Path(tempfile.mkdtemp(prefix="rllm-gym-web-"))
    seeds = itertools.count(1)
    found: dict[tuple[str, int], list[Tally]] = {}
    version = "not measured"
    try:
        browsers = browsers_for_the_peer(folder, args.peer_python, str(find_chromium()))
        for number, contexts in itertools.product(range(args.rounds), args.contexts):
            for side in ("ours", "BrowserGym", "BrowserGym without delays"):
                async with AsyncExitStack() as stack:
                    players: list[Player] = []
                    for _ in range(contexts):
                        if side == "ours":
                            players.append(Ours())
                        else:
                            peer, version = await BrowserGym.start(
                                args.peer_python, browsers, sleeps=side == "BrowserGym"
                            )
                            stack.push_async_callback(peer.close)
                            players.append(peer)
                    tally = await race(players, args.seconds, seeds)
                found.setdefault((side, contexts), []).append(tally)
                print(
                    f"round {number + 1}/{args.rounds}, {contexts:2} contexts, {side:22}: "
                    f"{tally.steps_per_second:6.2f} steps/s, {tally.won}/{tally.episodes} episodes won",
                    flush=True,
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found, version


def report(found: dict[tuple[str, int], list[Tally]], version: str, args: argparse.Namespace) -> str:
    def median(side: str, contexts: int, figure: str) -> float:
        tallies = found[side, contexts]
        if figure == "steps/s":
            return statistics.median(tally.steps_per_second for tally in tallies)
        return 1000 * statistics.median(value for tally in tallies for value in getattr(tally, figure))

    lines = [
        "# MiniWoB compared with BrowserGym",
        "",
        f"`python benchmarks/web.py --rounds {args.rounds} --seconds {args.seconds:g}` with {version}; "
        f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores. "
        "Medians; wall time. Every episode has its own browser context. For BrowserGym's delays see the docstring of "
        "the "
        "script.",
        "",
        "| contexts | side | reset, ms | step, ms | steps/s | ours / this side | episodes won |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for contexts in args.contexts:
        ours = median("ours", contexts, "steps/s")
        for side in ("ours", "BrowserGym", "BrowserGym without delays"):
            rate = median(side, contexts, "steps/s")
            won = sum(tally.won for tally in found[side, contexts])
            episodes = sum(tally.episodes for tally in found[side, contexts])
            reset, step = median(side, contexts, "resets"), median(side, contexts, "steps")
            lines.append(
                f"| {contexts} | {side} | {reset:.0f} | {step:.0f} | {rate:.2f} | {ours / rate:.1f} "
                f"| {won} of {episodes} |"
            )
    best = {side: max(median(side, contexts, "steps/s") for contexts in args.contexts) for side, _ in found}
    lines += ["", "Highest throughput of each side over all numbers of contexts:", ""]
    for side in ("BrowserGym", "BrowserGym without delays"):
        ratio = best["ours"] / best[side]
        verdict = f"target at least {LEAST_RATIO:g}: {'met' if ratio >= LEAST_RATIO else 'NOT MET'}"
        lines.append(f"- ours {best['ours']:.2f} steps/s, {side} {best[side]:.2f}: {ratio:.1f} times ({verdict})")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer-python", required=True, help="an interpreter with browsergym-miniwob 0.14.3")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each side in each round")
    parser.add_argument("--contexts", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    args = parser.parse_args()
    found, version = asyncio.run(measure(args))
    text = report(found, version, args)
    print(text)
    if args.write:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
