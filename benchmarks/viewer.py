"""Measure `rllm-gym view` on 100,000 episodes: indexing them, opening the page, and each filter.

    python benchmarks/viewer.py            # prints the table; --write also writes it to benchmarks/results

Times are processor time of this process: of the index and the JSON of the reply, without HTTP and the browser.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rllm_gym.commands.view.episode_index import EpisodeIndex
from rllm_gym.commands.view.run_files import open_runs
from rllm_gym.core import Episode, Step, StopReason, Trajectory, TurnTokens
from rllm_gym.engine import save_episodes

RESULT = Path(__file__).parent / "results" / "viewer.md"
STEPS, GROUPS, GROUP_SIZE = 100, 125, 8
REASONS = (StopReason.SUCCESS, StopReason.FAILURE, StopReason.MAX_TURNS, StopReason.TIMEOUT)
WORDS = ["".join(letters) for letters in itertools.product("bdfgklmnprst", "aeiou", "bdfgklmnprst", ("", "er", "ing"))]
SELECTIONS: dict[str, tuple[dict[str, list[str]], str]] = {
    "all episodes": ({}, ""),
    "all, by reward": ({}, "-reward"),
    "task contains": ({"task": ["train/77"]}, ""),
    "reward from 0.3 to 0.31, by tokens": ({"reward_min": ["0.3"], "reward_max": ["0.31"]}, "tokens"),
    "stop reason, no success, at least 10 tokens": ({"stop": ["timeout"], "success": ["0"], "tokens_min": ["10"]}, ""),
    "with fault": ({"fault": ["1"]}, ""),
    "training steps from 50, by step": ({"step_min": ["50"]}, "-step"),
    "text: a word of every episode": ({"text": ["answer"]}, ""),
    "text: the beginning of words": ({"text": ["ba"]}, ""),
    "reply: two words, no success": ({"reply": ["bab fef"], "success": ["0"]}, ""),
    "reply: a phrase": ({"reply": ['"answer is 12"']}, "-reward"),
}


def write_run(folder: Path) -> int:
    """Write a run's training episodes, each of two turns with 40 sampled tokens and 100 words; return their bytes."""
    chance = random.Random(0)
    for step in range(1, STEPS + 1):
        path = folder / "episodes" / f"train-{step:06d}.jsonl"
        groups = [(f"sums/train/{chance.randrange(900)}", f"@{step - 1}.{group}") for group in range(GROUPS)]
        save_episodes(
            path,
            [episode(chance, task, f"{task}{end}", one) for task, end in groups for one in range(GROUP_SIZE)],
        )
    return sum(path.stat().st_size for path in folder.glob("episodes/*.jsonl"))


def episode(chance: random.Random, task: str, group: str, number: int) -> Episode:
    reward = chance.random()
    steps = []
    for turn in range(2):
        length = chance.randrange(10, 30)
        tokens = TurnTokens((7,) * 30, (9,) * length, (-0.123456789,) * length, advantages=(0.5,) * length)
        messages = [{"role": "user", "content": f"What is 12 + {turn}? Answer with a number and nothing else."}]
        reply = f"{' '.join(chance.choices(WORDS, k=50))}. The answer is {chance.randrange(10, 20)}."
        steps.append(Step(messages[0]["content"], messages, reply, reward=reward, tokens=tokens))
    return Episode(
        f"{group}#{number}",
        task,
        group_id=group,
        reward=reward,
        success=reward > 0.5,
        stop_reason=chance.choice(REASONS),
        trajectories=[Trajectory("agent", steps=steps)],
    )


def milliseconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return 1000 * (time.process_time() - start)


def rows(folder: Path) -> list[str]:
    size = write_run(folder / "run")
    runs = open_runs([folder / "run"])
    found = []

    def add(name: str, call: Callable[[], object]) -> None:
        found.append(f"| {name} | {milliseconds(call):,.0f} |")

    with EpisodeIndex(folder / "index.sqlite", runs) as index:
        add(f"index {STEPS * GROUPS * GROUP_SIZE:,} episodes, {size / 2**20:,.0f} MiB, the first time", index.refresh)
    with EpisodeIndex(folder / "index.sqlite", runs) as index:

        def first_page() -> None:
            index.refresh()
            json.dumps([index.state(), index.episodes({})])

        add("open: what is new, the state and the first page", first_page)
        add("what is new, again", index.refresh)
        for name, (filters, order) in SELECTIONS.items():
            add(
                f"filter: {name}", lambda filters=filters, order=order: json.dumps(index.episodes(filters, order=order))
            )
        add("last page", lambda: index.episodes({}, offset=STEPS * GROUPS * GROUP_SIZE - 100))
        add("groups", lambda: index.groups({}))
        files = [("run", f"episodes/train-{step:06d}.jsonl") for step in (1, STEPS)]
        add("comparison of two files", lambda: index.compare(files[0], files[1]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"also write {RESULT.name}")
    write = parser.parse_args().write
    with tempfile.TemporaryDirectory() as folder:
        lines = [
            "# rllm-gym view",
            "",
            f"`python benchmarks/viewer.py`: processor time on {platform.machine()}, {os.cpu_count()} cores, load "
            f"{os.getloadavg()[0]:.1f}, Python {platform.python_version()}.",
            "",
            "| operation | ms |",
            "|---|---|",
            *rows(Path(folder)),
        ]
    text = "\n".join(lines) + "\n"
    print(text)
    if write:
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
