"""More rollout rounds for groups without a gradient, and greedy episodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from echo_config import echo_config
from echo_env import EchoEnv, Letters

from rllm_gym.agents import ChatAgent
from rllm_gym.core import Outcome
from rllm_gym.engine import load_episodes
from trainers.loop import train
from trainers.run.metrics import read_metrics
from trainers.train_env import TrainEnv


class ConstantRewardEnv(EchoEnv):
    """Any reply gets the same reward."""

    def _act(self, action: str) -> Outcome:
        return Outcome("again", {"hit": 0.5}, terminated=self._turn == 1)


def train_env(env: Any, tasks: int) -> TrainEnv:
    return TrainEnv(env, ChatAgent, [Letters("train")[index] for index in range(tasks)])


def episodes_of(run: Path, step: int) -> list[Any]:
    return list(load_episodes(run / "episodes" / f"train-{step:06d}.jsonl"))


def short(folder: Path, **algorithm: Any) -> Any:
    return echo_config(
        folder,
        steps=2,
        validation=None,
        save_episodes_every=1,
        algorithm={"group_size": 2, "groups_per_step": 3, **algorithm},
    )


def test_without_useful_groups_the_rounds_end_at_the_limit(tmp_path: Path) -> None:
    config = short(tmp_path, dynamic_sampling=2)
    train(config, env=train_env(ConstantRewardEnv, 30))
    for row, step in zip(read_metrics(tmp_path / "run"), (1, 2), strict=True):
        assert row["episodes/count"] == 3 * 2 * 3, "three rounds of three groups of two"
        assert row["optim/trained_tokens"] == 0
        groups = Counter(episode.group_id for episode in episodes_of(tmp_path / "run", step))
        assert len(groups) == 9
        assert set(groups.values()) == {2}
    tasks = [episode.task_id for step in (1, 2) for episode in episodes_of(tmp_path / "run", step)]
    assert set(Counter(tasks).values()) == {2}, "each round brings tasks that have not come up before"


def test_rounds_end_with_enough_useful_groups(tmp_path: Path) -> None:
    config = short(tmp_path, dynamic_sampling=20)
    train(config)
    for row in read_metrics(tmp_path / "run"):
        played = row["episodes/count"] / 2
        assert played * (1 - row["groups/zero_std_fraction"]) == pytest.approx(3), (
            "three groups are wanted, and no more are played"
        )


def test_groups_without_variance_that_are_kept_are_not_counted_as_enough(tmp_path: Path) -> None:
    config = short(tmp_path, dynamic_sampling=1, drop_zero_variance=False)
    train(replace(config, entropy=replace(config.entropy, bonus=0.1)), env=train_env(ConstantRewardEnv, 30))
    for row in read_metrics(tmp_path / "run"):
        assert row["episodes/count"] == 2 * 2 * 3, "two rounds of three groups of two"
        assert row["optim/trained_tokens"] > 0


def test_a_resumed_run_has_the_same_rounds(tmp_path: Path) -> None:
    config = replace(short(tmp_path, dynamic_sampling=3), deterministic=True)
    train(replace(config, steps=2))
    rows = read_metrics(tmp_path / "run")
    first = replace(config, steps=1, output=str(tmp_path / "resumed"))
    train(first)
    train(replace(config, output=str(tmp_path / "resumed"), resume=True))
    again = read_metrics(tmp_path / "resumed")
    assert [row["tasks"] for row in again] == [row["tasks"] for row in rows]


def test_every_group_has_a_greedy_episode(tmp_path: Path) -> None:
    config = short(tmp_path, name="remax", drop_zero_variance=False)
    train(replace(config, entropy=replace(config.entropy, bonus=0.1)), env=train_env(ConstantRewardEnv, 3))
    for step in (1, 2):
        assert sum(episode.greedy for episode in episodes_of(tmp_path / "run", step)) == 3
