"""Every option of every algorithm and of every loss changes a run; those of others are unknown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch

from rllm_gym.core import Episode, Step, StopReason, Trajectory, TurnTokens
from trainers import loop
from trainers.algorithms import ALGORITHMS, LOSSES, algorithm_options, make_algorithm
from trainers.config import (
    ConfigError,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
    validate,
)
from trainers.config.mapping import from_mapping
from trainers.learner import Learner
from trainers.model import Policy
from trainers.rollouts.collector import RolloutBatch
from trainers.sampler_backends import SAMPLER_BACKENDS
from trainers.samples import Sample, samples_of, with_length_penalty
from trainers.tiny_model import make_tiny_model

OTHER: dict[str, Any] = {
    "group_size": 5,
    "groups_per_step": 5,
    "normalize_std": True,
    "drop_zero_variance": False,
    "dynamic_sampling": 2,
    "length_penalty": 0.3,
    "gamma": 0.7,
    "gae_level": "token",
    "gae_lambda": 0.3,
    "clip_low": 0.75,
    "clip_high": 9.0,
    "importance_cap": 1.5,
    "importance_mode": "sequence-mask",
    "old_logprobs": "trainer",
    "epochs": 2,
    "minibatches": 2,
    "kl": 0.3,
    "kl_reward": 0.3,
    "overlong": "mask",
    "format_penalty": 0.3,
    "value_lr": 0.5,
}
SELECTED = ("name", "loss", "aggregation")
# Tested where it is read: test_distillation. So is reference_sync, in test_reference_sync.
ELSEWHERE = ("teacher", "teacher_top_k")
# What an algorithm cannot be without.
NEEDED: dict[Any, dict[str, Any]] = {"distillation": {"teacher": "x"}, "gkd": {"teacher": "x"}}


class OptionBench:
    """One optimizer step of a tiny model on fixed episodes, to observe the effect of a configuration."""

    def __init__(self, folder: Path) -> None:
        make_tiny_model(folder, hidden_size=32, num_heads=1, num_layers=1, vocab_size=300)
        self.policy = Policy(ModelConfig(path=str(folder), tuning="full"), reference=True)
        torch.manual_seed(0)
        with torch.no_grad():
            for _, parameter in self.policy.parameters:  # away from the reference
                parameter += 0.02 * torch.randn_like(parameter)
        self.policy.add_teacher(str(folder))
        self.before = {name: parameter.detach().clone() for name, parameter in self.policy.parameters}
        self.episodes = list(episodes())
        self.known: dict[str, list[np.ndarray]] = {}

    def outcome(self, config: TrainConfig) -> list[np.ndarray]:
        """Return everything that an option could change: the requested episodes, and the weights after an update."""
        key = repr(config.algorithm)
        if key not in self.known:
            self.known[key] = [*requested(config), *self._weights(config)]
        return self.known[key]

    def _weights(self, config: TrainConfig) -> Iterator[np.ndarray]:
        with torch.no_grad():
            for name, parameter in self.policy.parameters:
                parameter.copy_(self.before[name])
        algorithm = make_algorithm(config.algorithm, max_tokens=6)
        self.policy.value_heads.clear()
        learner = Learner(self.policy, OptimizerConfig(lr=0.1, max_grad_norm=1e9, warmup_steps=0), 10, algorithm.value)
        learner.optimizer = torch.optim.SGD(
            learner.optimizer.param_groups, lr=0.1
        )  # Adam's first step is independent of the gradient's size
        if self.policy.value_head is not None:
            torch.nn.init.constant_(self.policy.value_head.weight_D, 0.3)
        samples = samples_of(self.episodes, config.algorithm.format_penalty)
        samples = with_length_penalty(samples, config.algorithm.length_penalty)
        for step in (0, 5):
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
    yield np.array([draw.greedy for draw in algorithm.rollout_plan()])

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


def config(**algorithm: Any) -> TrainConfig:
    return from_mapping(
        TrainConfig,
        {
            "env": {"id": "x"},
            "model": {"path": "x", "tuning": "full"},
            "sampling": {"max_tokens": 4, "max_response_tokens": 6},
            "algorithm": {"group_size": 3, "groups_per_step": 3, **NEEDED.get(algorithm.get("name"), {}), **algorithm},
        },
    )


def without_effect(bench: OptionBench, **chosen: Any) -> list[str]:
    """Return the options of the chosen algorithm and loss that change nothing; none may be refused."""
    found = []
    before = config(**chosen)
    for name in (entry.name for entry in fields(before.algorithm)):
        if name in SELECTED + ELSEWHERE + tuple(chosen):
            continue
        value = 1e-4 if chosen.get("loss") == "dppo" and name in ("clip_low", "clip_high") else OTHER[name]
        after = config(**chosen, **{name: value})
        validate(after)
        pairs = zip(bench.outcome(before), bench.outcome(after), strict=False)
        if not any(a.shape != b.shape or not np.array_equal(a, b) for a, b in pairs):
            found.append(name)
    return found


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_option_of_every_algorithm_has_an_effect(bench: OptionBench, name: str) -> None:
    assert without_effect(bench, name=name) == []
    before = config(name=name)
    for aggregation in {"token-mean", "sequence-mean", "constant"} - {before.algorithm.aggregation}:
        pairs = zip(bench.outcome(before), bench.outcome(config(name=name, aggregation=aggregation)), strict=True)
        assert any(not np.array_equal(a, b) for a, b in pairs), aggregation


@pytest.mark.parametrize("loss", LOSSES)
def test_every_option_of_every_loss_has_an_effect(bench: OptionBench, loss: str) -> None:
    assert without_effect(bench, loss=loss) == []
    # In gspo's narrow bounds there is nothing left for a second pass.
    assert without_effect(bench, loss=loss, old_logprobs="trainer") == (["epochs"] if loss == "gspo" else [])
    if "importance_cap" in {entry.name for entry in fields(config(loss=loss).algorithm)}:
        assert without_effect(bench, loss=loss, importance_cap=1.5) == []
    for other in LOSSES:
        pairs = zip(bench.outcome(config(loss=loss)), bench.outcome(config(loss=other)), strict=True)
        assert other == loss or any(not np.array_equal(a, b) for a, b in pairs), other


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_option_of_another_algorithm_is_unknown_and_the_error_says_which_has_it(name: str) -> None:
    own = {entry.name for entry in fields(algorithm_options(name))}
    for option in OTHER.keys() - own:
        with pytest.raises(ConfigError, match=rf"algorithm.{option}=.* not an option here; it is one only with algo"):
            config(name=name, **{option: OTHER[option]})


def test_a_run_has_at_most_80_options_with_every_algorithm_loss_backend_and_tuning() -> None:
    counts = {
        (name, loss, backend, tuning): len(
            leaves(
                from_mapping(
                    TrainConfig,
                    {
                        "algorithm": {"name": name} | ({"loss": loss} if name != "gkd" else {}),
                        "sampler": {"backend": backend},
                        "model": {"tuning": tuning},
                    },
                )
            )
        )
        for name in ALGORITHMS
        for loss in LOSSES
        for backend in SAMPLER_BACKENDS
        for tuning in get_args(get_type_hints(ModelConfig)["tuning"])
    }
    assert {case: count for case, count in counts.items() if count > 80} == {}


def leaves(section: Any) -> list[str]:
    """Return all options that have no options themselves."""
    return [
        leaf
        for entry in fields(section)
        for value in (getattr(section, entry.name),)
        for leaf in (leaves(value) if is_dataclass(value) else [entry.name])
    ]
