"""Groups are identified by their position in a step, not by the name of their task."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from echo_config import echo_config
from echo_env import EchoEnv

from rllm_gym.agents import default_agent
from rllm_gym.core import Task
from rllm_gym.engine import load_episodes
from trainers.loop import train
from trainers.train_env import TrainEnv


class OneName:
    """Two tasks with the same name, as in a file with duplicate ids."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Task:
        return Task("same", f"say {'ab'[index]}", {"letter": "ab"[index]})


def test_tasks_with_the_same_name_are_separate_groups(tmp_path: Path) -> None:
    train_env = TrainEnv(EchoEnv, default_agent("test/Echo-v0"), OneName(), train_kwargs={"split": "train"})
    config = echo_config(
        tmp_path,
        steps=1,
        algorithm={"group_size": 3, "groups_per_step": 6},
        validation=None,
        checkpoint=None,
        save_episodes_every=1,
    )
    train(config, env=train_env)
    (file,) = (Path(config.output) / "episodes").glob("train-*.jsonl")
    episodes = list(load_episodes(file))
    assert Counter(Counter(episode.group_id for episode in episodes).values()) == {3: 6}
    assert len({episode.episode_id for episode in episodes}) == 18
    for group in {episode.group_id for episode in episodes}:
        observations = {
            episode.trajectories[0].steps[0].observation for episode in episodes if episode.group_id == group
        }
        assert len(observations) == 1
