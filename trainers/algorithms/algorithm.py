"""``Algorithm``: what to sample, advantages and loss as one object; ``AlgorithmRun``: the same with its options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainers.algorithms.advantages import AdvantageBatch, PerToken, checked_per_token, select
from trainers.algorithms.gae import explained_variance
from trainers.algorithms.groups import has_variance
from trainers.algorithms.losses import CLIP, VALUE_CLIP, Loss, clipped_value_loss, corrected
from trainers.algorithms.options import Aggregation, AlgorithmOptions, GroupOptions, ValueOptions, check_parts
from trainers.array_types import BoolArray, FloatArray
from trainers.samples import Sample

if TYPE_CHECKING:  # torch is imported only when a loss is computed
    from torch import Tensor

    from trainers.batching import MicroBatch


SIGNALS = ("entropy", "old_logp")
"""What an algorithm can ask for in :attr:`Algorithm.signals`."""


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One episode to sample for a task."""

    greedy: bool = False


def stochastic_rollouts(options: AlgorithmOptions) -> Sequence[RolloutRequest]:
    """Return ``group_size`` sampled episodes per task."""
    return [RolloutRequest()] * options.group_size


@dataclass(frozen=True, eq=False)
class Algorithm:
    """A reinforcement learning algorithm: what to sample per task, how rewards become advantages, and the loss.

    The training loop, model, batching, checkpoints and logging do not depend on the algorithm. Train one of your own
    with ``algorithm.name=my_module:MY_ALGORITHM`` or ``trainers.train(config, algorithm=MY_ALGORITHM)``. To resume the
    latter from the command line, the object must be a global name of the module that defines its options or functions.

    Attributes:
        name: Its name in messages.
        options: A dataclass of the options that it reads besides those of its loss. Its base class says what kind of
            algorithm it is: with :class:`GroupOptions`, groups without differences in reward are dropped; with
            :class:`ValueOptions`, the model gets a value head; see :mod:`trainers.algorithms.options` for all.
        advantages: Called with a batch of samples and the options. Returns ``{"adv": …}``, for each sample one value
            per sampled token (:func:`trainers.algorithms.advantages.per_episode` builds it from one value per
            episode); with a value head also ``"value"``, ``"return"`` and ``"decision"``, which is 1.0 at tokens with
            a value target.
        loss: The loss, unless the option ``algorithm.loss`` names another one.
        rollouts_per_prompt: Called with the options; returns the episodes to sample for a task. Greedy ones are never
            trained on.
        aggregation: How the losses of tokens are weighted; ``None`` for what the loss prefers.
        signals: What else must be computed of the samples before the update, for ``batch.signals`` of ``advantages``:
            ``"entropy"``, the policy's entropy where each token was sampled, and ``"old_logp"``, its log-prob.
    """

    name: str
    options: type[AlgorithmOptions]
    advantages: Callable[[AdvantageBatch, Any], PerToken]
    loss: Loss = CLIP
    rollouts_per_prompt: Callable[[Any], Sequence[RolloutRequest]] = stochastic_rollouts
    aggregation: Aggregation | None = None
    signals: Collection[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.loss, Loss):
            use = "a trainers.algorithms.Loss"
            if isinstance(self.loss, str):
                use = f"trainers.algorithms.LOSSES[{self.loss!r}], or a Loss of your own"
            raise TypeError(f"loss={self.loss!r} of algorithm {self.name!r} is not a Loss; use {use}")
        functions = {"advantages": self.advantages, "rollouts_per_prompt": self.rollouts_per_prompt}
        check_parts(f"algorithm {self.name!r}", functions, self.aggregation)
        if isinstance(self.signals, str) or not set(self.signals) <= set(SIGNALS):
            raise ValueError(f"signals={self.signals!r} of algorithm {self.name!r} are not some of {SIGNALS}")


class AlgorithmRun:
    """An algorithm with its options in a run.

    Args:
        algorithm: The algorithm.
        loss: The chosen loss.
        options: Options of both.
        max_tokens: Maximum number of sampled tokens per episode: the constant of ``aggregation=constant``.

    Attributes:
        value: The options of the value head; ``None`` without one.
        required_signals: What must be computed of the samples before the update, for each sampled token: ``"values"``,
            the value head's value of the state in which it was sampled (and ``"final_values"``, those of the states
            after truncated episodes), ``"ref_logp"``, its log-prob under the reference model, and the algorithm's
            own ``signals``.
        teacher_kl: Whether the loss reads the KL divergence from the teacher over the vocabulary.
        dynamic_sampling: Maximum number of additional rollout rounds per step.
    """

    def __init__(self, algorithm: Algorithm, loss: Loss, options: AlgorithmOptions, max_tokens: int) -> None:
        self.algorithm = algorithm
        self.options = options
        self.max_tokens = max_tokens
        self.value = options if isinstance(options, ValueOptions) else None
        needed = {"values": self.value is not None, "ref_logp": options.kl_reward > 0}
        self.required_signals = frozenset(algorithm.signals) | {name for name, is_needed in needed.items() if is_needed}
        self.dynamic_sampling = options.dynamic_sampling
        self.teacher_kl = loss.teacher_kl
        self._loss = loss
        self.rollout_plan()  # raises if it is unusable, before a model is loaded

    def rollout_plan(self) -> Sequence[RolloutRequest]:
        """Return what to sample for a task.

        Raises:
            ValueError: The algorithm's function returned something else than rollout requests, or none to train on.
        """
        plan = self.algorithm.rollouts_per_prompt(self.options)
        if not isinstance(plan, Sequence) or not all(isinstance(request, RolloutRequest) for request in plan):
            problem = "something else than a list of RolloutRequest objects"
        elif all(request.greedy for request in plan):
            problem = "no stochastic episode, and only these are trained on"
        else:
            return plan
        raise ValueError(
            f"rollouts_per_prompt of algorithm {self.algorithm.name!r} returned {problem}: {plan!r}; return, for "
            "example, [RolloutRequest()] * options.group_size"
        )

    def trainable_mask(self, samples: Sequence[Sample], *, with_variance: bool = False) -> BoolArray:
        """Return which samples to train on, or only those of them whose group has variance (``with_variance``).

        Excluded are greedy samples, samples without sampled tokens, truncated samples if ``overlong=mask``, and
        groups without variance if only differences within groups carry a learning signal."""
        keep_B = np.array([not sample.greedy and sample.num_sampled > 0 for sample in samples], dtype=bool)
        if self.options.overlong == "mask":
            keep_B &= ~np.array([sample.overlong for sample in samples], dtype=bool)
        if isinstance(self.options, GroupOptions) and (with_variance or self.options.drop_zero_variance):
            reward_B = np.array([sample.reward for sample in samples], dtype=np.float64)
            group_B = np.array([sample.group_id for sample in samples], dtype=object)
            keep_B &= has_variance(reward_B, group_B)
        return keep_B

    def targets(self, samples: Sequence[Sample], signals: PerToken) -> PerToken:
        """Compute the targets of each sampled token from the rewards: what :attr:`Algorithm.advantages` returns.

        Args:
            samples: The samples.
            signals: At least the :attr:`required_signals`.

        Raises:
            ValueError: The algorithm's advantage function returned something else than one finite number per sampled
                token.
        """
        keep_B = self.trainable_mask(samples)
        values, final_values = signals.get("values"), signals.get("final_values")
        batch = AdvantageBatch(samples, keep_B, self._cost(samples, signals), values, final_values, signals)
        names = ("adv",) if self.value is None else ("adv", "value", "return", "decision")
        returned = self.algorithm.advantages(batch, self.options)
        return checked_per_token(returned, names, batch, f"algorithm {self.algorithm.name!r}")

    def target_metrics(self, samples: Sequence[Sample], targets: PerToken) -> dict[str, float]:
        """Compute diagnostics of the advantages and, with a value head, of the values, over the trained samples."""
        chosen = np.flatnonzero(self.trainable_mask(samples)).tolist()
        kept = {name: np.concatenate([np.zeros(0), *values]) for name, values in select(targets, chosen).items()}
        adv_N = kept["adv"]
        if not len(adv_N):
            return {}
        numbers = {
            "advantages/mean": float(adv_N.mean()),
            "advantages/std": float(adv_N.std()),
            "advantages/max": float(np.abs(adv_N).max()),
        }
        if "value" in kept:
            is_decision_N = kept["decision"] > 0
            value_N, return_N = kept["value"][is_decision_N], kept["return"][is_decision_N]
            numbers |= {
                "value/mean": float(value_N.mean()),
                "value/return_mean": float(return_N.mean()),
                "value/explained_variance": explained_variance(value_N, return_N),
            }
        return numbers

    def loss(self, logp_N: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Compute the loss per sampled token, and the bound that removed its gradient or limited its weight; see
        :func:`trainers.algorithms.losses.corrected`.

        The bound is 1.0 for the upper one, -1.0 for the lower one and 0.0 for none.

        Raises:
            ValueError: The loss function returned something else than two tensors with one value per sampled token.
        """
        return corrected(self._loss, logp_N, batch, self.options)

    def value_loss(self, value_N: Tensor, batch: MicroBatch) -> Tensor:
        """Compute the value head's loss per sampled token; 0 at tokens without a value target."""
        targets = batch.targets
        error_N = clipped_value_loss(value_N, targets["value"], targets["return"], clip=VALUE_CLIP)
        return targets["decision"] * error_N

    def _cost(self, samples: Sequence[Sample], signals: PerToken) -> list[FloatArray]:
        """Return the KL cost of each sampled token, if it is part of the reward."""
        if "ref_logp" not in signals:
            return [np.zeros(sample.num_sampled) for sample in samples]
        return [
            self.options.kl_reward * (_sampler_logp(sample) - ref_logp_N)
            for sample, ref_logp_N in zip(samples, signals["ref_logp"], strict=True)
        ]


def _sampler_logp(sample: Sample) -> FloatArray:
    if not sample.sequences:
        return np.zeros(0)
    return np.concatenate(
        [np.asarray(sequence.logprobs)[np.asarray(sequence.mask) == 1] for sequence in sample.sequences]
    )
