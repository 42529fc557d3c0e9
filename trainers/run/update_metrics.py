"""Metrics of a step: of its rollouts, and of its update for all weights together, and per role and adapter if there
are several.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainers.algorithms import AlgorithmRun
from trainers.config import AsynchronyConfig
from trainers.entropy import EntropyBonus
from trainers.learner import UpdateStats, merge_updates
from trainers.rollouts.collector import RolloutBatch

_OF_ROLES = {
    "entropy": "policy/entropy",
    "logprob_difference_mean": "sampling/logprob_difference/mean",
    "clipped_low": "policy/clip_fraction/low",
    "clipped_high": "policy/clip_fraction/high",
    "kl": "policy/kl",
}
"""Metric names of the fields of :class:`~trainers.learner.RoleStats`."""


def update_metrics(updates: Mapping[str, UpdateStats], algorithm: AlgorithmRun) -> dict[str, float]:
    """Return losses, entropy, log-prob differences, gradient norms and token counts.

    Args:
        updates: Statistics of each adapter.
        algorithm: The algorithm.
    """
    update = merge_updates(updates.values())
    row = {"optim/trained_tokens": update.tokens, "optim/skipped_steps": update.skipped} | update.forward.metrics()
    if not update.forward.padded:  # no episode was completed: there was nothing to measure
        return row
    row |= {
        "loss": update.loss,
        "policy/entropy": update.entropy,
        "sampling/logprob_difference/mean": update.logprob_difference_mean,
        "sampling/logprob_difference/max": update.logprob_difference_max,
        "policy/clip_fraction/low": update.clipped_low,
        "policy/clip_fraction/high": update.clipped_high,
        "optim/grad_norm": update.grad_norm,
        "sampling/importance_ratio/mean": update.importance_ratio_mean,
        "sampling/importance_ratio/max": update.importance_ratio_max,
    }
    if algorithm.value is not None:
        row |= {"value/loss": update.value_loss, "value/grad_norm": update.value_grad_norm}
    if algorithm.options.kl:
        row["policy/kl"] = update.kl
    for role, tally in update.roles.items():
        row[f"optim/trained_tokens/{role}"] = tally.tokens
        own = {_OF_ROLES[name]: value for name, value in tally.means().items() if _OF_ROLES[name] in row}
        row |= {f"{name}/{role}": value for name, value in own.items()}
    if len(updates) > 1:
        row |= {f"optim/grad_norm/{adapter or 'shared'}": own.grad_norm for adapter, own in updates.items()}
    return row


def entropy_metrics(bonuses: Mapping[str, EntropyBonus], step: int) -> dict[str, float]:
    """Return the entropy weight, also per adapter if there are several, and the target."""
    weights = {adapter: bonus.weight for adapter, bonus in bonuses.items()}
    row = {"policy/entropy_coef": sum(weights.values()) / len(weights)}
    if len(weights) > 1:
        row |= {f"policy/entropy_coef/{adapter or 'shared'}": weight for adapter, weight in weights.items()}
    target = next(iter(bonuses.values())).target(step)
    return row if target is None else row | {"policy/entropy_target": target}


def rollout_metrics(batch: RolloutBatch, asynchrony: AsynchronyConfig) -> dict[str, float]:
    """Return the metrics of faults and speed during sampling and, if rollouts run ahead, how old their weights are."""
    engine = batch.stats
    row: dict[str, float] = {"env/faults": sum(engine.faults.values()), "env/retries": engine.retries}
    row |= {f"env/faults/{kind}": count for kind, count in sorted(engine.faults.items())}
    if asynchrony.steps_ahead:
        newest = batch.min_weight_sync + asynchrony.steps_ahead
        ages = [newest - weight_sync for weight_sync in batch.weight_syncs]
        row["sampling/stale_episodes"] = len(batch.episodes) - len(batch.fresh)
        row |= {"sampling/staleness/mean": sum(ages) / len(ages), "sampling/staleness/max": max(ages)} if ages else {}
    return row | {"throughput/rollout_tokens_per_second": engine.tokens_per_second}
