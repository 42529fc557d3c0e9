"""The demo's yardsticks are right, and the whole of it runs from the shell to the report."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

import rllm_gym  # noqa: F401 - registers the environments
from examples.frozen_lake_baselines import best_blind_outcomes, oracle_outcomes
from rllm_gym.core import Task
from rllm_gym.parsing.moves import Move

ROOT = Path(__file__).resolve().parents[2]
LAKE = "rllm/FrozenLake-v0"


def lakes(number: int, **kwargs: object) -> list[Task]:
    env = gymnasium.make(LAKE, **kwargs)
    tasks = [env.unwrapped.tasks[index] for index in range(number)]  # type: ignore[attr-defined]
    env.close()
    return tasks


def test_no_blind_sequence_does_better_than_the_best_one() -> None:
    kwargs = {"size": 3, "max_turns": 4}
    tasks = lakes(20, **kwargs)
    moves, outcomes = best_blind_outcomes(tasks, 4)

    # Every sequence, played in the environment itself.
    env = gymnasium.make(LAKE, **kwargs)
    scores = {}
    for sequence in itertools.product(Move, repeat=4):
        wins = 0
        for task in tasks:
            env.reset(seed=0, options={"task": task})
            for move in sequence:
                _, reward, terminated, truncated, _ = env.step(move.word)
                wins += reward == 1
                if terminated or truncated:
                    break
        scores[sequence] = wins
    env.close()
    assert sum(outcomes) == max(scores.values()) == scores[tuple(moves)]
    assert 0 < sum(outcomes) < len(tasks)


def test_more_moves_than_are_tried_at_once_are_tried_too() -> None:
    tasks = lakes(12)
    wins = [sum(best_blind_outcomes(tasks, turns)[1]) for turns in (6, 7, 8)]
    assert wins == sorted(wins)


def test_the_oracle_solves_every_map_on_a_shortest_path() -> None:
    tasks = lakes(30)
    outcomes = oracle_outcomes(LAKE, {}, tasks)
    assert [turns for _, turns in outcomes] == [task.data["path_length"] for task in tasks]
    assert all(success for success, _ in outcomes)


@pytest.mark.long
@pytest.mark.parametrize("tuning", [[], ["--lora"]])
def test_the_demo_ends_with_a_table_and_a_report(tuning: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    result = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--steps", "3", "--output", str(folder), *tuning],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1100,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"},
    )
    assert result.returncode == 0, result.stderr
    for row in ("before", "after", "best policy that does not observe the map", "oracle"):
        assert row in result.stdout
    table = json.loads((folder / "evaluation.json").read_text())
    assert [row["kind"] for row in table["rows"]] == ["model", "model", "reference", "reference"]
    assert table["rows"][3]["measures"]["success, sampled"]["value"] == 1.0
    assert '<script id="data"' in (folder / "report.html").read_text()
    assert list((folder / "tensorboard").glob("events.*"))
    assert (folder / "model" / ("adapter_config.json" if tuning else "config.json")).is_file()

    # The test maps are those of the test split, and none of them was trained on.
    trained = {
        name
        for line in (folder / "metrics.jsonl").read_text().splitlines()
        for name in json.loads(line).get("tasks", [])
    }
    tested = {json.loads(line)["task_id"] for line in (folder / "after.jsonl").read_text().splitlines()}
    assert trained
    assert all("/train/" in name for name in trained)
    assert len(tested) == 256
    assert all("/test/" in name for name in tested)
