"""Run one job of ``learning.py`` in its own process: create a base model, or train one with an algorithm and evaluate.

    python -m benchmarks.learning_run FOLDER base lake 0
    python -m benchmarks.learning_run FOLDER train lake grpo full 0

``ALGORITHMS`` contains the options in which an algorithm differs from the recipe of its family.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import yaml
from transformers.utils.logging import disable_progress_bar

import rllm_gym  # noqa: F401 - registers the environments
from examples.demo import distinct_maps, evaluate
from rllm_gym.core import Episode
from trainers.config import SftConfig, TrainConfig
from trainers.config.mapping import from_mapping, to_mapping
from trainers.config_loading import find_file, load_yaml
from trainers.fine_tuning.sft import sft
from trainers.learner import TrainingDiverged
from trainers.loop import train
from trainers.run.metrics import read_metrics

TEST_TASKS = 256


@dataclass(frozen=True)
class Family:
    """A family of tasks: recipes of the base model and of the training, by tuning."""

    sft: str
    recipes: dict[str, str]
    steps: int
    validate_every: int


_RECIPES = Path(__file__).with_name("recipes")
FAMILIES = {
    "lake": Family("frozen_lake_sft", {"full": "frozen_lake_full", "lora": "frozen_lake_lora"}, 100, 20),
    "letters": Family(
        str(_RECIPES / "count_letters_sft.yaml"), {"full": str(_RECIPES / "count_letters_full.yaml")}, 200, 40
    ),
}

_PPO = {"name": "ppo", "group_size": 8, "groups_per_step": 16, "gamma": 0.95, "gae_lambda": 0.95}
# On the lake every step has 128 episodes, including those that are played only for a baseline.
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm": {"name": "grpo", "normalize_std": True, "group_size": 8, "groups_per_step": 16}},
    "dr-grpo": {"algorithm": {"name": "dr-grpo", "group_size": 8, "groups_per_step": 16}},
    "rloo": {"algorithm": {"name": "rloo", "group_size": 8, "groups_per_step": 16}},
    "remax": {"algorithm": {"name": "remax", "group_size": 7, "groups_per_step": 16}},
    "reinforce++": {"algorithm": {"name": "reinforce++", "group_size": 8, "groups_per_step": 16}},
    "rebn": {"algorithm": {"name": "rebn", "group_size": 8, "groups_per_step": 16, "gamma": 0.95}},
    "ppo-token": {"algorithm": {**_PPO, "gae_level": "token"}},
    "ppo-turn": {"algorithm": {**_PPO, "gae_level": "turn"}},
}
EPISODES_PER_STEP = 128


def answer_at_random(env: Any, rng: random.Random, *, right: float) -> str:
    """Return a well-formed demonstration: the correct answer with probability ``right``, else a random digit."""
    digit = env.task.data["gold"] if rng.random() < right else str(rng.randint(0, 6))
    return f"\\boxed{{{digit}}}"


class CpuByStep(threading.Thread):
    """Records the CPU time of this process whenever a run has written the row of a step.

    Args:
        metrics: The run's file of rows, which need not exist yet.
    """

    def __init__(self, metrics: Path) -> None:
        super().__init__(daemon=True)
        self._metrics = metrics
        self._stopping = threading.Event()
        self._began = time.process_time()
        self.seconds: list[float] = []

    def run(self) -> None:
        while not self._stopping.wait(0.2):
            self._look()

    def stop(self) -> float:
        """Return the CPU seconds since creation."""
        self._stopping.set()
        self.join()
        self._look()
        return time.process_time() - self._began

    def _look(self) -> None:
        rows = len(read_metrics(self._metrics)) if self._metrics.exists() else 0
        self.seconds += [time.process_time() - self._began] * (rows - len(self.seconds))


def make_base(folder: Path, family: str, seed: int) -> dict[str, Any]:
    """Create a tiny model with a low success rate; return its success on the test tasks."""
    began = time.process_time()
    config = load_yaml(SftConfig, FAMILIES[family].sft)
    config = replace(
        config, output=str(folder / "sft"), seed=seed, tiny=replace(config.tiny, seed=seed), progress=False
    )
    result = sft(config)
    cpu = time.process_time() - began
    assert result.model is not None, "the fine-tuning was interrupted"
    recipe = load_yaml(TrainConfig, FAMILIES[family].recipes["full"])
    return {
        "family": family,
        "seed": seed,
        "cpu_seconds": cpu,
        "steps": result.steps,
        "stopped": result.stopped,
        "success": test_success(recipe, result.model, seed),
    }


def train_once(folder: Path, base: Path, family: str, algorithm: str, tuning: str, seed: int) -> dict[str, Any]:
    """Train from the base model and evaluate; the curve uses validation tasks, which are never trained on."""
    config = config_of(folder / "run", base, family, algorithm, tuning, seed)
    clock, diverged = CpuByStep(folder / "run" / "metrics.jsonl"), ""
    after = {"sampled": 0.0, "greedy": 0.0}
    clock.start()
    try:
        result = train(config)
    except TrainingDiverged as error:
        diverged = str(error)
    cpu = clock.stop()
    if not diverged:
        assert result.model is not None, "the run was interrupted"
        after = test_success(config, result.model, seed)
    rows = read_metrics(folder / "run")
    curve, episodes = [], 0
    for row, seconds in zip(rows, clock.seconds, strict=True):
        episodes += row.get("episodes/count", 0)
        if "validation/success" in row:
            curve.append(
                {
                    "step": row["step"],
                    "episodes": episodes,
                    "cpu_seconds": seconds,
                    "sampled": row["validation/success"],
                    "greedy": row["validation/greedy_success"],
                }
            )
    return {
        "family": family,
        "algorithm": algorithm,
        "tuning": tuning,
        "seed": seed,
        "steps": config.steps,
        "episodes": episodes,
        "cpu_seconds": cpu,
        "curve": curve,
        "after": after,
        "diverged": diverged,
        "skipped_updates": sum(row.get("optim/skipped_steps", 0) for row in rows),
        "largest_gap": max((row.get("sampling/logprob_difference/max", 0.0) for row in rows), default=0.0),
        "config": to_mapping(config),
    }


def config_of(output: Path, base: Path, family: str, algorithm: str, tuning: str, seed: int) -> TrainConfig:
    place = FAMILIES[family]
    options: dict[str, Any] = yaml.safe_load(find_file(place.recipes[tuning]).read_text())
    if family == "lake":
        for section, changes in ALGORITHMS[algorithm].items():
            options[section] = options[section] | changes
    options |= {"output": str(output), "seed": seed, "steps": place.steps, "progress": False}
    options["model"] |= {"path": str(base / "sft" / "model")}
    options["validation"] = {
        "every": place.validate_every,
        "tasks": 128,
        "greedy": True,
        "best": "",
    }
    options["checkpoint"] = None
    return from_mapping(TrainConfig, options)


def test_success(config: TrainConfig, model: Path, seed: int) -> dict[str, float]:
    """Return success on test tasks, unseen in training and selection, with one sampled and one greedy episode each."""
    episodes = evaluate(config, model, distinct_maps(config, TEST_TASKS), seed=seed)

    def success_rate(greedy: bool) -> float:
        chosen: list[Episode] = [episode for episode in episodes if episode.greedy is greedy]
        return sum(episode.success for episode in chosen) / len(chosen)

    return {"sampled": success_rate(False), "greedy": success_rate(True)}


def _end_with_stdin() -> None:
    """End when the other end of the pipe is closed, which happens when its process ends, also by SIGKILL."""
    sys.stdin.read()
    os._exit(1)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of all runs")
    parser.add_argument("what", choices=["base", "train"])
    parser.add_argument("names", nargs="+", help="family seed, or family algorithm tuning seed")
    parser.add_argument("--end-with-stdin", action="store_true", help="exit when the parent process ends")
    options = parser.parse_args()
    if options.end_with_stdin:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    disable_progress_bar()
    torch.set_num_threads(1)
    name = "-".join(options.names)
    folder = options.folder / name
    if options.what == "base":
        family, seed = options.names
        result = make_base(folder, family, int(seed))
    else:
        family, algorithm, tuning, seed = options.names
        base = options.folder / f"{family}-{seed}"
        result = train_once(folder, base, family, algorithm, tuning, int(seed))
    unfinished = options.folder / f"{name}.json.part"
    unfinished.write_text(json.dumps(result) + "\n")
    unfinished.replace(options.folder / f"{name}.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
