"""TorchRL's ``GymEnv`` accepts our ids: its checker, its rollouts, its batches, and a policy that learns."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import NonTensorData, TensorDict
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import GymEnv, GymWrapper, SerialEnv, check_env_specs

import rllm_gym
from rllm_gym.core import TextEnv
from rllm_gym.integrations.features import HashedFeatures, make_numeric

LAKE = "rllm/FrozenLake-v0"
MOVES = ["```left```", "```down```", "```right```", "```up```"]
assert rllm_gym.__version__


@pytest.mark.parametrize("env_id", [LAKE, "rllm/Math-v0"])
def test_text_environments_have_their_declared_specs(env_id: str) -> None:
    env = GymEnv(env_id)
    assert isinstance(env.unwrapped, TextEnv)
    check_env_specs(env)
    env.close()


def test_numeric_environments_have_their_declared_specs() -> None:
    check_env_specs(GymWrapper(make_numeric(LAKE)))


def test_a_rollout_returns_what_the_environment_returns() -> None:
    env = GymEnv(LAKE)
    env.set_seed(4)
    rollout = env.rollout(3, policy=lambda tensordict: tensordict.set("action", NonTensorData(MOVES[2])))
    alone = gymnasium.make(LAKE)
    alone.reset(seed=4)  # what TorchRL's set_seed does; its rollout then resets without a seed
    seen = [alone.reset()[0]]
    seen += [alone.step(MOVES[2])[0] for _ in range(len(rollout))]
    assert list(rollout["observation"]) == seen[:-1]
    assert list(rollout["next", "observation"]) == seen[1:]
    assert rollout["next", "reward"].shape == (len(rollout), 1)


def test_a_batch_of_environments_keeps_every_text_whole() -> None:
    envs = SerialEnv(3, lambda: GymEnv(LAKE))
    envs.set_seed(0)
    state = envs.reset()
    texts = list(state["observation"])
    assert len(texts) == 3
    assert all("Answer with one move" in text and text.count("P") >= 1 for text in texts)
    envs.close()


class TextPolicy(TensorDictModuleBase):
    """Reads text and returns a move: a linear policy over hashed words."""

    in_keys = ("observation",)
    out_keys = ("action", "choice")

    def __init__(self, features: HashedFeatures) -> None:
        super().__init__()
        self.features = features
        self.logits = torch.nn.Linear(features.size, len(MOVES))

    def distribution(self, texts: list[str]) -> torch.distributions.Categorical:
        vectors = np.stack([self.features.observation(text) for text in texts])
        return torch.distributions.Categorical(logits=self.logits(torch.from_numpy(vectors)))

    def forward(self, state: TensorDict) -> TensorDict:
        choice = self.distribution([state["observation"]]).sample()[0]
        state["choice"] = choice
        return state.set("action", NonTensorData(MOVES[int(choice)]))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_policy_that_reads_and_writes_text_learns_to_cross(seed: int) -> None:
    """REINFORCE with a baseline, over TorchRL's rollouts of the text environment as it is."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    lake = gymnasium.make(LAKE, tasks=[["SFF", "FHF", "FFG"]])
    env = GymWrapper(lake)
    env.set_seed(seed)
    policy = TextPolicy(HashedFeatures(lake, size=512))
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    returns: list[float] = []
    for _ in range(30):
        with torch.no_grad():
            rollouts = [env.rollout(20, policy=policy) for _ in range(8)]
        rewards = torch.tensor([float(rollout["next", "reward"].sum()) for rollout in rollouts])
        returns += rewards.tolist()
        advantages = rewards - rewards.mean()
        texts = [text for rollout in rollouts for text in rollout["observation"]]
        choices = torch.cat([rollout["choice"] for rollout in rollouts])
        weights = torch.cat([advantage.expand(len(rollout)) for advantage, rollout in zip(advantages, rollouts)])
        loss = -(policy.distribution(texts).log_prob(choices) * weights).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"seed {seed}: success {np.mean(returns[:40]):.2f} at first, {np.mean(returns[-80:]):.2f} in the end")
    assert np.mean(returns[:40]) < 0.5
    assert np.mean(returns[-80:]) > 0.8
