"""PPO: Schulman et al. 2015 and 2017; with turns as decisions: Turn-PPO (2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainers.algorithms.advantages import (
    AdvantageBatch,
    PerToken,
    batch_whitening,
    scatter,
    token_decisions,
    turn_decisions,
    zeros,
)
from trainers.algorithms.algorithm import Algorithm
from trainers.algorithms.gae import gae
from trainers.algorithms.options import DiscountOptions, ValueOptions
from trainers.option_checks import UnitFloat


@dataclass(frozen=True)
class PpoOptions(ValueOptions, DiscountOptions):
    """Options of PPO."""

    gae_level: Literal["turn", "token"] = "turn"
    """What PPO's value head estimates the value of: the state before each turn, or before each sampled token."""
    gae_lambda: UnitFloat = 1.0
    """Lambda of GAE: 1 uses the returns alone, with the value head as a baseline; 0 relies on the value head alone.
    Less than 1 helps once ``value/explained_variance`` is well above 0; before that it adds bias."""


def advantages(batch: AdvantageBatch, options: PpoOptions) -> PerToken:
    """Generalized advantage estimation with a value head, per turn or per token."""
    assert batch.values is not None
    assert batch.final_values is not None
    decisions = turn_decisions(batch) if options.gae_level == "turn" else token_decisions(batch)
    estimates, values = [], []
    for item in decisions:
        sample = batch.samples[item.sample]
        value_T = batch.values[item.sample][[tokens[0] for tokens in item.tokens]]
        final = 0.0
        if not sample.terminated:  # without a prompt after the last step, its state before that step stands for it
            has_prompt = sample.final_ids[item.agent]
            final = float(batch.final_values[item.sample][item.agent] if has_prompt else value_T[-1])
        values.append(value_T)
        estimates.append(gae(item.reward_T, value_T, final, gamma=options.gamma, lam=options.gae_lambda))
    shift, scale = batch_whitening(batch, decisions, estimates)
    adv, value, returns, decision = (zeros(batch) for _ in range(4))
    for item, adv_T, value_T in zip(decisions, estimates, values, strict=True):
        scatter(adv, item, (adv_T - shift) * scale)
        scatter(value, item, value_T)
        scatter(returns, item, adv_T + value_T)
        decision[item.sample][[tokens[0] for tokens in item.tokens]] = 1.0
    return {"adv": adv, "value": value, "return": returns, "decision": decision}


PPO = Algorithm("ppo", PpoOptions, advantages)
