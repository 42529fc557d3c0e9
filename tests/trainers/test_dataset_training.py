"""Training on a data set with a reward function, and on any registered text environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from echo_config import echo_config
from envs import own_rewards

from rllm_gym.core import Episode, Step, Text
from rllm_gym.engine import load_episodes
from trainers import ConfigError, commands
from trainers.loop import NoTrainableEpisodes, train
from trainers.run.metrics import read_metrics
from trainers.train_env import open_train_env

ROWS = [{"prompt": f"say a letter {n}", "answer": str(n)} for n in range(60)]
ANSWERS = "envs.own_rewards"


def dataset_config(folder: Path, **sections: Any) -> Any:
    return echo_config(folder, **{"env": {"id": ""}, "validation": {"every": 4}, **sections})


def test_a_data_set_and_a_reward_function_are_enough(tmp_path: Path) -> None:
    config = dataset_config(
        tmp_path, steps=25, algorithm={"group_size": 8, "groups_per_step": 8}, optimizer={"lr": 0.03}
    )
    train(config, dataset=ROWS, reward=[own_rewards.letters, own_rewards.short])
    rows = read_metrics(tmp_path / "run")
    assert rows[0]["validation/success"] < 0.8
    assert rows[-1]["validation/success"] > 0.9
    parts = rows[-1]["reward/letters/mean"], rows[-1]["reward/short/mean"]
    assert sum(parts) == pytest.approx(rows[-1]["reward/mean"])


def test_the_command_takes_a_file_and_the_names_of_functions(tmp_path: Path) -> None:
    file, held_out = tmp_path / "rows.jsonl", tmp_path / "held_out.jsonl"
    for path, rows in ((file, ROWS), (held_out, ROWS[:5])):
        path.write_text("\n".join(map(json.dumps, rows)))
    words = ["--dataset", str(file), "--reward", f"{ANSWERS}:letters", f"{ANSWERS}:short", "--reward-weights", "1", "0"]
    seen = {}
    for name, more in (("split", []), ("given", [f"--validation-dataset={held_out}"])):
        config = commands._read(commands.TrainConfig, commands._dataset_words([*words, *more]), "train", "")
        assert config.env.id == "rllm/Dataset-v0"
        train_env = open_train_env(config.env)
        assert train_env.validation is not None
        seen[name] = len(train_env.train), len(train_env.validation)
    assert seen["given"] == (60, 5)
    assert sum(seen["split"]) < 60
    tiny = echo_config(tmp_path).model.path
    arguments = [*words, "--model.path", tiny, "--model.tuning", "full", "--sampling.max-tokens", "3", "--steps", "1"]
    commands.train([*arguments, "--validation", "none", "--no-progress", "--output", str(tmp_path / "cli")])
    (row,) = read_metrics(tmp_path / "cli")
    assert row["reward/short/mean"] == 0.0  # its weight is 0
    assert row["reward/letters/mean"] == row["reward/mean"]


def test_few_rows_train_without_validation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(dataset_config(tmp_path, steps=1), dataset={"train": ROWS[:1]}, reward=own_rewards.letters)
    assert "validation is disabled" in caplog.text
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [1]


def test_a_failing_reward_function_ends_the_run_with_its_name_and_row(tmp_path: Path) -> None:
    def broken(completions: list[str], answer: list[str]) -> list[float]:
        raise ValueError(f"no rule for {answer[0]}")

    config = dataset_config(tmp_path, validation=None)
    with pytest.raises(NoTrainableEpisodes, match=r"reward function 'broken' raised ValueError: no rule for .* row '"):
        train(config, dataset=ROWS, reward=broken)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"dataset": ROWS}, "give both"),
        ({"reward": own_rewards.letters}, "give both"),
        ({"dataset": [{"text": "x"}], "reward": own_rewards.letters}, 'name what the model is given "prompt"'),
        ({"dataset": ROWS, "reward": "nothing:here"}, "'nothing:here' cannot be imported"),
        ({"dataset": {"all": ROWS}, "reward": own_rewards.letters}, "they can be train, validation, test"),
    ],
)
def test_an_unusable_data_set_or_function_is_a_configuration_error(
    kwargs: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(dataset_config(tmp_path), **kwargs)


class PlainEnv(gymnasium.Env[str, str]):
    """A text environment that uses nothing of this package but the space of texts."""

    observation_space = Text(100)
    action_space = Text(10_000)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._number = int(self.np_random.integers(10))
        return f"say {self._number}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", float(action.strip()[:1] < "m"), True, False, {}


def test_a_plain_gymnasium_environment_trains_by_its_id(tmp_path: Path) -> None:
    gymnasium.register("test/Plain-v0", entry_point=PlainEnv)
    try:
        train(echo_config(tmp_path, steps=2, env={"id": "test/Plain-v0"}, save_episodes_every=1))
    finally:
        del gymnasium.registry["test/Plain-v0"]
    rows = read_metrics(tmp_path / "run")
    assert len(rows) == 3
    assert rows[-1]["episodes/dropped"] == 0
    assert 0 < rows[-1]["validation/reward/mean"] < 1
    groups: dict[str, list[Episode]] = {}
    for episode in load_episodes(tmp_path / "run" / "episodes" / "train-000001.jsonl"):
        groups.setdefault(episode.group_id, []).append(episode)
    replies = [{step.model_response for step in steps_of(group)} for group in groups.values()]
    assert all(len({step.observation for step in steps_of(group)}) == 1 for group in groups.values())
    assert max(map(len, replies)) > 1, "all episodes of a group got the same sampler seed"
    assert len({step.observation for group in groups.values() for step in steps_of(group)}) > 1


def steps_of(episodes: list[Episode]) -> list[Step]:
    return [step for episode in episodes for step in episode.trajectories[0].steps]
