"""tianshou on FrozenLake with numeric features: its collector and its PPO, over its own vector environments."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import BaseVectorEnv, DummyVectorEnv, SubprocVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

from rllm_gym.integrations.features import HashedFeatures, make_numeric

make_lake = partial(make_numeric, "rllm/FrozenLake-v0", features=partial(HashedFeatures, size=256))


@pytest.mark.parametrize("kind", [DummyVectorEnv, SubprocVectorEnv])
def test_vector_environments_return_what_each_environment_returns(kind: type[BaseVectorEnv]) -> None:
    envs = kind([make_lake] * 3)
    try:
        envs.seed([5, 6, 7])
        assert np.array_equal(envs.reset()[0], np.stack([alone(seed)[0] for seed in (5, 6, 7)]))
        actions = np.array([0, 2, 3])
        assert np.array_equal(envs.step(actions)[0], np.stack([alone(s, a)[1] for s, a in zip((5, 6, 7), actions)]))
    finally:
        envs.close()


def alone(seed: int, *actions: int) -> list[np.ndarray]:
    """Return the steps of one environment: tianshou's ``seed`` resets it with the seed, and its ``reset`` again
    without.
    """
    env = make_lake()
    env.reset(seed=seed)
    return [env.reset()[0], *(env.step(action)[0] for action in actions)]


def test_ppo_learns_to_cross() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - what tianshou shuffles with
    make = partial(make_lake, tasks=[["SFF", "FHF", "FFG"]])
    training, testing = DummyVectorEnv([make] * 8), DummyVectorEnv([make] * 4)
    training.seed(0)
    testing.seed(100)
    env = make()
    state_shape, action_count = env.observation_space.shape, env.action_space.n
    hidden = partial(Net, state_shape=state_shape, hidden_sizes=[64])
    policy = DiscreteActorPolicy(
        actor=DiscreteActor(preprocess_net=hidden(), action_shape=action_count, softmax_output=False),
        action_space=env.action_space,
        deterministic_eval=True,
    )
    algorithm = PPO(
        policy=policy, critic=DiscreteCritic(preprocess_net=hidden()), optim=AdamOptimizerFactory(lr=1e-3), gamma=0.95
    )
    buffer = VectorReplayBuffer(1024, 8)
    before = Collector(algorithm, testing).collect(n_episode=20, reset_before_collect=True).returns_stat
    result = algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=Collector(algorithm, training, buffer),
            test_collector=Collector(algorithm, testing),
            max_epochs=2,
            epoch_num_steps=2048,
            collection_step_num_env_steps=512,
            update_step_num_repetitions=4,
            batch_size=128,
            test_step_num_episodes=20,
        )
    )
    print(f"mean return {before.mean:.2f} before, best {result.best_reward:.2f}")
    assert result.best_reward > 0.9
