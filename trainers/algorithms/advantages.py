"""Credit assignment: for each algorithm, the targets of each sampled token from a batch of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainers.algorithms.estimators import (
    BoolArray,
    FloatArray,
    batch_baseline,
    discounted_returns,
    gae,
    greedy_baseline,
    group_relative,
    leave_one_out,
    whitening_stats,
)
from trainers.algorithms.turns import SampledTurn, turns_of
from trainers.config import AlgorithmConfig
from trainers.samples import Sample


@dataclass(frozen=True, slots=True)
class AdvantageBatch:
    """Samples and their measurements. Lists have one entry per sample.

    Attributes:
        samples: The episodes.
        keep_B: Which episodes are trained on: only those count in batch statistics.
        cost: Cost of each sampled token, subtracted from its reward (the KL term in the reward).
        values: Value of the state in which each token was sampled, if there is a value head.
    """

    samples: Sequence[Sample]
    keep_B: BoolArray
    cost: list[FloatArray]
    values: list[FloatArray] | None = None

    @property
    def reward_B(self) -> FloatArray:
        """Total reward of each episode, minus the costs."""
        return np.array(
            [sample.reward - cost_N.sum() for sample, cost_N in zip(self.samples, self.cost, strict=True)], np.float64
        )

    @property
    def group_B(self) -> NDArray[np.object_]:
        return np.array([sample.group_id for sample in self.samples], dtype=object)

    @property
    def greedy_B(self) -> BoolArray:
        return np.array([sample.greedy for sample in self.samples], dtype=bool)


PerToken = Mapping[str, list[FloatArray]]
AdvantageFunction = Callable[[AdvantageBatch, AlgorithmConfig], PerToken]


def _grpo(batch: AdvantageBatch, config: AlgorithmConfig) -> PerToken:
    return _broadcast(batch, group_relative(batch.reward_B, batch.group_B, normalize_std=config.normalize_std))


def _rloo(batch: AdvantageBatch, config: AlgorithmConfig) -> PerToken:
    return _broadcast(batch, leave_one_out(batch.reward_B, batch.group_B))


def _remax(batch: AdvantageBatch, config: AlgorithmConfig) -> PerToken:
    return _broadcast(batch, greedy_baseline(batch.reward_B, batch.group_B, batch.greedy_B))


def _reinforce(batch: AdvantageBatch, config: AlgorithmConfig) -> PerToken:
    return _broadcast(batch, batch_baseline(batch.reward_B, batch.keep_B))


def _broadcast(batch: AdvantageBatch, adv_B: FloatArray) -> PerToken:
    """Assign the episode's advantage to every sampled token."""
    return {"adv": [np.full(sample.num_sampled, adv) for sample, adv in zip(batch.samples, adv_B, strict=True)]}


@dataclass(frozen=True, slots=True)
class _Decisions:
    """The decisions of one agent in one episode, in order: its turns or its tokens.

    Attributes:
        sample: Index of the episode.
        tokens: Sampled tokens of each decision, as indices into the sampled tokens of the sample.
        reward_T: Reward after each decision, minus the cost of its tokens.
    """

    sample: int
    tokens: list[NDArray[np.int64]]
    reward_T: FloatArray


def _turns(batch: AdvantageBatch) -> list[_Decisions]:
    return [
        _Decisions(
            index,
            [turn.tokens for turn in turns],
            np.array([turn.reward - batch.cost[index][turn.tokens].sum() for turn in turns]),
        )
        for index, turns in _turns_by_agent(batch)
    ]


def _tokens(batch: AdvantageBatch) -> list[_Decisions]:
    decisions = []
    for index, turns in _turns_by_agent(batch):
        reward_T = np.concatenate([-batch.cost[index][turn.tokens] for turn in turns])
        last = np.cumsum([len(turn.tokens) for turn in turns]) - 1
        reward_T[last] += [turn.reward for turn in turns]
        tokens = np.concatenate([turn.tokens for turn in turns])
        decisions.append(_Decisions(index, list(tokens[:, None]), reward_T))
    return decisions


def _turns_by_agent(batch: AdvantageBatch) -> list[tuple[int, list[SampledTurn]]]:
    return [(index, turns) for index, sample in enumerate(batch.samples) for turns in turns_of(sample) if turns]


def _reinforce_plus_plus(batch: AdvantageBatch, config: AlgorithmConfig) -> PerToken:
    return _whitened_returns(batch, _tokens(batch), config)


def _rebn(batch: AdvantageBatch, config: AlgorithmConfig) -> PerToken:
    return _whitened_returns(batch, _turns(batch), config)


def _whitened_returns(batch: AdvantageBatch, decisions: list[_Decisions], config: AlgorithmConfig) -> PerToken:
    returns = [discounted_returns(decision.reward_T, config.gamma) for decision in decisions]
    shift, scale = _batch_whitening(batch, decisions, returns)
    adv = _zeros(batch)
    for decision, return_T in zip(decisions, returns, strict=True):
        _scatter(adv, decision, (return_T - shift) * scale)
    return {"adv": adv}


def _ppo(batch: AdvantageBatch, config: AlgorithmConfig) -> PerToken:
    assert batch.values is not None
    decisions = _turns(batch) if config.gae_level == "turn" else _tokens(batch)
    advantages, values = [], []
    for item in decisions:
        sample = batch.samples[item.sample]
        value_T = batch.values[item.sample][[tokens[0] for tokens in item.tokens]]
        # For a truncated episode, the value of the last state the head was evaluated in stands for the value of the
        # next state: no prompt was built for that state, and the head is not trained on states after the end of a
        # reply.
        final = 0.0 if sample.terminated else float(value_T[-1])
        values.append(value_T)
        advantages.append(gae(item.reward_T, value_T, final, gamma=config.gamma, lam=config.gae_lambda))
    shift, scale = _batch_whitening(batch, decisions, advantages) if config.whiten else (0.0, 1.0)
    adv, value, goal, decision = (_zeros(batch) for _ in range(4))
    for item, adv_T, value_T in zip(decisions, advantages, values, strict=True):
        _scatter(adv, item, (adv_T - shift) * scale)
        _scatter(value, item, value_T)
        _scatter(goal, item, adv_T + value_T)
        decision[item.sample][[tokens[0] for tokens in item.tokens]] = 1.0
    return {"adv": adv, "value": value, "return": goal, "decision": decision}


def _zeros(batch: AdvantageBatch) -> list[FloatArray]:
    return [np.zeros(sample.num_sampled) for sample in batch.samples]


def _scatter(per_token: list[FloatArray], decisions: _Decisions, value_T: FloatArray) -> None:
    """Assign the value of each decision to all its tokens."""
    for tokens, value in zip(decisions.tokens, value_T, strict=True):
        per_token[decisions.sample][tokens] = value


def _batch_whitening(
    batch: AdvantageBatch, decisions: list[_Decisions], values: list[FloatArray]
) -> tuple[float, float]:
    """Return shift and scale over the decisions of the episodes that are trained on."""
    counted = [value_T for decision, value_T in zip(decisions, values, strict=True) if batch.keep_B[decision.sample]]
    return whitening_stats(np.concatenate(counted) if counted else np.zeros(0))


ADVANTAGES: dict[str, AdvantageFunction] = {
    "grpo": _grpo,
    "dr-grpo": _grpo,
    "rloo": _rloo,
    "remax": _remax,
    "reinforce": _reinforce,
    "reinforce++": _reinforce_plus_plus,
    "rebn": _rebn,
    "ppo": _ppo,
}
"""Credit functions by algorithm name."""
