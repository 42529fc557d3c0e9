"""Detects signs of divergence in the metrics of a run: warns once about each, with common fixes, and stops fine-tuning
whose loss explodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainers.learner import TrainingDiverged

# Metrics of single steps are noisy; a sign must last for this many consecutive steps.
_LASTING = 5
# In how many steps of a fine-tuning run an exploding loss stops it, and how many consecutive ones must be high.
_FIRST_STEPS, _EXPLODED_STEPS = 100, 3


@dataclass(frozen=True, slots=True)
class _Symptom:
    """A condition on the metrics, the warning, and the number of consecutive steps until it is given."""

    present: Callable[[Mapping[str, Any], Mapping[str, Any]], bool]
    message: str
    steps: int = _LASTING


_SYMPTOMS: dict[str, _Symptom] = {
    "truncated": _Symptom(
        lambda row, first: row.get("completions/truncated_fraction", 0.0) > 0.1,
        "{completions/truncated_fraction:.0%} of the replies were cut at a token limit, which the environment may "
        "report as an invalid action: raise sampling.max_tokens (or max_response_tokens or context_length, whichever "
        "is the limit), or ask for shorter replies in the prompt",
        steps=1,
    ),
    "equal": _Symptom(
        lambda row, first: row.get("groups/zero_std_fraction", 0.0) >= 1.0 and row.get("advantages/max", 0.0) == 0.0,
        "no update in the last 5 steps had a gradient: all episodes of each group got the same reward "
        "({groups/all_success_fraction:.0%} of the groups solved, the others not): use harder tasks if they are "
        "solved; otherwise easier ones, `rllm-gym sft` first, or a larger algorithm.group_size; and check the "
        "rewards in the episodes (save_episodes_every)",
    ),
    "value": _Symptom(
        lambda row, first: row.get("value/explained_variance", 0.0) < -1.0,
        "the value head predicts returns worse than their mean (value/explained_variance "
        "{value/explained_variance:.2f}), so the advantages computed with it are mostly noise: lower "
        "algorithm.value_lr, raise optimizer.warmup_steps, or set algorithm.gae_lambda close to 1",
    ),
    "invalid": _Symptom(
        lambda row, first: (
            row.get("episodes/invalid_action_fraction", 0.0) > 0.5
            and row["episodes/invalid_action_fraction"] > first["episodes/invalid_action_fraction"]
        ),
        "{episodes/invalid_action_fraction:.0%} of the turns cannot be parsed, more than at the first step: the "
        "policy is losing the answer format; lower optimizer.lr, or set algorithm.format_penalty or algorithm.kl",
    ),
    "ratio": _Symptom(
        lambda row, first: row.get("sampling/importance_ratio/max", 0.0) > 20.0,
        "tokens became {sampling/importance_ratio/max:.0f} times as likely as when they were sampled: use fewer "
        "algorithm.epochs or algorithm.minibatches, lower optimizer.lr, or set algorithm.importance_cap",
    ),
    "clip": _Symptom(
        lambda row, first: row.get("policy/clip_fraction/low", 0.0) + row.get("policy/clip_fraction/high", 0.0) > 0.5,
        "{policy/clip_fraction/low:.0%} of the tokens were clipped at the lower bound and "
        "{policy/clip_fraction/high:.0%} at the upper bound: use fewer algorithm.epochs or "
        "algorithm.minibatches, or lower optimizer.lr",
    ),
    "sampler": _Symptom(
        lambda row, first: (
            abs(row.get("sampling/logprob_difference/mean", 0.0)) > 0.1 and not row.get("sampling/staleness/max")
        ),
        "log-probs of trainer and sampler differ by {sampling/logprob_difference/mean:.2f} nats per token before any "
        "update: the sampler has different weights, temperature or precision; check model.dtype, or set "
        "algorithm.old_logprobs=trainer",
    ),
    "stale": _Symptom(
        lambda row, first: (
            abs(row.get("sampling/logprob_difference/mean", 0.0)) > 0.1 and row.get("sampling/staleness/max", 0) > 0
        ),
        "the log-probs moved by {sampling/logprob_difference/mean:.2f} nats per token in the up to "
        "{sampling/staleness/max} weight syncs since the episodes were sampled: lower optimizer.lr or "
        "asynchrony.steps_ahead; or the sampler has another temperature or precision: compare with steps_ahead=0",
    ),
    "entropy": _Symptom(
        lambda row, first: (
            row.get("policy/entropy", 0.0) > 2.0 * first.get("policy/entropy", row.get("policy/entropy", 0.0)) + 0.5
        ),
        "the entropy grew to {policy/entropy:.2f} nats per token, more than twice that of the first step: lower "
        "entropy.bonus or optimizer.lr",
    ),
    "collapse": _Symptom(
        lambda row, first: row.get("policy/entropy", 1.0) < 1e-3 and row.get("success", 1.0) < 0.5,
        "the entropy fell to {policy/entropy:.1e} nats per token although most episodes fail: the policy has stopped "
        "exploring; set entropy.target or entropy.bonus",
    ),
}


class LossWatch:
    """Stops a fine-tuning run whose loss explodes in its first steps, which a checkpoint cannot repair."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._seen = self._high = 0

    def check(self, step: int, loss: float, lr: float) -> None:
        """Check the loss of a step.

        Args:
            step: Number of complete steps.
            loss: The loss before the step's update.
            lr: The peak learning rate, for the message.

        Raises:
            TrainingDiverged: The loss was at least twice that of the first step, and at least 1 more, in several
                consecutive steps.
        """
        self._first = loss if self._first is None else self._first
        self._seen += 1
        exploded = loss >= self._first + max(1.0, self._first)
        self._high = self._high + 1 if exploded else 0
        if self._seen <= _FIRST_STEPS and self._high >= _EXPLODED_STEPS:
            raise TrainingDiverged(
                f"the loss grew from {self._first:.3g} to {loss:.3g} within {step} steps: the updates destroy the "
                f"model. Lower optimizer.lr (now {lr:g}); remove it for the default of the model"
            )


class DivergenceWatch:
    """Checks the metrics of a run and warns once about each sign that lasts."""

    def __init__(self) -> None:
        self._first: Mapping[str, Any] | None = None
        self._lasted = dict.fromkeys(_SYMPTOMS, 0)
        self._reported: set[str] = set()

    def check(self, row: Mapping[str, Any]) -> list[str]:
        """Return the new warnings after the metrics of a step."""
        if self._first is None:
            self._first = dict(row)
        warnings = []
        for name, sign in _SYMPTOMS.items():
            self._lasted[name] = self._lasted[name] + 1 if sign.present(row, self._first) else 0
            if self._lasted[name] >= sign.steps and name not in self._reported:
                warnings.append(sign.message.format_map(row))
                self._reported.add(name)
        return warnings
