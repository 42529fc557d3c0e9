"""What the advantage functions of all algorithms use: the batch, the decisions in it, and their values per token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainers.algorithms.gae import discounted_returns
from trainers.algorithms.turns import Decisions, turns_of
from trainers.array_types import BoolArray, FloatArray
from trainers.samples import Sample

STD_EPSILON = 1e-6
"""Added to a standard deviation before something is divided by it."""


PerToken = Mapping[str, list[FloatArray]]
"""By name, for each sample one value per sampled token, its sequences in order."""


@dataclass(frozen=True, slots=True)
class AdvantageBatch:
    """Samples and their measurements. Lists have one entry per sample.

    Attributes:
        samples: The episodes.
        keep_B: Which episodes are trained on: only those count in batch statistics.
        cost: Cost of each sampled token, subtracted from its reward (the KL term in the reward).
        values: Value of the state in which each token was sampled, if there is a value head.
        final_values: For each agent of the sample the value of the state after its last step, where the sample has its
            ``final_ids``; 0 elsewhere.
        signals: What the algorithm's ``signals`` ask for, by name: one value per sampled token.
    """

    samples: Sequence[Sample]
    keep_B: BoolArray
    cost: list[FloatArray]
    values: list[FloatArray] | None = None
    final_values: list[FloatArray] | None = None
    signals: PerToken = field(default_factory=dict)

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


def select(per_token: PerToken, chosen: Sequence[int]) -> PerToken:
    """Return the values of the chosen samples."""
    return {name: [values[index] for index in chosen] for name, values in per_token.items()}


def by_samples(
    parts: Mapping[str, Sequence[int]], size: int, compute: Callable[[str, Sequence[int]], PerToken]
) -> dict[str, list[FloatArray]]:
    """Compute values for each part of ``size`` samples, given by name and indices, and return them for all samples."""
    columns: dict[str, list[FloatArray]] = {}
    for part, chosen in parts.items():
        for name, values in compute(part, chosen).items():
            column = columns.setdefault(name, [np.zeros(0)] * size)
            for index, value_N in zip(chosen, values, strict=True):
                column[index] = value_N
    return columns


def per_episode(batch: AdvantageBatch, adv_B: FloatArray) -> PerToken:
    """Assign the episode's advantage to every sampled token."""
    return {"adv": [np.full(sample.num_sampled, adv) for sample, adv in zip(batch.samples, adv_B, strict=True)]}


def checked_per_token(
    returned: Any, names: Sequence[str], batch: AdvantageBatch, owner: str
) -> dict[str, list[FloatArray]]:
    """Return what an advantage function returned, as arrays of 64-bit floats.

    Args:
        returned: What it returned.
        names: What it must contain at least.
        batch: What it was called with.
        owner: Its algorithm, for messages.

    Raises:
        ValueError: A name is missing, or there is not one finite number per sampled token. Numbers that are not finite
            are accepted if rewards or values are not finite either: the optimizer step is then skipped.
    """
    owner = f"the advantages of {owner}"
    if not isinstance(returned, Mapping) or not set(names) <= set(returned):
        what = f"the keys {list(returned)}" if isinstance(returned, Mapping) else f"a {type(returned).__name__}"
        raise ValueError(f"{owner} must be a mapping with the keys {', '.join(names)}, not {what}")
    checked: dict[str, list[FloatArray]] = {}
    for name, values in returned.items():
        if not hasattr(values, "__len__") or len(values) != len(batch.samples):
            what = f"{len(values)} entries" if hasattr(values, "__len__") else f"a {type(values).__name__}"
            raise ValueError(
                f"{owner} have {what} under {name!r}; expected one array per sample ({len(batch.samples)})"
            )
        checked[name] = [
            _checked(value, sample.num_sampled, f"{owner}: {name!r} of episode {sample.episode_id!r}")
            for value, sample in zip(values, batch.samples, strict=True)
        ]
        for value_N, sample, kept in zip(checked[name], batch.samples, batch.keep_B, strict=True):
            if kept and not np.isfinite(value_N).all() and _is_finite(batch):
                raise ValueError(
                    f"{owner}: {name!r} of episode {sample.episode_id!r} is {value_N[~np.isfinite(value_N)][0]}, "
                    "although all rewards are finite; check for a division by 0"
                )
    return checked


def _checked(value: Any, length: int, what: str) -> FloatArray:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # e.g. a tensor that requires a gradient
        raise ValueError(f"{what} cannot be converted to an array: {error}; expected {length} numbers") from error
    if array.dtype.kind not in "fiub" or array.shape != (length,):
        raise ValueError(
            f"{what} is an array of {array.dtype} with shape {array.shape}; expected numbers with shape ({length},), "
            "one per sampled token"
        )
    return array.astype(np.float64, copy=False)


def _is_finite(batch: AdvantageBatch) -> bool:
    return all(
        np.isfinite(values).all()
        for values in (batch.reward_B, *batch.cost, *(batch.values or ()), *(batch.final_values or ()))
    )


def turn_decisions(batch: AdvantageBatch) -> list[Decisions]:
    """Return the turns of each agent, with their costs subtracted."""
    return [
        replace(turns, reward_T=turns.reward_T - [batch.cost[turns.sample][tokens].sum() for tokens in turns.tokens])
        for turns in _turns_by_agent(batch)
    ]


def token_decisions(batch: AdvantageBatch) -> list[Decisions]:
    """Return the tokens of each agent, with their costs subtracted; the last one of a turn has the turn's reward."""
    decisions = []
    for turns in _turns_by_agent(batch):
        tokens = np.concatenate(turns.tokens)
        reward_T = -batch.cost[turns.sample][tokens]
        reward_T[np.cumsum([len(own) for own in turns.tokens]) - 1] += turns.reward_T
        decisions.append(replace(turns, tokens=list(tokens[:, None]), reward_T=reward_T))
    return decisions


def _turns_by_agent(batch: AdvantageBatch) -> list[Decisions]:
    return [turns for index, sample in enumerate(batch.samples) for turns in turns_of(sample, index) if turns.tokens]


def whitened_returns(batch: AdvantageBatch, decisions: list[Decisions], gamma: float) -> PerToken:
    """Assign the discounted return of each decision, whitened over the batch, to its tokens."""
    returns = [discounted_returns(decision.reward_T, gamma) for decision in decisions]
    shift, scale = batch_whitening(batch, decisions, returns)
    adv = zeros(batch)
    for decision, return_T in zip(decisions, returns, strict=True):
        scatter(adv, decision, (return_T - shift) * scale)
    return {"adv": adv}


def zeros(batch: AdvantageBatch) -> list[FloatArray]:
    return [np.zeros(sample.num_sampled) for sample in batch.samples]


def scatter(per_token: list[FloatArray], decisions: Decisions, value_T: FloatArray) -> None:
    """Assign the value of each decision to all its tokens."""
    for tokens, value in zip(decisions.tokens, value_T, strict=True):
        per_token[decisions.sample][tokens] = value


def batch_whitening(batch: AdvantageBatch, decisions: list[Decisions], values: list[FloatArray]) -> tuple[float, float]:
    """Return shift and scale that normalize the values of the episodes that are trained on to mean 0 and standard
    deviation 1; constant values become 0.
    """
    counted = [value_T for decision, value_T in zip(decisions, values, strict=True) if batch.keep_B[decision.sample]]
    value_N = np.concatenate([np.zeros(0), *counted])
    return (float(value_N.mean()), 1.0 / (float(value_N.std()) + STD_EPSILON)) if len(value_N) else (0.0, 1.0)
