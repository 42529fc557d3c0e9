"""Stable-Baselines3 on FrozenLake with numeric features: its checker passes, and its PPO learns to cross."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import SubprocVecEnv

from rllm_gym.integrations.features import HashedFeatures, TokenIds, make_numeric
from rllm_gym.integrations.stable_baselines3 import make_vec_env

LAKE = "rllm/FrozenLake-v0"
# A curriculum: the side grows by one each time, with holes to avoid. The last map is Gymnasium's own.
MAPS = [["SF", "FG"], ["SFF", "FHF", "FFG"], ["SFFF", "FHFH", "FFFH", "HFFG"]]


class OwnSuccess(BaseCallback):
    """Records ``info["success"]`` of every finished episode."""

    def __init__(self) -> None:
        super().__init__()
        self.successes: list[bool] = []

    def _on_step(self) -> bool:
        ends = zip(self.locals["dones"], self.locals["infos"], strict=True)
        self.successes += [info["success"] for done, info in ends if done]
        return True


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("features", [HashedFeatures, partial(HashedFeatures, size=64), TokenIds])
def test_the_environment_checker_passes(features) -> None:
    check_env(make_numeric(LAKE, features=features))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ppo_learns_to_cross(seed: int, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    envs = make_vec_env(LAKE, 8, seed=seed, tasks=MAPS)
    model = PPO(
        "MlpPolicy",
        envs,
        seed=seed,
        n_steps=128,
        batch_size=256,
        n_epochs=8,
        learning_rate=1e-3,
        ent_coef=0.01,
        gamma=0.95,
        policy_kwargs={"net_arch": [64]},
        device="cpu",
    )
    at_random = success_rate(None, seed)
    assert at_random < 0.5
    own = OwnSuccess()
    model.learn(12_000, callback=own)
    learnt = success_rate(model, seed)
    print(f"seed {seed}: success at random {at_random:.2f}, after 12,000 steps {learnt:.2f}")
    assert learnt > 0.9
    # Its reported training success is the environment's own, and a saved model plays identically.
    reported = list(model.ep_success_buffer)
    assert reported == own.successes[-len(reported) :]
    assert np.mean(reported) > at_random
    model.save(tmp_path / "lake")
    again = PPO.load(tmp_path / "lake", device="cpu")
    assert evaluate_policy(again, make_vec_env(LAKE, 1, seed=seed, tasks=MAPS[2:]), 5)[0] == pytest.approx(1.0)


def test_environments_in_subprocesses_return_the_same() -> None:
    here, there = (make_vec_env(LAKE, 2, seed=3, vec_env_cls=kind) for kind in (None, SubprocVecEnv))
    try:
        assert np.array_equal(here.reset(), there.reset())
        for step in range(12):
            actions = np.array([step % 4, (step + 1) % 4])
            for mine, other in zip(here.step(actions)[:3], there.step(actions)[:3], strict=True):
                assert np.array_equal(mine, other)
    finally:
        here.close()
        there.close()


def success_rate(model: BaseAlgorithm | None, seed: int, episodes: int = 90) -> float:
    """Return the success rate of the model's best moves, or of random ones."""
    env = make_numeric(LAKE, tasks=MAPS)
    chance = np.random.default_rng(seed)
    successes = 0
    for episode in range(episodes):
        observation, info = env.reset(seed=1000 + episode)
        over = False
        while not over:
            action = chance.integers(4) if model is None else model.predict(observation, deterministic=True)[0]
            observation, _, terminated, truncated, info = env.step(int(action))
            over = terminated or truncated
        successes += info["success"]
    return successes / episodes
