"""Compare two ways to drive the browser of web environments: its own connection, and Playwright's driver.

    python benchmarks/web_protocol.py [--rounds 7] [--seeds 8] [--write]

Both play whole episodes of MiniWoB (click-test, click-checkboxes, login-user; reset, steps, close) through
``rllm/MiniWoB-…-v0`` with the same script, seeds, Chromium, observations, actions and JavaScript. Only the way of the
commands differs: ``rllm_gym.envs.web.browser`` writes to the browser's pipe itself (``cdp``, ``pages``); the peer uses
Playwright's contexts and pages and sends commands through its ``CDPSession``. Each way has a process; they alternate.

Processor time is that of the process with the environments plus Playwright's driver, a Node process. Chromium's own is
left out: where it is the limit, wall time shows how much the rest matters. Episodes are played one at
a time, and eight at once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIDE = ROOT / "benchmarks" / "web_sides" / "protocol_side.py"
RESULTS = ROOT / "benchmarks" / "results" / "web_protocol.md"
WAYS = {"own": "own connection", "playwright": "Playwright's driver"}
AT_ONCE = (1, 8)
LEAST_RATIO = 1.3
Found = dict[tuple[str, int], list[dict[str, float]]]


def start(way: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    side = subprocess.Popen(
        [sys.executable, str(SIDE), way, str(max(AT_ONCE))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    reply(side)
    return side


def reply(side: subprocess.Popen[str]) -> Any:
    assert side.stdout is not None
    line = side.stdout.readline()
    if not line:
        raise RuntimeError(f"a side ended with status {side.wait()}")
    return json.loads(line)


def play(side: subprocess.Popen[str], seeds: list[int], places: int) -> dict[str, float]:
    assert side.stdin is not None
    side.stdin.write(json.dumps([seeds, places]) + "\n")
    side.stdin.flush()
    figures: dict[str, float] = reply(side)
    return figures


def measure(rounds: int, seeds: int) -> Found:
    sides = {way: start(way) for way in WAYS}
    found: Found = {}
    try:
        for number, places in itertools.product(range(rounds), AT_ONCE):
            for way, side in sides.items():
                figures = play(side, [1 + number * seeds + seed for seed in range(seeds)], places)
                found.setdefault((way, places), []).append(figures)
                print(way, places, figures, flush=True)
    finally:
        for side in sides.values():
            assert side.stdin is not None
            side.stdin.close()
            side.wait(60)
    return found


def report(found: Found, options: argparse.Namespace, load: float) -> str:
    def median(way: str, places: int, what: str, unit: str = "episodes") -> float:
        return 1000 * statistics.median(
            sum(figures[name] for name in what.split("+")) / figures[unit] for figures in found[way, places]
        )

    lines = [
        "# The browser's protocol: own connection and Playwright's driver",
        "",
        "By `python benchmarks/web_protocol.py --write`, whose docstring describes the measurements.",
        "",
        f"Playwright {version('playwright')}, CPython {platform.python_version()}, {os.cpu_count()} cores, load "
        f"average {load:.1f}; medians of {options.rounds} alternating rounds of {3 * options.seeds} episodes, in ms.",
        "",
        "| at once | way | CPU per episode | of it the driver | CPU per step, resets included | wall per episode "
        "| CPU, this / own | wall, this / own | episodes won |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    verdicts = []
    for places, (way, name) in itertools.product(AT_ONCE, WAYS.items()):
        cpu, wall = (median(way, places, what) for what in ("process+driver", "wall"))
        own_cpu, own_wall = (median("own", places, what) for what in ("process+driver", "wall"))
        won, episodes = (int(sum(figures[key] for figures in found[way, places])) for key in ("won", "episodes"))
        lines.append(
            f"| {places} | {name} | {cpu:.1f} | {median(way, places, 'driver'):.1f} "
            f"| {median(way, places, 'process+driver', 'steps'):.1f} | {wall:.0f} | {cpu / own_cpu:.2f} "
            f"| {wall / own_wall:.2f} | {won} of {episodes} |"
        )
        if way != "own":
            verdicts += [(f"{what} time, {places} at once", ratio) for what, ratio in
                         (("processor", cpu / own_cpu), ("wall", wall / own_wall))]  # fmt: skip
    lines += ["", f"An own connection stays where it makes a whole episode at least {LEAST_RATIO:g} times cheaper:", ""]
    lines += [f"- {what}: {ratio:.2f} ({'met' if ratio >= LEAST_RATIO else 'NOT MET'})" for what, ratio in verdicts]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seeds", type=int, default=8, help="episodes of each task in each round")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    text = report(measure(options.rounds, options.seeds), options, load)
    print(text)
    if options.write:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
