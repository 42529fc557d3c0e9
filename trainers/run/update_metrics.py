"""Metrics of an update: for all weights together, and per role and adapter if there are several."""

from __future__ import annotations

from collections.abc import Mapping

from trainers.config import AlgorithmConfig
from trainers.entropy import EntropyBonus
from trainers.learner import UpdateStats
from trainers.learners import in_all

_OF_ROLES = {
    "entropy": "entropy",
    "gap_mean": "sampler_gap/mean",
    "clip_fraction": "clip_fraction",
    "kl": "kl_reference",
}
"""Metric names of the fields of :class:`~trainers.learner.RoleTally`."""


def update_metrics(updates: Mapping[str, UpdateStats], algorithm: AlgorithmConfig) -> dict[str, float]:
    """Return losses, entropy, log-prob differences, gradient norms and token counts.

    Args:
        updates: Statistics of each adapter.
        algorithm: Options of the algorithm.
    """
    update = in_all(updates.values())
    row = {"trained_tokens": update.tokens, "skipped_updates": update.skipped} | update.forward.metrics()
    if not update.forward.padded:  # no episode was completed: there was nothing to measure
        return row
    row |= {
        "loss": update.loss,
        "entropy": update.entropy,
        "sampler_gap/mean": update.gap_mean,
        "sampler_gap/max": update.gap_max,
        "clip_fraction": update.clip_fraction,
        "grad_norm": update.grad_norm,
        "ratio_max": update.ratio_max,
    }
    if algorithm.name == "ppo":
        row |= {"value/loss": update.value_loss, "value/grad_norm": update.value_grad_norm}
    if algorithm.kl:
        row["kl_reference"] = update.kl
    for role, tally in update.roles.items():
        row[f"trained_tokens/{role}"] = tally.tokens
        own = {_OF_ROLES[name]: value for name, value in tally.means().items() if _OF_ROLES[name] in row}
        row |= {f"{name}/{role}": value for name, value in own.items()}
    if len(updates) > 1:
        row |= {f"grad_norm/{adapter or 'shared'}": own.grad_norm for adapter, own in updates.items()}
    return row


def entropy_metrics(bonuses: Mapping[str, EntropyBonus], step: int) -> dict[str, float]:
    """Return the entropy weight, also per adapter if there are several, and the target."""
    weights = {adapter: bonus.weight for adapter, bonus in bonuses.items()}
    row = {"entropy_weight": sum(weights.values()) / len(weights)}
    if len(weights) > 1:
        row |= {f"entropy_weight/{adapter or 'shared'}": weight for adapter, weight in weights.items()}
    target = next(iter(bonuses.values())).target(step)
    return row if target is None else row | {"entropy_target": target}
