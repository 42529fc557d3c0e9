"""The value head: its inputs, which parameters its loss changes, and restoring it after a resume."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from echo_config import echo_config
from hypothesis import given, settings
from hypothesis import strategies as st

from rllm_gym.core import TokenSequence
from trainers.algorithms import AlgorithmRun, PerToken, algorithm_options, make_algorithm
from trainers.algorithms.gae import explained_variance
from trainers.config import ModelConfig, OptimizerConfig
from trainers.learner import Learner, TrainingDiverged
from trainers.loop import train
from trainers.model import Policy
from trainers.run.metrics import read_metrics
from trainers.run.setup import open_run
from trainers.samples import Sample
from trainers.tiny_model import make_tiny_model


def ppo(**options: Any) -> AlgorithmRun:
    return make_algorithm(algorithm_options("ppo", **options))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(
        tmp_path_factory.mktemp("value") / "tiny", hidden_size=32, num_heads=1, num_layers=1, vocab_size=300
    )


@pytest.fixture(scope="module")
def policy(folder: Path) -> Policy:
    return Policy(ModelConfig(path=str(folder), tuning="full"))


def some_samples(seed: int, count: int) -> list[Sample]:
    """Episodes of one to three sequences, some with a common prefix and some without sampled tokens."""
    rng, samples = np.random.default_rng(seed), []
    prompts = [tuple(rng.integers(5, 250, size=3).tolist()) for _ in range(2)]
    for index in range(count):
        sequences = []
        for turn in range(int(rng.integers(1, 4))):
            mask = (0, 0, 0, *rng.integers(0, 2, size=int(rng.integers(1, 6))).tolist())
            ids = prompts[rng.integers(2)] + tuple(rng.integers(5, 250, size=len(mask) - 3).tolist())
            logps = tuple(-5.0 * sampled for sampled in mask)
            turns = tuple(turn if sampled else -1 for sampled in mask)
            sequences.append(TokenSequence(ids, mask, logps, turns, (0.0,) * len(mask), turns))
        samples.append(Sample(f"e{index}", f"g{index}", 0.0, tuple(sequences)))
    return samples


def randomised(policy: Policy, learner: Learner) -> Learner:
    assert policy.value_head is not None
    torch.manual_seed(0)
    torch.nn.init.normal_(policy.value_head.weight_D)
    torch.nn.init.constant_(policy.value_head.bias, 0.5)
    return learner


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**16), count=st.integers(1, 5), budget=st.integers(1, 60))
def test_values_are_computed_from_the_state_before_each_token(
    policy: Policy, seed: int, count: int, budget: int
) -> None:
    learner = Learner(policy, OptimizerConfig(tokens_per_microbatch=budget), 10, ppo().value)
    randomised(policy, learner)
    samples = some_samples(seed, count)
    signals = learner.signals(samples, {"values"})
    for sample, value_N in zip(samples, signals["values"], strict=True):
        expected = []
        for sequence in sample.sequences:
            with torch.no_grad():
                hidden_TD = policy.model.base_model(torch.tensor([sequence.ids])).last_hidden_state[0]
                value_T = hidden_TD @ policy.value_head.weight_D + 0.5  # type: ignore[union-attr]
            expected += [value_T[t - 1].item() for t, sampled in enumerate(sequence.mask) if sampled]
        assert value_N == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("level", ["turn", "token"])
def test_a_truncated_episode_bootstraps_from_the_state_after_its_last_action(tmp_path: Path, level: str) -> None:
    """With gamma and lambda 1 the return of every decision is the reward plus the value of the prompt that would have
    been next: it contains the last observation.
    """
    config = echo_config(
        tmp_path,
        env={"max_turns": 1},
        algorithm={"name": "ppo", "gae_level": level},
        validation=None,
    )
    with open_run(config) as run:
        policy = run.policy
        (learner,) = run.state.learners.by_adapter.values()
        randomised(policy, learner)
        batch = run.prefetcher.get(0)
        samples = run.prefetcher.samples(batch)
        targets = run.state.algorithm.targets(samples, run.state.learners.signals(samples, {"values"}))
        assert len(samples) == 16
        for sample, return_N in zip(samples, targets["return"], strict=True):
            (final_ids,), (sequence,) = sample.final_ids, sample.sequences
            assert final_ids[: len(sequence)] == sequence.ids
            suffix = policy.tokenizer.decode(final_ids[len(sequence) :])
            assert suffix.removeprefix("<|end|>") == "<|user|>again<|end|><|assistant|>"
            with torch.no_grad():
                state_D = policy.model.base_model(torch.tensor([final_ids])).last_hidden_state[0, -1]
                value = (state_D @ policy.value_head.weight_D + 0.5).item()  # type: ignore[union-attr]
            assert not sample.terminated
            assert return_N == pytest.approx(np.full(sample.num_sampled, sample.reward + value), abs=1e-4)


def with_returns(samples: list[Sample], goal: float, adv: float) -> PerToken:
    values = {"adv": adv, "return": goal, "value": 0.0, "decision": 1.0}
    return {name: [np.full(sample.num_sampled, value) for sample in samples] for name, value in values.items()}


def weights(policy: Policy) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for _, parameter in policy.parameters]).clone()


def test_the_value_loss_trains_only_the_head_which_learns_first(folder: Path) -> None:
    after = {}
    for goal in (1.0, -1.0):
        policy = Policy(ModelConfig(path=str(folder), tuning="full"))
        algorithm = ppo()
        learner = randomised(policy, Learner(policy, OptimizerConfig(warmup_steps=1), 10, algorithm.value))
        samples, before = some_samples(1, 3), weights(policy)
        head = [parameter.detach().clone() for parameter in policy.value_head.parameters()]  # type: ignore[union-attr]
        stats = learner.update(0, samples, with_returns(samples, goal, 1.0), algorithm, 0.0)
        assert torch.equal(weights(policy), before), "only the head learns in the warm-up"
        assert learner.version == 0
        assert all(not torch.equal(a, b) for a, b in zip(head, policy.value_head.parameters(), strict=True))  # type: ignore[union-attr]
        assert stats.value_loss > 0
        assert stats.value_grad_norm > 0
        learner.update(1, samples, with_returns(samples, goal, 1.0), algorithm, 0.0)
        assert learner.version == 1
        after[goal] = weights(policy)
        assert not torch.equal(after[goal], before)
    assert torch.equal(after[1.0], after[-1.0])


def test_a_large_value_loss_does_not_change_the_policy_gradient(folder: Path) -> None:
    norms = []
    for goal in (0.0, 1e4):
        policy = Policy(ModelConfig(path=str(folder), tuning="full"))
        algorithm = ppo()
        learner = Learner(policy, OptimizerConfig(warmup_steps=0), 10, algorithm.value)
        samples, before = some_samples(1, 3), weights(policy)
        learner.update(0, samples, with_returns(samples, goal, 1.0), algorithm, 0.0)
        norms.append((weights(policy) - before).norm().item())
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)


def test_only_the_steps_of_the_policy_decide_whether_a_run_diverged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value head that can still be fitted must not hide a policy loss that is never finite; nor may the additional
    steps of the head turn one bad batch into a diverged run.
    """
    monkeypatch.setattr("trainers.learner.learner.MAX_BAD_STEPS", 2)
    algorithm, config, samples = ppo(), OptimizerConfig(warmup_steps=0), some_samples(1, 3)
    learner = Learner(Policy(ModelConfig(path=str(folder), tuning="full")), config, 10, algorithm.value)
    bad_policy, bad_batch = with_returns(samples, 1.0, np.inf), with_returns(samples, np.nan, np.nan)
    learner.update(0, samples, bad_batch, algorithm, 0.0)
    learner.update(1, samples, with_returns(samples, 1.0, 1.0), algorithm, 0.0)
    learner.update(2, samples, bad_policy, algorithm, 0.0)
    with pytest.raises(TrainingDiverged, match="2 optimizer steps in a row"):
        learner.update(3, samples, bad_policy, algorithm, 0.0)
    assert learner.version == 1


@pytest.mark.long
def test_the_value_head_learns_to_predict_returns(folder: Path) -> None:
    policy = Policy(ModelConfig(path=str(folder), tuning="full"))
    algorithm = ppo(value_lr=0.02)
    learner = Learner(policy, OptimizerConfig(), 1000, algorithm.value)
    samples = some_samples(3, 6)
    targets = with_returns(samples, 0.0, 1.0)
    rng = np.random.default_rng(0)
    for values in targets["return"]:
        values[:] = rng.normal()
    for step in range(120):
        learner.update(step, samples, targets, algorithm, 0.0)
    signals = learner.signals(samples, {"values"})
    explained = explained_variance(np.concatenate(signals["values"]), np.concatenate(targets["return"]))
    assert explained > 0.5


def test_the_value_head_is_in_checkpoints_and_a_run_without_one_rejects_them(folder: Path) -> None:
    policy = Policy(ModelConfig(path=str(folder), tuning="full"))
    learner = randomised(policy, Learner(policy, OptimizerConfig(), 10, ppo().value))
    file = io.BytesIO()
    torch.save(learner.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    other = Policy(ModelConfig(path=str(folder), tuning="full"))
    Learner(other, OptimizerConfig(), 10, ppo().value).load_state_dict(state)
    assert torch.equal(other.value_head.weight_D, policy.value_head.weight_D)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="value head"):
        Learner(Policy(policy.config), OptimizerConfig(), 10).load_state_dict({**state, "optimizer": {}})


def test_a_resumed_ppo_run_is_bit_identical_and_logs_value_metrics(tmp_path: Path) -> None:
    config = echo_config(
        tmp_path,
        deterministic=True,
        algorithm={"name": "ppo", "minibatches": 2, "gamma": 0.9},
        checkpoint={"every": 2, "keep": 3},
        validation={"every": 100, "tasks": 1, "samples": 1},
    )
    train(config)
    resumed = tmp_path / "resumed"
    shutil.copytree(tmp_path / "run", resumed)
    shutil.rmtree(resumed / "model")
    shutil.rmtree(resumed / "checkpoints" / "step-00000004")
    train(replace(config, output=str(resumed), resume=True))
    mine, theirs = (at / "model" / "model.safetensors" for at in (tmp_path / "run", resumed))
    assert mine.read_bytes() == theirs.read_bytes()
    for row in read_metrics(tmp_path / "run")[1:]:
        assert {
            "value/explained_variance",
            "value/loss",
            "value/grad_norm",
            "advantages/std",
            "sampling/importance_ratio/max",
        } <= row.keys()
        assert row["value/explained_variance"] <= 1.0
