"""Advantages and losses equal short numpy oracles, written only from the formulas of the papers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from token_sequences import token_sequence

from trainers.algorithms import algorithm_options, make_algorithm
from trainers.algorithms.grpo import group_relative
from trainers.algorithms.losses import (
    clipped_surrogate,
    kl_to_reference,
)
from trainers.batching import make_micro_batches, rows_of
from trainers.samples import Sample


def grpo_oracle(
    rewards: list[float],
    groups: list[int],
    logp: list[np.ndarray],
    old: list[np.ndarray],
    *,
    std: bool,
    low: float,
    high: float,
) -> float:
    """GRPO on a batch, token by token: advantages, clipping, mean over all tokens of groups with variance."""
    total, tokens = 0.0, 0
    for reward, group, new_T, old_T in zip(rewards, groups, logp, old, strict=True):
        mine = np.array([r for r, g in zip(rewards, groups, strict=True) if g == group])
        if mine.max() == mine.min():
            continue
        advantage = reward - mine.mean()
        if std:
            advantage /= mine.std() + 1e-6
        for new, before in zip(new_T, old_T, strict=True):
            ratio = np.exp(new - before)
            total -= min(ratio * advantage, np.clip(ratio, 1 - low, 1 + high) * advantage)
            tokens += 1
    return total / tokens if tokens else 0.0


def sample(reward: float, group: int, old_T: np.ndarray) -> Sample:
    """Return an episode of two prompt tokens and one sampled token per log-prob."""
    n = len(old_T)
    sequence = token_sequence((1, 2) + (3,) * n, (0, 0) + (1,) * n, (0.0, 0.0, *old_T))
    return Sample("e", f"g{group}", reward, (sequence,))


batches = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=12
)


@settings(max_examples=200, deadline=None)
@given(rows=batches, seed=st.integers(0, 2**32 - 1), std=st.booleans(), budget=st.integers(1, 60))
def test_grpo_equals_the_oracle_for_every_split_into_micro_batches(
    rows: list[tuple[float, int, int]], seed: int, std: bool, budget: int
) -> None:
    rng = np.random.default_rng(seed)
    rewards, groups = [row[0] for row in rows], [row[1] for row in rows]
    old = [-rng.exponential(size=row[2]) for row in rows]
    new = [before + rng.normal(scale=0.5, size=len(before)) for before in old]
    config = algorithm_options(normalize_std=std, clip_low=0.2, clip_high=0.28)
    algorithm = make_algorithm(config)
    samples = [sample(r, g, o) for r, g, o in zip(rewards, groups, old, strict=True)]
    targets = algorithm.targets(samples, {})
    keep = algorithm.trainable_mask(samples).nonzero()[0]
    # The new log-probs are passed as one more target, so that they are sorted and split like the others.
    trained = {"adv": targets["adv"], "new": new}
    kept = rows_of([samples[i] for i in keep], {name: [values[i] for i in keep] for name, values in trained.items()})
    total, seen = 0.0, 0
    for batch in make_micro_batches(kept, tokens_per_microbatch=budget):
        assert batch.ids_BT.numel() <= budget or len(batch.ids_BT) == 1
        loss_N, _ = algorithm.loss(batch.targets["new"], batch)
        total += float((batch.weight_N * loss_N).sum())
        seen += len(loss_N)
    assert seen == sum(row.num_sampled for row in kept)
    assert total == pytest.approx(grpo_oracle(rewards, groups, new, old, std=std, low=0.2, high=0.28), abs=2e-5)


def test_a_group_with_equal_rewards_has_no_advantage_and_is_skipped() -> None:
    reward_B, group_B = np.array([1.0, 1.0, 0.0, 1.0]), np.array(["a", "a", "b", "b"])
    assert group_relative(reward_B, group_B).tolist() == [0.0, 0.0, -0.5, 0.5]
    assert np.allclose(group_relative(reward_B, group_B, normalize_std=True), [0, 0, -1, 1], atol=1e-5)
    samples = [sample(r, g, np.zeros(3)) for r, g in zip(reward_B, [0, 0, 1, 1], strict=True)]
    assert make_algorithm(algorithm_options()).trainable_mask(samples).tolist() == [False, False, True, True]
    assert make_algorithm(algorithm_options(drop_zero_variance=False)).trainable_mask(samples).all()


@settings(max_examples=100, deadline=None)
@given(rows=batches)
def test_rloo_is_the_reward_minus_the_mean_of_the_others(rows: list[tuple[float, int, int]]) -> None:
    samples = [sample(reward, group, np.zeros(n)) for reward, group, n in rows]
    config = algorithm_options("rloo")
    for index, adv_N in enumerate(make_algorithm(config).targets(samples, {})["adv"]):
        others = [r for i, (r, g, _) in enumerate(rows) if g == rows[index][1] and i != index]
        expected = rows[index][0] - np.mean(others) if others else 0.0
        assert np.allclose(adv_N, expected)
        assert len(adv_N) == rows[index][2]


def test_remax_compares_with_the_greedy_episode_which_is_never_trained_on() -> None:
    config = algorithm_options("remax", group_size=1)
    algorithm = make_algorithm(config)
    assert [draw.greedy for draw in algorithm.rollout_plan()] == [False, True]
    stochastic, greedy = sample(1.0, 0, np.zeros(2)), sample(0.25, 0, np.zeros(2))
    greedy = Sample("e", greedy.group_id, greedy.reward, greedy.sequences, greedy=True)
    lonely = sample(1.0, 1, np.zeros(2))
    adv = algorithm.targets([stochastic, greedy, lonely], {})["adv"]
    assert [a.tolist() for a in adv] == [[0.75, 0.75], [0.0, 0.0], [0.0, 0.0]]
    assert algorithm.trainable_mask([stochastic, greedy, lonely]).tolist() == [True, False, False]


def test_reinforce_subtracts_the_mean_of_the_batch() -> None:
    config = algorithm_options("reinforce")
    samples = [sample(reward, index, np.zeros(1)) for index, reward in enumerate((0.0, 1.0, 0.5))]
    adv = make_algorithm(config).targets(samples, {})["adv"]
    assert np.allclose(np.concatenate(adv), [-0.5, 0.5, 0.0])


def test_clipping_removes_the_gradient_only_where_ppo_does() -> None:
    old = torch.zeros(6)
    #         over, A>0   over, A<0   under, A<0  under, A>0  inside      inside
    ratio = torch.tensor([1.4, 1.4, 0.7, 0.7, 1.1, 0.9])
    adv = torch.tensor([1.0, -1.0, -1.0, 1.0, 1.0, -1.0])
    logp = ratio.log().requires_grad_()
    loss, clipped = clipped_surrogate(logp, old, adv, low=0.2, high=0.28)
    loss.sum().backward()
    assert clipped.tolist() == [1, 0, -1, 0, 0, 0]
    assert logp.grad is not None
    assert torch.allclose(logp.grad, torch.where(clipped.bool(), torch.zeros(6), -ratio * adv), atol=1e-6)


def test_the_kl_estimator_agrees_with_the_exact_kl_on_average() -> None:
    rng = np.random.default_rng(0)
    policy, reference = rng.dirichlet(np.ones(8)), rng.dirichlet(np.ones(8))
    logp, ref = torch.tensor(np.log(policy)), torch.tensor(np.log(reference))
    exact = float((policy * np.log(policy / reference)).sum())
    mean = (torch.tensor(policy) * kl_to_reference(logp, ref)).sum().item()
    assert mean == pytest.approx(exact, abs=1e-9)
    assert (kl_to_reference(logp, ref) >= 0).all()
