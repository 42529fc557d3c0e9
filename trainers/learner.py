"""From samples with advantages to new weights: losses summed over micro-batches, an optimizer step, its numbers."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainers.algorithms import Algorithm, Targets
from trainers.algorithms.losses import kl_to_reference
from trainers.batching import MicroBatch, Row, make_micro_batches, rows_of, split_for_minibatches
from trainers.config import OptimizerConfig
from trainers.model import Policy
from trainers.optimizers import learning_rate, make_optimizer, set_learning_rate
from trainers.samples import Sample

_log = logging.getLogger(__name__)


class TrainingDiverged(RuntimeError):
    """Loss or gradient were not finite several times in a row."""


@dataclass(slots=True)
class UpdateStats:
    """What one update did, averaged over the sampled tokens that were trained on.

    Attributes:
        loss: The whole loss, KL and entropy terms included.
        entropy: Entropy of the policy, in nats per token, before the update.
        gap_mean: Trainer's log-prob minus the sampler's, before the update; minus this is an estimate of the KL from
            the sampler to the trainer.
        gap_max: Its largest absolute value.
        clip_fraction: Share of tokens whose gradient the loss took away (or whose weight it truncated).
        kl: KL to the reference, where it is part of the loss.
        grad_norm: Before clipping.
        tokens: Sampled tokens trained on.
        padded_tokens: Tokens that went through the model.
        skipped: Optimizer steps left out because loss or gradient were not finite.
    """

    loss: float = 0.0
    entropy: float = 0.0
    gap_mean: float = 0.0
    gap_max: float = 0.0
    clip_fraction: float = 0.0
    kl: float = 0.0
    grad_norm: float = 0.0
    tokens: int = 0
    padded_tokens: int = 0
    skipped: int = 0


class Learner:
    """Holds the optimizer.

    Args:
        policy: The model.
        optimizer: Its options.
        steps: Length of the run, for the decay of the learning rate.
    """

    def __init__(self, policy: Policy, optimizer: OptimizerConfig, steps: int) -> None:
        self.policy = policy
        self.config = optimizer
        self.steps = steps
        self.optimizer = make_optimizer(policy.model, optimizer)
        self._bad_steps = 0

    def learning_rate(self, step: int) -> float:
        """The rate of a step; see :func:`trainers.optimizers.learning_rate`. Steps count from 0."""
        return learning_rate(self.config, step, self.steps)

    def update(
        self,
        step: int,
        samples: Sequence[Sample],
        targets: Targets,
        algorithm: Algorithm,
        entropy_weight: float,
    ) -> UpdateStats:
        """Train on the samples to keep, ``epochs`` passes of ``minibatches`` optimizer steps; without any, measure.

        Raises:
            TrainingDiverged: Too many steps in a row were not finite.
        """
        keep = [index for index, kept in enumerate(targets.keep_B) if kept]
        if not keep:
            return self.measure([sample for sample in samples if not sample.greedy])
        kept = [samples[index] for index in keep]
        per_token = {name: [values[index] for index in keep] for name, values in targets.per_token.items()}
        stats, config = UpdateStats(), algorithm.config
        for epoch in range(config.epochs):
            for part, rows in enumerate(split_for_minibatches(kept, per_token, config.minibatches)):
                batches = make_micro_batches(
                    rows,
                    tokens_per_microbatch=self.config.tokens_per_microbatch,
                    aggregation=config.aggregation,
                    share_prompts=self.policy.shares_prompts,
                )
                share = sum(row.num_sampled for row in rows)
                loss = 0.0
                for batch in batches:
                    batch = batch.to(self.policy.device)
                    loss += self._accumulate(batch, algorithm, entropy_weight, share, stats)
                stats.loss += loss * share
                stats.grad_norm = max(stats.grad_norm, self._step(step, loss, stats))
                if epoch == 0 and part == 0:
                    first = (stats.gap_mean, stats.gap_max)
        if stats.tokens:
            for name in ("loss", "entropy", "clip_fraction", "kl"):
                setattr(stats, name, getattr(stats, name) / stats.tokens)
            # Later optimizer steps move away from the sampler on purpose: the mismatch is that of the first.
            stats.gap_mean, stats.gap_max = first
        return stats

    @torch.no_grad()
    def measure(self, samples: Sequence[Sample]) -> UpdateStats:
        """Entropy and the gap to the sampler, of samples from which nothing is to be learnt."""
        rows = rows_of(samples, {})
        sampled = sum(row.num_sampled for row in rows)
        stats = UpdateStats()
        for batch in make_micro_batches(rows, tokens_per_microbatch=self.config.tokens_per_microbatch):
            batch = batch.to(self.policy.device)
            outputs = self.policy.outputs(batch)
            logp_N, entropy_N = outputs.logp_N, outputs.entropy_N
            gap_N = logp_N - batch.sampler_logp_N
            stats.entropy += entropy_N.sum().item() / sampled
            stats.gap_mean += gap_N.sum().item() / sampled
            stats.gap_max = max(stats.gap_max, gap_N.abs().max().item())
            stats.padded_tokens += batch.ids_BT.numel()
        return stats

    def imitate(self, step: int, rows: Sequence[Row]) -> UpdateStats:
        """One optimizer step of maximum likelihood on the marked tokens of the rows."""
        stats = UpdateStats()
        batches = make_micro_batches(
            rows,
            tokens_per_microbatch=self.config.tokens_per_microbatch,
            share_prompts=self.policy.shares_prompts,
        )
        for batch in batches:
            batch = batch.to(self.policy.device)
            outputs = self.policy.outputs(batch)
            logp_N, entropy_N = outputs.logp_N, outputs.entropy_N
            loss = -(batch.weight_N * logp_N).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            stats.loss += loss.item()
            stats.entropy += (batch.weight_N * entropy_N.detach()).sum().item()
            stats.tokens += len(logp_N)
            stats.padded_tokens += batch.ids_BT.numel()
        stats.grad_norm = self._step(step, stats.loss, stats)
        return stats

    def state_dict(self) -> dict[str, Any]:
        return {
            "parameters": {name: parameter.detach() for name, parameter in self.policy.parameters},
            "optimizer": self.optimizer.state_dict(),
            "bad_steps": self._bad_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        Raises:
            ValueError: The state belongs to another model, or to other adapters.
        """
        own = dict(self.policy.parameters)
        saved = state["parameters"]
        if own.keys() != saved.keys() or any(own[name].shape != saved[name].shape for name in own):
            raise ValueError(
                "the checkpoint's trained weights are not this model's: resume with the same model settings, or start "
                "anew in another output folder"
            )
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(saved[name])
        self.optimizer.load_state_dict(state["optimizer"])
        self._bad_steps = state["bad_steps"]

    def _accumulate(
        self,
        batch: MicroBatch,
        algorithm: Algorithm,
        entropy_weight: float,
        share: int,
        stats: UpdateStats,
    ) -> float:
        """Add the gradient of one micro-batch, weighed by its share in the batch; returns its part of the loss."""
        config = algorithm.config
        outputs = self.policy.outputs(batch)
        logp_N, entropy_N = outputs.logp_N, outputs.entropy_N
        loss_N, clipped_N = algorithm.loss(outputs, batch)
        if config.kl:
            kl_N = kl_to_reference(logp_N, self.policy.reference_logprobs(batch), config.kl_estimator)
            loss_N = loss_N + config.kl * kl_N
            stats.kl += kl_N.detach().sum().item()
        if entropy_weight:
            loss_N = loss_N - entropy_weight * entropy_N
        loss = (batch.weight_N * loss_N).sum()
        loss.backward()  # type: ignore[no-untyped-call]

        gap_N = logp_N.detach() - batch.sampler_logp_N
        stats.entropy += entropy_N.detach().sum().item()
        stats.gap_mean += gap_N.sum().item() / share
        stats.gap_max = max(stats.gap_max, gap_N.abs().max().item())
        stats.clip_fraction += clipped_N.sum().item()
        stats.tokens += len(logp_N)
        stats.padded_tokens += batch.ids_BT.numel()
        return loss.item()

    def _step(self, step: int, loss: float, stats: UpdateStats) -> float:
        """Clip, step, clear. Returns the norm of the gradient before clipping."""
        parameters = [parameter for _, parameter in self.policy.parameters]
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm).item()
        if math.isfinite(norm) and math.isfinite(loss):
            set_learning_rate(self.optimizer, self.learning_rate(step))
            self.optimizer.step()
            self._bad_steps = 0
        else:
            stats.skipped += 1
            self._bad_steps += 1
            _log.warning("step %d: loss %s, gradient norm %s: skipped", step, loss, norm)
        self.optimizer.zero_grad(set_to_none=True)
        if self._bad_steps >= self.config.max_bad_steps:
            raise TrainingDiverged(
                f"loss or gradient were not finite in {self._bad_steps} optimizer steps in a row, the last in step "
                f"{step}; a lower optimizer.lr (now {self.config.lr:g}) mostly helps. The last checkpoint is intact"
            )
        return norm if math.isfinite(norm) else 0.0
