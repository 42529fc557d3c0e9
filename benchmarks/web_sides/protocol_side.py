"""Plays MiniWoB episodes with the browser's protocol on its own connection, or through Playwright's driver.

Commands and results are lines of JSON; ``benchmarks/web_protocol.py`` starts one process per side.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
from playwright_protocol import use_playwright
from scripted import TASKS, number_of, solve

import rllm_gym  # noqa: F401  registers the ids

_TICKS = os.sysconf("SC_CLK_TCK")


def driver_seconds() -> float:
    """Return processor seconds of Playwright's drivers, which are children of this process; without their browsers."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid() and b"run-driver" in (stat.parent / "cmdline").read_bytes():
                ticks += int(fields[11]) + int(fields[12])
        except OSError:
            continue  # it ended meanwhile
    return ticks / _TICKS


async def play(env: Any, task: str, seed: int) -> tuple[int, float]:
    """Play an episode; return its number of steps and its reward."""
    observation, _ = await env.async_reset(seed=seed)
    steps, reward = 0, 0.0
    for move in solve(task, env.goal):
        number = number_of(move, observation)
        action = f"click({number})" if move.text is None else f"fill({number}, {json.dumps(move.text)})"
        observation, reward, terminated, truncated, _ = await env.async_step(action)
        steps += 1
        if terminated or truncated:
            break
    await env.async_close()
    return steps, reward


async def main() -> None:
    if sys.argv[1] == "playwright":
        use_playwright()
    envs: dict[str, list[Any]] = {
        task: [gymnasium.make(f"rllm/MiniWoB-{task}-v0").unwrapped for _ in range(int(sys.argv[2]))] for task in TASKS
    }

    async def play_all(place: int, places: int, seeds: list[int]) -> list[tuple[int, float]]:
        return [await play(envs[task][place], task, seed) for seed in seeds[place::places] for task in TASKS]

    await play_all(0, 1, [0])  # starts the browser, fills caches
    print(json.dumps("ready"), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        seeds, places = json.loads(line)
        cpu, driver, wall = time.process_time(), driver_seconds(), time.perf_counter()
        played = await asyncio.gather(*(play_all(place, places, seeds) for place in range(places)))
        episodes = [episode for some in played for episode in some]
        figures = {
            "process": time.process_time() - cpu,
            "driver": driver_seconds() - driver,
            "wall": time.perf_counter() - wall,
            "episodes": len(episodes),
            "steps": sum(steps for steps, _ in episodes),
            "won": sum(reward > 0 for _, reward in episodes),
        }
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
