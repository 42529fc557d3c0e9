"""Denominators of losses: only tokens that are trained on count, for each aggregation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from test_value_head import some_samples

from tests.chat.for_every import for_every
from trainers.algorithms import algorithm_options, make_algorithm
from trainers.config import ModelConfig, OptimizerConfig
from trainers.learner import Learner
from trainers.model import Policy
from trainers.samples import Sample
from trainers.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    folder = tmp_path_factory.mktemp("denominators") / "tiny"
    make_tiny_model(folder, hidden_size=32, num_heads=1, num_layers=1, vocab_size=300)
    return Policy(ModelConfig(path=str(folder), tuning="full"))


def batch() -> list[Sample]:
    """Two groups with a gradient, one without, and an episode that a limit truncated."""
    sampled = [sample for sample in some_samples(0, 40) if sample.num_sampled][:8]
    rewards, groups = (1.0, 0.0, 0.5, 0.25, 0.7, 0.7, 0.0, 0.9), (0, 0, 1, 1, 2, 2, 1, 1)
    return [
        replace(sample, reward=reward, group_id=f"g{group}", overlong=index == 7, turn_rewards=())
        for index, (sample, reward, group) in enumerate(zip(sampled, rewards, groups, strict=True))
    ]


def token_losses(policy: Policy, sample: Sample, adv: float) -> list[float]:
    """Return the clipped loss of each sampled token of all sequences, from a separate forward pass."""
    losses = []
    for sequence in sample.sequences:
        with torch.no_grad():
            logp_TV = policy.model(torch.tensor([sequence.ids])).logits[0].log_softmax(-1)
        for t, sampled in enumerate(sequence.mask):
            if sampled:
                ratio = np.exp(logp_TV[t - 1, sequence.ids[t]].item() - sequence.logprobs[t])
                losses.append(-min(ratio * adv, np.clip(ratio, 0.8, 1.28) * adv))
    return losses


@for_every("aggregation", ["token-mean", "sequence-mean", "constant"])
@for_every("budget", [16384, 20])
def test_the_loss_is_averaged_only_over_trained_tokens(policy: Policy, aggregation: Any, budget: int) -> None:
    samples = batch()
    config = algorithm_options(aggregation=aggregation, overlong="mask", clip_low=0.2, clip_high=0.28)
    algorithm = make_algorithm(config, max_tokens=7)
    targets = algorithm.targets(samples, {})
    assert algorithm.trainable_mask(samples).tolist() == [True, True, True, True, False, False, True, False]
    learner = Learner(policy, OptimizerConfig(lr=1e-12, tokens_per_microbatch=budget), 10)
    stats = learner.update(0, samples, targets, algorithm, 0.0)

    kept = [0, 1, 2, 3, 6]
    # The truncated episode is not part of the update; its reward is still part of its group's comparison.
    means = {"g0": 0.5, "g1": (0.5 + 0.25 + 0.0 + 0.9) / 4}
    by_episode = [token_losses(policy, samples[i], samples[i].reward - means[samples[i].group_id]) for i in kept]
    assert any(len(samples[i].sequences) > 1 for i in kept), "the branches of an episode do not count separately"
    flat = [loss for losses in by_episode for loss in losses]
    expected = {
        "token-mean": sum(flat) / len(flat),
        "sequence-mean": float(np.mean([np.mean(losses) for losses in by_episode])),
        "constant": sum(flat) / (7 * len(by_episode)),
    }
    assert stats.tokens == len(flat)
    assert stats.loss == pytest.approx(expected[aggregation], rel=1e-4)


def test_algorithms_and_losses_have_their_default_aggregation() -> None:
    assert algorithm_options().aggregation == "token-mean"
    assert algorithm_options("dr-grpo").aggregation == "constant"
    assert algorithm_options(loss="gspo").aggregation == "sequence-mean"
    assert algorithm_options("dr-grpo", aggregation="token-mean").aggregation == "token-mean"
