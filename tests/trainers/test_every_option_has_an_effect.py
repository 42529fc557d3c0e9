"""Every option of algorithm and value head, with every algorithm and loss, changes a run or is rejected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rllm_gym.core import Episode, Step, StopReason, Trajectory, TurnTokens
from trainers import loop
from trainers.algorithms import make_algorithm
from trainers.config import (
    AlgorithmConfig,
    ConfigError,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
    ValueConfig,
    validate,
)
from trainers.config.mapping import from_mapping
from trainers.learner import Learner
from trainers.model import Policy
from trainers.rollouts import RolloutBatch
from trainers.samples import RewardShaping, Sample, samples_of
from trainers.tiny_model import make_tiny_model

ALGORITHMS = ["grpo", "dr-grpo", "rloo", "remax", "reinforce", "reinforce++", "rebn", "ppo"]
LOSSES = ["clip", "gspo", "cispo", "dppo", "reinforce"]
OTHER: dict[str, Any] = {
    "group_size": 5,
    "groups_per_step": 5,
    "normalize_std": True,
    "drop_zero_variance": False,
    "dynamic_sampling": 2,
    "gamma": 0.7,
    "gae_level": "token",
    "gae_lambda": 0.3,
    "whiten": False,
    "clip_low": 0.75,
    "clip_high": 9.0,
    "dual_clip": 1.5,
    "dppo_threshold": 1e-3,
    "importance_cap": 1.5,
    "importance_mode": "sequence-mask",
    "epochs": 2,
    "minibatches": 2,
    "kl": 0.3,
    "kl_in": "reward",
    "kl_estimator": "k2",
    "kl_straight_through": True,
    "overlong": "mask",
    "overlong_penalty": 0.4,
    "overlong_buffer": 3,
    "format_penalty": 0.3,
}
VALUE: dict[str, Any] = {"lr": 0.5, "detach": False, "weight": 2.0, "clip": 0.01, "extra_steps": 3, "warmup_steps": 0}
# Other options that must be set for an option to be read.
SETTINGS: list[dict[str, Any]] = [
    {"kl": 0.2},
    {"kl": 0.2, "kl_in": "reward"},
    {"importance_cap": 1.4},
    {"overlong_penalty": 0.2},
]


def test_every_option_has_a_case() -> None:
    named = {field.name for field in fields(AlgorithmConfig)}
    assert named == {*OTHER, "name", "loss", "aggregation"}
    assert {field.name for field in fields(ValueConfig)} == set(VALUE)


class OptionBench:
    """One optimizer step of a tiny model on fixed episodes, to observe the effect of a configuration."""

    def __init__(self, folder: Path) -> None:
        make_tiny_model(folder, hidden_size=32, num_heads=1, num_layers=1, vocab_size=300)
        self.policy = Policy(ModelConfig(path=str(folder), tuning="full"), reference=True)
        torch.manual_seed(0)
        with torch.no_grad():
            for _, parameter in self.policy.parameters:  # away from the reference
                parameter += 0.02 * torch.randn_like(parameter)
        self.before = {name: parameter.detach().clone() for name, parameter in self.policy.parameters}
        self.episodes = list(episodes())
        self.known: dict[str, list[np.ndarray]] = {}

    def outcome(self, config: TrainConfig) -> list[np.ndarray]:
        """Return everything that an option could change: the requested episodes, and the weights after an update."""
        key = repr((config.algorithm, config.value))
        if key not in self.known:
            self.known[key] = [*requested(config), *self._weights(config)]
        return self.known[key]

    def _weights(self, config: TrainConfig) -> Iterator[np.ndarray]:
        with torch.no_grad():
            for name, parameter in self.policy.parameters:
                parameter.copy_(self.before[name])
        algorithm = make_algorithm(config.algorithm, config.value, config.sampling)
        self.policy.value_heads.clear()
        learner = Learner(self.policy, OptimizerConfig(lr=0.1, max_grad_norm=1e9, warmup_steps=0), 10, algorithm.value)
        learner.optimizer = torch.optim.SGD(
            learner.optimizer.param_groups, lr=0.1
        )  # Adam's first step is independent of the gradient's size
        if self.policy.value_head is not None:
            torch.nn.init.constant_(self.policy.value_head.weight_D, 0.3)
        samples = samples_of(self.episodes, RewardShaping.of(config))
        for step in (0, 5):  # during the warm-up of the value head, and after it
            targets = algorithm.targets(samples, learner.signals(samples, algorithm.required_signals))
            learner.update(step, samples, targets, algorithm, 0.0)
        yield from (parameter.detach().numpy().copy() for _, parameter in self.policy.parameters)
        if self.policy.value_head is not None:
            yield self.policy.value_head.weight_D.detach().numpy().copy()


def episodes() -> Iterator[Episode]:
    """Three groups of three and a greedy one: one group without variance, one truncated member, one invalid reply."""
    rng = np.random.default_rng(0)
    rewards = [[1.0, 0.0, 0.5], [0.0, 1.0, 1.0], [0.5, 0.5, 0.5]]
    for group, of_group in enumerate(rewards):
        for member, reward in enumerate([*of_group, 0.5]):
            steps = []
            for turn in range(2):
                ids = tuple(rng.integers(5, 250, size=int(rng.integers(2, 5))).tolist())
                logprobs = tuple((-5.9 + rng.normal(scale=1.2, size=len(ids))).tolist())
                tokens = TurnTokens((1, 2, 3 + group), ids, logprobs, branch=turn)
                step_reward = reward if turn else 0.0
                steps.append(
                    Step(reward=step_reward, tokens=tokens, info={"invalid_action": member == 1 and turn == 0})
                )
            yield Episode(
                f"{group}.{member}",
                f"t{group}",
                group_id=f"t{group}@0.{group}",
                greedy=member == 3,
                reward=reward,
                trajectories=[Trajectory(steps=steps)],
                stop_reason=StopReason.MAX_TOKENS if (group, member) == (1, 2) else StopReason.SUCCESS,
            )


def requested(config: TrainConfig) -> Iterator[np.ndarray]:
    """Return how many episodes of how many tasks a step requests when no group has a gradient."""
    algorithm, counts = make_algorithm(config.algorithm), [config.algorithm.groups_per_step]
    yield np.array([draw.greedy for plan in algorithm.rollout_plans([0, 1], 0) for draw in plan])

    def more(step: int, groups: int, *, first: int) -> RolloutBatch:
        counts.append(groups)
        return RolloutBatch({}, [], None, [])  # type: ignore[arg-type]

    class Nothing(RolloutBatch):
        def __add__(self, more: RolloutBatch) -> RolloutBatch:
            return self

    equal_samples = [Sample("a", "g", 1.0, ()), Sample("b", "g", 1.0, ())]
    run: Any = SimpleNamespace(
        config=config,
        state=SimpleNamespace(algorithm=algorithm),
        prefetcher=SimpleNamespace(
            get=lambda step: Nothing({}, [], None, []),  # type: ignore[arg-type]
            get_more=more,
            samples=lambda batch: list(equal_samples),
        ),
    )
    loop._sample(run, 0)
    yield np.array(counts)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> OptionBench:
    return OptionBench(tmp_path_factory.mktemp("options") / "tiny")


def config(algorithm: dict[str, Any], value: dict[str, Any]) -> TrainConfig:
    return from_mapping(
        TrainConfig,
        {
            "env": {"id": "x"},
            "model": {"path": "x", "tuning": "full"},
            "sampling": {"max_tokens": 4, "max_response_tokens": 6},
            "algorithm": {"group_size": 3, "groups_per_step": 3, **algorithm},
            "value": value,
        },
    )


def check(bench: OptionBench, base: dict[str, Any], base_value: dict[str, Any], option: str, other: Any) -> bool:
    """Check whether the option is accepted; if so, it must change something, and if not, the error must name it."""
    section, _, name = option.rpartition(".")
    before = config(base, base_value)
    validate(before)
    after = config(
        {**base, name: other} if not section else base, {**base_value, name: other} if section else base_value
    )
    try:
        validate(after)
    except ConfigError as error:
        if name not in str(error):
            raise
        return False
    pairs = zip(bench.outcome(before), bench.outcome(after), strict=False)
    assert any(a.shape != b.shape or not np.array_equal(a, b) for a, b in pairs), f"{option}={other} under {base}"
    return True


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_option_under_every_algorithm(bench: OptionBench, name: str) -> None:
    taken = {option for option, other in OTHER.items() if check(bench, {"name": name}, {}, option, other)}
    for aggregation in {"token-mean", "sequence-mean", "constant"} - {
        make_algorithm(AlgorithmConfig(name=name)).aggregation
    }:  # type: ignore[arg-type]
        assert check(bench, {"name": name}, {}, "aggregation", aggregation)
    for settings in SETTINGS:
        taken |= {
            option
            for option, other in OTHER.items()
            if option not in (*taken, *settings) and check(bench, {"name": name, **settings}, {}, option, other)
        }
    compares = name in ("grpo", "dr-grpo", "rloo", "remax")
    assert ("gamma" in taken) == (not compares and name != "reinforce")
    assert ("dynamic_sampling" in taken) == ("drop_zero_variance" in taken) == compares
    assert ("normalize_std" in taken) == (name == "grpo")
    assert ("gae_lambda" in taken) == (name == "ppo")
    assert {"kl", "kl_in", "kl_estimator", "kl_straight_through", "importance_mode", "overlong_buffer"} <= taken
    valued = {option for option, other in VALUE.items() if check(bench, {"name": name}, {}, f"value.{option}", other)}
    assert valued == ({"lr", "detach", "clip", "extra_steps", "warmup_steps"} if name == "ppo" else set())
    if name == "ppo":
        assert check(bench, {"name": name, "minibatches": 2}, {"lr": 0.01, "extra_steps": 0}, "value.clip", 0.01)
        assert not check(bench, {"name": name}, {"extra_steps": 0}, "value.clip", 0.01)
        assert check(bench, {"name": name}, {"detach": False}, "value.weight", 2.0)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_option_under_every_loss(bench: OptionBench, loss: str) -> None:
    taken = {option for option, other in OTHER.items() if check(bench, {"loss": loss}, {}, option, other)}
    assert ("clip_high" in taken) == (loss in ("clip", "gspo", "cispo"))
    assert ("dual_clip" in taken) == (loss == "clip")
    assert ("dppo_threshold" in taken) == (loss == "dppo")
    assert ("importance_cap" in taken) == (loss != "cispo")
    check(bench, {"loss": loss, "importance_mode": "token-mask", "importance_cap": 1.4}, {}, "importance_cap", 1.2)
    for other in LOSSES:
        assert other == loss or check(bench, {"loss": loss}, {}, "loss", other)


def test_a_discount_with_an_episode_level_estimator_is_an_error_with_a_hint() -> None:
    for name in ("grpo", "rloo", "remax"):
        with pytest.raises(ConfigError, match=rf"gamma=0.9 has no effect with algorithm.name={name}"):
            validate(config({"name": name, "gamma": 0.9}, {}))
