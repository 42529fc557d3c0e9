"""Advantages of turns and tokens equal oracles that follow the papers' sums, for episodes with branches, several
agents, turns without tokens, and truncation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rllm_gym.core import Episode, Step, StopReason, Trajectory, TurnTokens
from tests.chat.for_every import for_every
from trainers.algorithms import PerToken, algorithm_options, make_algorithm
from trainers.algorithms.gae import discounted_returns, gae
from trainers.algorithms.turns import turns_of
from trainers.samples import Sample, samples_of


@dataclass
class Turn:
    """A generated turn: its number of tokens, its branch, its reward, whether it was valid."""

    tokens: int
    branch: int
    reward: float
    invalid: bool


turns = st.builds(Turn, st.integers(0, 3), st.integers(0, 2), st.sampled_from([-0.5, 0.0, 0.25, 1.0]), st.booleans())
agents = st.lists(st.lists(turns, min_size=1, max_size=5), min_size=1, max_size=2)
ends = st.sampled_from([StopReason.SUCCESS, StopReason.FAILURE, StopReason.MAX_TURNS, StopReason.CONTEXT_LENGTH])
batches = st.lists(st.tuples(agents, ends), min_size=1, max_size=5)


@dataclass
class SampledEpisodes:
    """Episodes whose sampled tokens all have unique ids, with numbers for each of them."""

    episodes: list[Episode] = field(default_factory=list)
    value: dict[int, float] = field(default_factory=dict)
    ref: dict[int, float] = field(default_factory=dict)
    logp: dict[int, float] = field(default_factory=dict)
    final: dict[int, int] = field(default_factory=dict)  # for each sampled token the last one of its agent's final ids

    def signals(self, samples: list[Sample]) -> PerToken:
        return {
            "values": [np.array([self.value[i] for i in sampled_ids(sample)]) for sample in samples],
            "final_values": [
                np.array([self.value[ids[-1]] if ids and not sample.terminated else 0.0 for ids in sample.final_ids])
                for sample in samples
            ],
            "ref_logp": [np.array([self.ref[i] for i in sampled_ids(sample)]) for sample in samples],
        }


def sample_episodes(batch: list[tuple[list[list[Turn]], StopReason]], seed: int) -> SampledEpisodes:
    rng, number, sampled = np.random.default_rng(seed), count(1000), SampledEpisodes()
    for index, (trajectories, end) in enumerate(batch):
        episode = Episode(f"e{index}", "t", group_id=f"g{index // 2}", stop_reason=end)
        for name, drawn in enumerate(trajectories):
            steps = []
            for turn in drawn:
                ids = tuple(next(number) for _ in range(turn.tokens))
                for token in ids:
                    sampled.value[token] = rng.normal()
                    sampled.logp[token], sampled.ref[token] = -rng.exponential(), -rng.exponential()
                logprobs = tuple(sampled.logp[token] for token in ids)
                tokens = TurnTokens((next(number),), ids, logprobs, branch=turn.branch)
                steps.append(Step(reward=turn.reward, tokens=tokens, info={"invalid_action": turn.invalid}))
            final = next(number)
            has_final = rng.random() < 0.7
            if has_final:
                sampled.value[final] = rng.normal()
                sampled.final |= {i: final for step in steps for i in step.tokens.ids}
            final_ids = (0, final) if has_final else ()
            episode.trajectories.append(Trajectory(f"agent_{name}", steps=steps, final_ids=final_ids))
        episode.reward = sum(step.reward for step in episode.trajectories[0].steps)
        sampled.episodes.append(episode)
    return sampled


def sampled_ids(sample: Sample) -> list[int]:
    return [i for s in sample.sequences for i, sampled in zip(s.ids, s.mask, strict=True) if sampled]


def decided(steps: list[Step], total: float, penalty: float) -> list[tuple[tuple[int, ...], float]]:
    """For each turn with sampled tokens, return its tokens and its reward, so that all rewards sum to the total."""
    rewarded = [step.reward - penalty * step.info["invalid_action"] for step in steps]
    rewarded[-1] += total - sum(rewarded)
    turns: list[tuple[tuple[int, ...], float]] = []
    early = 0.0
    for step, reward in zip(steps, rewarded, strict=True):
        assert step.tokens is not None
        if step.tokens.ids:
            turns.append((step.tokens.ids, reward + (early if not turns else 0.0)))
        elif turns:
            turns[-1] = (turns[-1][0], turns[-1][1] + reward)
        else:
            early += reward
    return turns


def streams(
    sampled: SampledEpisodes, penalty: float = 0.0
) -> list[tuple[Episode, list[tuple[tuple[int, ...], float]]]]:
    """One for each agent of each episode with sampled tokens."""
    result = []
    for episode in sampled.episodes:
        steps = [step for mine in episode.trajectories for step in mine.steps]
        share = penalty / len(steps)
        total = episode.reward - share * sum(bool(step.info["invalid_action"]) for step in steps)
        for trajectory in episode.trajectories:
            if turns := decided(trajectory.steps, total, share):
                result.append((episode, turns))
    return result


def by_token(samples: list[Sample], per_sample: list[np.ndarray]) -> dict[int, float]:
    return {
        token: float(value)
        for sample, values in zip(samples, per_sample, strict=True)
        for token, value in zip(sampled_ids(sample), values, strict=True)
    }


def close(found: dict[int, float], expected: dict[int, float]) -> None:
    assert found.keys() == expected.keys()
    for token, value in expected.items():
        assert found[token] == pytest.approx(value, abs=1e-9)


def gae_sum(rewards: list[float], values: list[float], final: float, gamma: float, lam: float) -> list[float]:
    """Schulman et al. 2015, equation 16, as the sum it is: A_t = sum over l of (gamma lam)^l delta_{t+l}."""
    after = [*values[1:], final]
    deltas = [r + gamma * later - v for r, v, later in zip(rewards, values, after, strict=True)]
    return [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))]


shares = st.sampled_from([0.0, 0.5, 0.9, 1.0])


@settings(max_examples=60, deadline=None)
@given(batch=batches, seed=st.integers(0, 999), gamma=shares, lam=shares, penalty=st.sampled_from([0.0, 0.3]))
def test_ppo_by_turns(batch: list, seed: int, gamma: float, lam: float, penalty: float) -> None:
    sampled = sample_episodes(batch, seed)
    samples = samples_of(sampled.episodes, penalty)
    config = algorithm_options("ppo", gamma=gamma, gae_lambda=lam)
    per_token = make_algorithm(config).targets(samples, sampled.signals(samples))
    adv, goal, decisions = {}, {}, set()
    for episode, turns in streams(sampled, penalty):
        values = [sampled.value[ids[0]] for ids, _ in turns]
        cut = episode.stop_reason in (StopReason.MAX_TURNS, StopReason.CONTEXT_LENGTH)
        final = sampled.value[sampled.final.get(turns[-1][0][0], turns[-1][0][0])] if cut else 0.0
        for (ids, _), a, v in zip(
            turns, gae_sum([r for _, r in turns], values, final, gamma, lam), values, strict=True
        ):
            decisions.add(ids[0])
            adv |= dict.fromkeys(ids, a)
            goal |= dict.fromkeys(ids, a + v)
    close(by_token(samples, per_token["adv"]), whitened(adv, list(decisions)) if decisions else {})
    close(by_token(samples, per_token["return"]), goal)
    assert {token for token, yes in by_token(samples, per_token["decision"]).items() if yes} == decisions


@settings(max_examples=60, deadline=None)
@given(batch=batches, seed=st.integers(0, 999), gamma=shares, lam=shares)
def test_ppo_by_tokens_skips_environment_tokens(batch: list, seed: int, gamma: float, lam: float) -> None:
    sampled = sample_episodes(batch, seed)
    samples = samples_of(sampled.episodes)
    config = algorithm_options("ppo", gae_level="token", gamma=gamma, gae_lambda=lam)
    per_token = make_algorithm(config).targets(samples, sampled.signals(samples))
    expected = {}
    for episode, turns in streams(sampled):
        tokens = [token for ids, _ in turns for token in ids]
        rewards = [reward if token == ids[-1] else 0.0 for ids, reward in turns for token in ids]
        cut = episode.stop_reason in (StopReason.MAX_TURNS, StopReason.CONTEXT_LENGTH)
        values = [sampled.value[token] for token in tokens]
        final = sampled.value[sampled.final.get(tokens[-1], tokens[-1])] if cut else 0.0
        expected |= dict(zip(tokens, gae_sum(rewards, values, final, gamma, lam), strict=True))
    close(by_token(samples, per_token["adv"]), whitened(expected, list(expected)) if expected else {})
    assert all(values.all() for values in per_token["decision"])


def whitened(values: dict[int, float], decisions: list[int]) -> dict[int, float]:
    """Whiten by mean and standard deviation of the decisions, each identified by one of its tokens."""
    numbers = np.array([values[token] for token in decisions])
    return {token: (value - numbers.mean()) / (numbers.std() + 1e-6) for token, value in values.items()}


@settings(max_examples=60, deadline=None)
@given(batch=batches, seed=st.integers(0, 999), gamma=shares)
def test_rebn_whitens_discounted_returns_of_turns(batch: list, seed: int, gamma: float) -> None:
    sampled = sample_episodes(batch, seed)
    samples = samples_of(sampled.episodes)
    adv = make_algorithm(algorithm_options("rebn", gamma=gamma)).targets(samples, {})["adv"]
    expected, decisions = {}, []
    for _, turns in streams(sampled):
        for t, (ids, _) in enumerate(turns):
            goal = sum(gamma ** (k - t) * reward for k, (_, reward) in enumerate(turns) if k >= t)
            expected |= dict.fromkeys(ids, goal)
            decisions.append(ids[0])
    close(by_token(samples, adv), whitened(expected, decisions) if decisions else {})


@settings(max_examples=60, deadline=None)
@given(batch=batches, seed=st.integers(0, 999), gamma=shares, kl=st.sampled_from([0.0, 0.2]))
def test_reinforce_plus_plus_discounts_by_token_with_the_kl_in_the_reward(
    batch: list, seed: int, gamma: float, kl: float
) -> None:
    sampled = sample_episodes(batch, seed)
    samples = samples_of(sampled.episodes)
    config = algorithm_options("reinforce++", gamma=gamma, kl_reward=kl)
    adv = make_algorithm(config).targets(samples, sampled.signals(samples) if kl else {})["adv"]
    expected = {}
    for _, turns in streams(sampled):
        rewards = {
            token: (reward if token == ids[-1] else 0.0) - kl * (sampled.logp[token] - sampled.ref[token])
            for ids, reward in turns
            for token in ids
        }
        tokens = list(rewards)
        for t, token in enumerate(tokens):
            expected[token] = sum(gamma ** (k - t) * rewards[tokens[k]] for k in range(t, len(tokens)))
    close(by_token(samples, adv), whitened(expected, list(expected)) if expected else {})


def test_kl_in_the_reward_is_taken_from_the_episodes_that_groups_compare() -> None:
    sampled = sample_episodes(
        [([[Turn(2, 0, 1.0, False)]], StopReason.SUCCESS), ([[Turn(1, 0, 0.0, False)]], StopReason.FAILURE)], 0
    )
    samples = samples_of(sampled.episodes)
    config = algorithm_options(kl_reward=0.5)
    adv = make_algorithm(config).targets(samples, sampled.signals(samples))["adv"]

    def total_reward(sample: Sample) -> float:
        return sample.reward - 0.5 * sum(sampled.logp[token] - sampled.ref[token] for token in sampled_ids(sample))

    first, second = (total_reward(sample) for sample in samples)
    assert np.allclose(adv[0], (first - second) / 2)
    assert np.allclose(adv[1], (second - first) / 2)


def test_only_trained_samples_count_in_the_statistics_of_the_batch() -> None:
    batch = [([[Turn(1, 0, reward, False)]], end) for reward, end in
             ((1.0, StopReason.SUCCESS), (0.0, StopReason.FAILURE), (-50.0, StopReason.CONTEXT_LENGTH))]  # fmt: skip
    samples = samples_of(sample_episodes(batch, 0).episodes)
    algorithm = make_algorithm(algorithm_options("rebn", overlong="mask"))
    assert algorithm.trainable_mask(samples).tolist() == [True, True, False]
    assert np.allclose(np.concatenate(algorithm.targets(samples, {})["adv"])[:2], [1.0, -1.0], atol=1e-5)
    assert make_algorithm(algorithm_options("rebn")).trainable_mask(samples).all()


@settings(max_examples=60, deadline=None)
@given(batch=batches, seed=st.integers(0, 999), penalty=st.sampled_from([0.0, 0.3]))
def test_the_rewards_of_each_agents_turns_sum_to_the_episodes(batch: list, seed: int, penalty: float) -> None:
    for sample in samples_of(sample_episodes(batch, seed).episodes, penalty):
        assert [sum(rewards) for rewards in sample.turn_rewards] == pytest.approx(
            [sample.reward] * len(sample.turn_rewards)
        )
        for turns in turns_of(sample):
            if turns.tokens:
                assert sum(turns.reward_T) == pytest.approx(sample.reward)
        positions = [p for turns in turns_of(sample) for tokens in turns.tokens for p in tokens]
        assert sorted(positions) == list(range(sample.num_sampled))


def test_gae_ends_are_returns_and_one_step_errors() -> None:
    reward, value = np.array([0.0, 1.0, 2.0]), np.array([0.5, -1.0, 3.0])
    monte_carlo = gae(reward, value, 0.0, gamma=0.9, lam=1.0)
    assert np.allclose(monte_carlo + value, discounted_returns(reward, 0.9))
    assert np.allclose(gae(reward, value, 7.0, gamma=0.9, lam=0.0), reward + 0.9 * np.array([-1, 3, 7]) - value)


@for_every("reason", StopReason)
def test_limits_truncate_and_the_end_of_the_task_terminates(reason: StopReason) -> None:
    samples = samples_of(sample_episodes([([[Turn(1, 0, 0.0, False)]], reason)], 0).episodes)
    for sample in samples:
        assert sample.terminated == (
            reason.value in ("success", "failure", "invalid_action", "server_lost", "user_lost")
        )
        assert sample.overlong == (reason.value in ("max_tokens", "context_length", "timeout"))


def test_a_truncated_reply_in_a_single_turn_environment_is_overlong() -> None:
    tokens = TurnTokens((1,), (2, 3), (0.0, 0.0), finish_reason="length")
    episode = Episode("e", "t", trajectories=[Trajectory(steps=[Step(tokens=tokens)])], stop_reason=StopReason.FAILURE)
    (sample,) = samples_of([episode])
    assert sample.overlong
    assert sample.terminated
