"""``Learner``: from samples with advantages to new weights. It accumulates losses over microbatches and steps the
optimizer.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainers.algorithms import AlgorithmOptions, AlgorithmRun, PerToken, ValueOptions
from trainers.algorithms.advantages import select
from trainers.algorithms.losses import VALUE_CLIP, clipped_value_loss, kl_to_reference
from trainers.array_types import FloatArray
from trainers.batching import MicroBatch, Row, final_rows, make_micro_batches, rows_of, split_for_minibatches
from trainers.batching.microbatch import TokenWeighting
from trainers.config import ConfigError, OptimizerConfig
from trainers.config.optimizer import TOKENS_PER_MICROBATCH
from trainers.learner.loss_normalizer import LossNormalizer
from trainers.learner.optimizers import learning_rate, make_optimizer, restore_optimizer, set_learning_rate
from trainers.learner.update_stats import TOKEN_MEANS, RoleStats, UpdateStats, numbers_of
from trainers.model import Policy, TokenOutputs
from trainers.model.size_defaults import with_learning_rate
from trainers.model.value_head import ValueHead
from trainers.process_group import SINGLE_PROCESS, ProcessGroup
from trainers.samples import Sample

_log = logging.getLogger(__name__)


# Additional optimizer steps of the value head alone on each batch, on the hidden states that the update has computed
# anyway. They cost almost nothing; with only one step per batch the head lags behind a policy that is learning.
_EXTRA_VALUE_STEPS = 10

MAX_BAD_STEPS = 5
"""Number of consecutive failed steps before a run stops: their loss or gradient is not finite (they are skipped and
counted), or no episode was completed."""

# The fraction of tokens that a loss may limit because of rounding.
_MAX_CLIPPED_ROUNDING = 0.01


class TrainingDiverged(RuntimeError):
    """Loss or gradient were not finite in several consecutive steps."""


@dataclass(frozen=True, slots=True)
class _Objective:
    """What an optimizer step minimizes.

    Attributes:
        algorithm: The algorithm with its loss.
        entropy_weight: Weight of the entropy bonus.
        normalizer: By what the losses are divided.
        recompute: Whether the old log-probs are the trainer's.
    """

    algorithm: AlgorithmRun
    entropy_weight: float
    normalizer: LossNormalizer
    recompute: bool


class Learner:
    """The optimizer of one set of weights: a model, or one of its adapters.

    Args:
        policy: The model. The adapter gets a value head if ``value`` is given.
        optimizer: Options of the optimizer.
        steps: Number of steps of the run, for the learning rate schedule.
        value: Options of the value head, for algorithms that have one.
        ranks: The ranks of data-parallel training. All get the same samples.
        adapter: The adapter of the policy; by default its first.

    Attributes:
        version: Number of optimizer steps that changed the policy; unchanged as long as the weights are.
        tokens_per_microbatch: Maximum number of padded tokens per forward pass, decreased if memory is not sufficient.
        before_retry: Called before the first optimizer step of an update is repeated because memory was not sufficient,
            while the weights are those of the last complete step.
    """

    def __init__(
        self,
        policy: Policy,
        optimizer: OptimizerConfig,
        steps: int,
        value: ValueOptions | None = None,
        ranks: ProcessGroup = SINGLE_PROCESS,
        adapter: str | None = None,
    ) -> None:
        self.policy = policy
        self.adapter = policy.adapters[0] if adapter is None else adapter
        self.config = optimizer = with_learning_rate(optimizer, policy.model)
        self.steps = steps
        self.value = value
        self.ranks = ranks
        self.version = 0
        self.tokens_per_microbatch = optimizer.tokens_per_microbatch or TOKENS_PER_MICROBATCH
        self.before_retry: Callable[[], None] = lambda: None
        self._head: list[torch.nn.Parameter] = []
        # The states with a value target of each microbatch of a pass, their values before the update, their returns.
        self._value_targets: list[tuple[Tensor, Tensor, Tensor]] = []
        further: list[dict[str, Any]] = []
        if value is not None:
            policy.activate(self.adapter)
            self._head = list(policy.add_value_head().parameters())
            further = [{"params": self._head, "lr_scale": value.value_lr / self.peak_lr}]
        self.optimizer = make_optimizer(
            policy.model,
            optimizer,
            further,
            trained=policy.parameters_of(self.adapter),
        )
        self._bad_steps = 0
        self._bounds_clip_rounding = False

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """All trained parameters: those of the adapter and of its value head."""
        return [parameter for _, parameter in self.policy.parameters_of(self.adapter)] + self._head

    @property
    def peak_lr(self) -> float:
        """The peak learning rate."""
        assert self.config.lr is not None, "with_learning_rate has set it"
        return self.config.lr

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0; see :func:`trainers.learner.optimizers.learning_rate`."""
        return learning_rate(self.config, step, self.steps)

    @torch.no_grad()
    def signals(self, samples: Sequence[Sample], asked: Collection[str]) -> PerToken:
        """Compute the signals that an algorithm requests of the samples before the update. With ``values`` there are
        also ``final_values``, those of the states after truncated episodes, one per agent.
        """
        if not asked:
            return {}
        self.policy.activate(self.adapter)
        rows = rows_of(samples, {})
        columns: dict[str, list[FloatArray]] = {
            # In the same order on all ranks, which add them up: that of a set of names differs between processes.
            name: [np.zeros((sample.num_sampled, *self._widths(name))) for sample in samples]
            for name in sorted(asked)
        }
        number = len(rows)
        if "values" in asked:
            columns["final_values"] = [np.zeros(len(sample.final_ids)) for sample in samples]
            rows += final_rows(samples)
        if (endpoint := self.policy.endpoint) is not None:
            remote = {"ref_logp": endpoint.logprobs, "teacher_top": endpoint.top_logprobs}
            mine = self.ranks.partition(rows[:number], [len(row.sequence) for row in rows[:number]])
            for name in sorted(remote.keys() & asked):
                found = remote[name]([row.sequence for row in mine])
                for row, of_teacher_N in zip(mine, found, strict=True):
                    columns[name][row.sample][row.start : row.start + len(of_teacher_N)] = of_teacher_N
            asked = set(asked) - remote.keys()
        for batch in self._own_micro_batches(rows, "token-mean") if asked else ():
            batch = batch.to(self.policy.device)
            measured = {"ref_logp": self.policy.reference_logprobs(batch)} if "ref_logp" in asked else {}
            if "values" in asked:
                measured["values"] = self.policy.values(batch)
            if "old_logp" in asked or "entropy" in asked:
                outputs = self.policy.outputs(batch)
                own = {"old_logp": outputs.logp_N, "entropy": outputs.entropy_N}
                measured |= {name: own[name] for name in own.keys() & asked}
            sequence_N, column_N = batch.sequence_N.cpu().numpy(), batch.column_N.cpu().numpy()
            order = np.lexsort((column_N, sequence_N))
            for name, value_N in measured.items():
                sorted_N = value_N.double().cpu().numpy()[order]
                begin = 0
                for index, count in zip(*np.unique(sequence_N, return_counts=True), strict=True):
                    row, end = rows[index], begin + count
                    if index < number:
                        columns[name][row.sample][row.start : row.start + count] = sorted_N[begin:end]
                    elif name == "values":
                        columns["final_values"][row.sample][row.start] = sorted_N[begin]
                    begin = end
        return {name: self.ranks.all_reduce(values) for name, values in columns.items()}

    def _widths(self, signal: str) -> tuple[int, ...]:
        """Return the dimensions of a signal besides that of the tokens."""
        return (2 * self.policy.endpoint.top_k,) if self.policy.endpoint and signal == "teacher_top" else ()

    def update(
        self,
        step: int,
        samples: Sequence[Sample],
        targets: PerToken,
        algorithm: AlgorithmRun,
        entropy_weight: float,
        *,
        fresh: bool = False,
    ) -> UpdateStats:
        """Train on the samples that the algorithm trains on: ``epochs`` passes of ``minibatches`` optimizer steps. If
        there are none, only measure.

        Args:
            step: Step of the run, from 0.
            samples: The samples.
            targets: What the algorithm computed of them.
            algorithm: The algorithm with its loss.
            entropy_weight: Weight of the entropy bonus.
            fresh: Whether the current weights sampled them, so that any difference in log-probs is rounding.

        Raises:
            TrainingDiverged: Too many consecutive steps were not finite.
        """
        self.policy.activate(self.adapter)
        keep = np.flatnonzero(algorithm.trainable_mask(samples)).tolist()
        if not keep:
            return self.measure([sample for sample in samples if not sample.greedy])
        kept = [samples[index] for index in keep]
        per_token = select(targets, keep)
        stats, options = UpdateStats(), algorithm.options
        optimizer_steps = 0
        recompute = options.old_logprobs == "trainer" or (options.old_logprobs == "auto" and self._bounds_clip_rounding)
        asked = ["old_logp"] if recompute and options.epochs * options.minibatches > 1 else []
        if self.policy.endpoint is not None:
            asked += ["ref_logp"] * (options.kl > 0) + ["teacher_top"] * algorithm.teacher_kl
        per_token = {**per_token, **self.signals(kept, asked)}
        for epoch in range(options.epochs):
            self._value_targets.clear()
            for part, rows in enumerate(split_for_minibatches(kept, per_token, options.minibatches)):
                objective = _Objective(algorithm, entropy_weight, LossNormalizer.of(rows, algorithm), recompute)
                before, states = deepcopy(stats), len(self._value_targets)
                while True:
                    loss, failed = self._accumulate_all(step, rows, objective, stats)
                    parts = self.ranks.all_gather((loss, failed))
                    loss, failed = sum(loss for loss, _ in parts), max(failed for _, failed in parts)
                    if not failed:
                        break
                    stats = deepcopy(before)
                    del self._value_targets[states:]
                    self._reduce_microbatch(step, failed, is_first=optimizer_steps == 0)
                if fresh and not recompute and epoch == part == 0 and self._find_clipped_rounding(stats, options):
                    self.optimizer.zero_grad(set_to_none=True)
                    return self.update(step, samples, targets, algorithm, entropy_weight)
                self.ranks.all_reduce_gradients(self.parameters)
                stats.loss += loss * objective.normalizer.tokens
                stats.grad_norm = max(stats.grad_norm, self._step(step, loss, stats))
                optimizer_steps += 1
                if epoch == 0 and part == 0:
                    first = replace(stats, roles=dict(stats.roles))
        self._fit_head(step, stats)
        # Later optimizer steps move away from the sampler on purpose: the mismatch is measured in the first.
        stats.logprob_difference_mean = first.logprob_difference_mean
        stats.logprob_difference_max = first.logprob_difference_max
        stats.first_tokens = first.tokens
        for role, own in stats.roles.items():
            was = first.roles.get(role, RoleStats())
            gap = was.logprob_difference_mean
            stats.roles[role] = replace(own, logprob_difference_mean=gap, first_tokens=was.tokens)
        stats.merge(self.ranks.all_gather(stats))
        stats.value_loss /= optimizer_steps
        for name in ("loss", *TOKEN_MEANS):
            setattr(stats, name, getattr(stats, name) / stats.tokens)
        stats.tokens //= options.epochs
        stats.roles = {role: own.per_pass(options.epochs) for role, own in stats.roles.items()}
        return stats

    @torch.no_grad()
    def measure(self, samples: Sequence[Sample]) -> UpdateStats:
        """Compute entropy and the difference to the sampler for samples that are not trained on."""
        self.policy.activate(self.adapter)
        rows = rows_of(samples, {})
        sampled = sum(row.num_sampled for row in rows)
        stats = UpdateStats()
        for batch in make_micro_batches(rows, tokens_per_microbatch=self.tokens_per_microbatch):
            batch = batch.to(self.policy.device)
            outputs = self.policy.outputs(batch)
            logp_N, entropy_N = outputs.logp_N, outputs.entropy_N
            gap_N = logp_N - batch.sampler_logp_N
            ratio_N = gap_N.exp()
            sums = {"entropy": entropy_N.sum(), "difference": gap_N.sum(), "ratio": ratio_N.sum()}
            measured = numbers_of(sums | {"difference_max": gap_N.abs().max(), "ratio_max": ratio_N.max()})
            stats.entropy += measured["entropy"] / sampled
            stats.logprob_difference_mean += measured["difference"] / sampled
            stats.logprob_difference_max = max(stats.logprob_difference_max, measured["difference_max"])
            stats.importance_ratio_mean += measured["ratio"] / sampled
            stats.importance_ratio_max = max(stats.importance_ratio_max, measured["ratio_max"])
            stats.forward.add(batch)
        return stats

    def optimizer_step(
        self, step: int, batches: Sequence[MicroBatch], loss_of: Callable[[TokenOutputs, MicroBatch], Tensor]
    ) -> UpdateStats:
        """Take one optimizer step on a loss that is a sum over microbatches, for example in fine-tuning on fixed
        examples.

        Args:
            step: Step of the run, from 0.
            batches: All microbatches of one optimizer step; each rank computes its share of them.
            loss_of: Returns the loss of one microbatch, a scalar.

        Raises:
            TrainingDiverged: Too many consecutive steps were not finite.
        """
        self.policy.activate(self.adapter)
        stats, loss = UpdateStats(), 0.0
        for batch in self.ranks.partition(batches, [batch.ids_BT.numel() for batch in batches]):
            batch = batch.to(self.policy.device)
            outputs = self.policy.outputs(batch)
            part = loss_of(outputs, batch)
            part.backward()  # type: ignore[no-untyped-call]
            entropy = (batch.weight_N * outputs.entropy_N.detach()).sum()
            measured = numbers_of({"loss": part.detach(), "entropy": entropy})
            loss += measured["loss"]
            stats.entropy += measured["entropy"]
            stats.tokens += len(outputs.logp_N)
            stats.forward.add(batch)
        stats.merge(self.ranks.all_gather(stats))
        stats.loss = sum(self.ranks.all_gather(loss))
        self.ranks.all_reduce_gradients(self.parameters)
        stats.grad_norm = self._step(step, stats.loss, stats)
        return stats

    def microbatch_tokens(self, tokens: int) -> int:
        """Return the padded tokens per microbatch for an optimizer step of ``tokens`` tokens. With several ranks it
        is small enough for each rank to get some microbatches, and for an even split."""
        if self.ranks.size == 1:
            return self.tokens_per_microbatch
        return min(self.tokens_per_microbatch, -(-tokens // (2 * self.ranks.size)))

    def state_dict(self) -> dict[str, Any]:
        return {
            "parameters": {name: parameter.detach() for name, parameter in self.policy.parameters_of(self.adapter)},
            "optimizer": self.optimizer.state_dict(),
            "value_head": None if self._value_head is None else self._value_head.state_dict(),
            "bad_steps": self._bad_steps,
            "bounds_clip_rounding": self._bounds_clip_rounding,
            "version": self.version,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state.

        Raises:
            ValueError: The state belongs to another model or other adapters.
        """
        own = dict(self.policy.parameters_of(self.adapter))
        saved = state["parameters"]
        if own.keys() != saved.keys() or any(own[name].shape != saved[name].shape for name in own):
            raise ValueError(
                "the checkpoint's trained weights are not this model's: resume with the same model options, or start "
                "a new run in another output folder"
            )
        if (self._value_head is None) != (state["value_head"] is None):
            raise ValueError(
                "only one of the checkpoint and the run has a value head: resume with the same algorithm.name, or "
                "start a new run in another output folder"
            )
        if self._value_head is not None:
            self._value_head.load_state_dict(state["value_head"])
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(saved[name])
        restore_optimizer(self.optimizer, state["optimizer"])
        self._bad_steps = state["bad_steps"]
        self._bounds_clip_rounding = state["bounds_clip_rounding"]
        self.version = state["version"]

    @property
    def _value_head(self) -> ValueHead | None:
        return self.policy.value_heads.get(self.adapter)

    def _own_micro_batches(self, rows: Sequence[Row], weighting: TokenWeighting) -> list[MicroBatch]:
        """Return this rank's share of the microbatches of one optimizer step; the weights are relative to the whole
        step.
        """
        batches = make_micro_batches(
            rows,
            tokens_per_microbatch=self.microbatch_tokens(sum(len(row.sequence) for row in rows)),
            weighting=weighting,
            share_prompts=self.policy.shares_prompts,
            costs=self.policy.costs,
        )
        return self.ranks.partition(batches, [batch.ids_BT.numel() for batch in batches])

    def _accumulate_all(
        self, step: int, rows: Sequence[Row], objective: _Objective, stats: UpdateStats
    ) -> tuple[float, int]:
        """Accumulate the gradient of this rank's microbatches.

        Returns:
            Its part of the loss, and the padded tokens of the microbatch that did not fit into memory; 0 if all did.

        Raises:
            ConfigError: A microbatch that cannot be divided does not fit.
        """
        loss = 0.0
        for batch in self._own_micro_batches(rows, objective.normalizer.weighting):
            try:
                loss += self._accumulate(step, batch.to(self.policy.device), objective, stats)
            except torch.OutOfMemoryError as error:
                if len(batch.sequence_S) > 1:
                    return loss, batch.ids_BT.numel()
                raise ConfigError(
                    f"step {step}: a sequence of {batch.ids_BT.numel()} tokens alone does not fit into the memory of "
                    f"{self.policy.device} ({str(error).splitlines()[0]}); use model.gradient_checkpointing, "
                    "model.tuning=qlora, optimizer.name=adamw8bit or a smaller sampling.max_response_tokens, and "
                    "continue with --resume"
                ) from error
        return loss, 0

    def _reduce_microbatch(self, step: int, failed: int, *, is_first: bool) -> None:
        """Halve the microbatches, and drop the incomplete gradient of the optimizer step, which is repeated."""
        self.optimizer.zero_grad(set_to_none=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if is_first:
            self.before_retry()
        self.tokens_per_microbatch = failed // 2
        _log.warning(
            "step %d: a microbatch of %d tokens does not fit into memory; continuing with "
            "optimizer.tokens_per_microbatch=%d, which gives the same gradient",
            *(step, failed, self.tokens_per_microbatch),
        )

    def _accumulate(self, step: int, batch: MicroBatch, objective: _Objective, stats: UpdateStats) -> float:
        """Add the weighted gradient of one microbatch and return its part of the loss."""
        algorithm, entropy_weight, normalizer = objective.algorithm, objective.entropy_weight, objective.normalizer
        kl_weight = algorithm.options.kl
        outputs = self.policy.outputs(batch, entropy_gradient=entropy_weight > 0, teacher_kl=algorithm.teacher_kl)
        logp_N, entropy_N = outputs.logp_N, outputs.entropy_N
        if outputs.teacher_kl_N is not None:
            batch = batch.with_targets(teacher_kl=outputs.teacher_kl_N)
        if objective.recompute and "old_logp" not in batch.targets:  # there is only one optimizer step
            batch = batch.with_targets(old_logp=logp_N.detach())
        loss_N, clipped_N = algorithm.loss(logp_N, batch)
        gap_N = logp_N.detach() - batch.sampler_logp_N
        sums: dict[str, Tensor] = {}
        seen = {
            "entropy": entropy_N.detach(),
            "logprob_difference_mean": gap_N,
            "clipped_low": (clipped_N < 0).to(gap_N.dtype),
            "clipped_high": (clipped_N > 0).to(gap_N.dtype),
        }
        if kl_weight:
            known_N = batch.targets.get("ref_logp")  # of an endpoint
            kl_N = kl_to_reference(logp_N, self.policy.reference_logprobs(batch) if known_N is None else known_N)
            loss_N = loss_N + kl_weight * kl_N
            seen["kl"] = kl_N.detach()
        if entropy_weight:
            loss_N = loss_N - entropy_weight * entropy_N
        loss = normalizer.scale * (batch.weight_N * loss_N).sum()
        if self.value is not None:
            assert outputs.value_N is not None
            assert outputs.state_ND is not None
            value_loss = algorithm.value_loss(outputs.value_N, batch).sum() / normalizer.decisions
            sums["value_loss"] = value_loss.detach()
            loss = value_loss + (0.0 if self._warming_up(step) else loss)
            at_M = batch.targets["decision"].nonzero().squeeze(-1)
            old_value_M, return_M = batch.targets["value"][at_M], batch.targets["return"][at_M]
            self._value_targets.append((outputs.state_ND[at_M], old_value_M, return_M))
        loss.backward()  # type: ignore[no-untyped-call]

        ratio_N = gap_N.exp()
        sums |= {name: value_N.sum() for name, value_N in seen.items()}
        sums |= {"importance_ratio_mean": ratio_N.sum(), "importance_ratio_max": ratio_N.max()}
        sums |= {"logprob_difference_max": gap_N.abs().max(), "loss": loss.detach()}
        for role, number in normalizer.roles.items():
            mine_N = normalizer.role_B.to(batch.sequence_N.device)[batch.sequence_N] == number
            sums |= {f"{role}/{name}": (value_N * mine_N).sum() for name, value_N in seen.items()}
            sums[f"{role}/tokens"] = mine_N.sum()
        measured = numbers_of(sums)
        for name in ("entropy", "kl", "importance_ratio_mean", "clipped_low", "clipped_high", "value_loss"):
            setattr(stats, name, getattr(stats, name) + measured.get(name, 0.0))
        stats.logprob_difference_mean += measured["logprob_difference_mean"] / normalizer.tokens
        for name in ("logprob_difference_max", "importance_ratio_max"):
            setattr(stats, name, max(getattr(stats, name), measured[name]))
        stats.tokens += len(logp_N)
        stats.forward.add(batch)
        for role in normalizer.roles:
            own: dict[str, Any] = {name: measured[f"{role}/{name}"] for name in seen}
            own["tokens"] = int(measured[f"{role}/tokens"])
            stats.roles[role] = stats.roles.get(role, RoleStats()) + RoleStats(**own)
        return measured["loss"]

    def _find_clipped_rounding(self, stats: UpdateStats, options: AlgorithmOptions) -> bool:
        """Warn once if the loss limits tokens although the weights have not changed since they were sampled. Return
        whether the update must be repeated with old log-probs of the trainer.

        Args:
            stats: Sums over the tokens of the first optimizer step.
            options: Options of the algorithm.
        """
        if self._bounds_clip_rounding:
            return False
        sums = self.ranks.all_gather((stats.clipped_low + stats.clipped_high, stats.tokens))
        fraction = sum(clipped for clipped, _ in sums) / max(1, sum(tokens for _, tokens in sums))
        if fraction <= _MAX_CLIPPED_ROUNDING:
            return False
        self._bounds_clip_rounding = True
        auto = options.old_logprobs == "auto"
        if self.ranks.is_main_process:
            use = "from now on the old log-probs are the trainer's" if auto else "set algorithm.old_logprobs=trainer"
            _log.warning(
                "the bounds of the loss (algorithm.loss=%s) limit %.1f %% of the tokens although the weights have not "
                "changed since they were sampled: the bounds are narrower than the difference between the log-probs of "
                "sampler and trainer (up to %.2g nats); %s",
                options.loss, 100 * fraction, stats.logprob_difference_max, use,
            )  # fmt: skip
        return auto

    def _fit_head(self, step: int, stats: UpdateStats) -> None:
        """Take additional steps of the value head alone, on the states of the passes over the batch."""
        if self.value is None:
            return
        head = self._value_head
        assert head is not None
        decisions = sum(self.ranks.all_gather(sum(len(return_M) for _, _, return_M in self._value_targets)))
        for _ in range(_EXTRA_VALUE_STEPS):
            loss = 0.0
            for state_MD, old_value_M, return_M in self._value_targets:
                error_M = clipped_value_loss(head(state_MD), old_value_M, return_M, clip=VALUE_CLIP)
                part = error_M.sum() / decisions
                part.backward()  # type: ignore[no-untyped-call]
                loss += part.item()
            self.ranks.all_reduce_gradients(self._head)
            self._step(step, sum(self.ranks.all_gather(loss)), stats, extra=True)
        self._value_targets.clear()

    def _warming_up(self, step: int) -> bool:
        return self.value is not None and step < self.config.warmup_steps

    def _step(self, step: int, loss: float, stats: UpdateStats, *, extra: bool = False) -> float:
        """Clip, step and clear the gradients. Returns the norm of the policy's gradient before clipping.

        ``extra`` is an additional step of the value head. It says nothing about the policy's loss, so that it is not
        counted among the consecutive steps that were not finite, and does not end them either.
        """
        parameters = [parameter for _, parameter in self.policy.parameters_of(self.adapter)]
        head_only = extra or self._warming_up(step)
        if head_only:  # the sum over several ranks has filled in zeros
            for parameter in parameters:
                parameter.grad = None
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm).item()
        # Clipped separately: otherwise the large initial gradient of the value head would leave nothing for the
        # policy.
        value_norm = torch.nn.utils.clip_grad_norm_(self._head, self.config.max_grad_norm).item()
        finite = math.isfinite(norm) and math.isfinite(value_norm) and math.isfinite(loss)
        if finite:
            set_learning_rate(self.optimizer, self.learning_rate(step))
            self.optimizer.step()
            self.version += not head_only
            stats.value_grad_norm = max(stats.value_grad_norm, value_norm)
        else:
            stats.skipped += 1
            _log.warning("step %d: loss %s, gradient norm %s: skipped", step, loss, norm)
        self.optimizer.zero_grad(set_to_none=True)
        if not extra:
            self._bad_steps = 0 if finite else self._bad_steps + 1
        if self._bad_steps >= min(MAX_BAD_STEPS, self.steps):
            raise TrainingDiverged(
                f"loss or gradient were not finite in {self._bad_steps} optimizer steps in a row, the last in step "
                f"{step}; a lower optimizer.lr (now {self.peak_lr:g}) usually helps. The last checkpoint is intact"
            )
        return norm if math.isfinite(norm) else 0.0
