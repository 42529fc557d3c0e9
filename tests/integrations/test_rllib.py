"""RLlib on FrozenLake with numeric features: its workers create the environment, and its PPO trains once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import ray
from ray.rllib.algorithms.ppo import PPOConfig

from rllm_gym.integrations.rllib import register


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.parametrize("env_runners", [0, 1])
def test_one_iteration_of_ppo(env_runners: int) -> None:
    """Run in this process, and in an actor that has to create the environment itself."""
    name = register(f"lake-{env_runners}", "rllm/FrozenLake-v0", tasks=[["SF", "FG"]])
    config = (
        PPOConfig()
        .environment(name, env_config={"max_turns": 6})
        .env_runners(num_env_runners=env_runners, num_envs_per_env_runner=4)
        .training(train_batch_size_per_learner=256, minibatch_size=64, num_epochs=2)
        .rl_module(model_config={"fcnet_hiddens": [32]})
        .debugging(seed=0)
    )
    algorithm = config.build_algo()
    try:
        module = algorithm.get_module()
        before = {name: np.array(value) for name, value in module.get_state().items()}
        result = algorithm.train()
        after = algorithm.learner_group.get_weights()["default_policy"]
    finally:
        algorithm.stop()
    episodes = result["env_runners"]
    assert episodes["num_episodes"] > 20
    assert 0 < episodes["episode_return_mean"] < 1  # a random walk sometimes crosses a lake of four cells
    assert episodes["episode_len_max"] <= 6
    assert any(not np.array_equal(before[name], np.array(value)) for name, value in after.items())
