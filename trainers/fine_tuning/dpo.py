"""Direct preference optimization (Rafailov et al. 2023): training on pairs of a better and a worse answer.

The reference is the model before the first step. Its log-probs are computed once, before training, so that no second
model is kept in memory.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rllm_gym.chat import ChatRenderer
from trainers.config import ConfigError, DpoConfig, FilePaths, HeldOutConfig, ModelConfig, validate_dpo
from trainers.fine_tuning.offline_run import EpochOrder, OfflineRun
from trainers.fine_tuning.pair_batches import LogProbs, PairBatches
from trainers.fine_tuning.preference_loss import PreferenceLoss
from trainers.fine_tuning.preferences import Pair, Preferences, TokenPair, read_preferences, tokenize_pair
from trainers.fine_tuning.tokenized import LengthLimit, fingerprint, split_held_out
from trainers.learner import Learner, UpdateStats
from trainers.model import Policy
from trainers.model.size_defaults import context_length
from trainers.process_group import limit_threads, open_process_group
from trainers.run.run_folder import RunResult, open_folder

# Number of pairs whose reference log-probs are computed at once.
_PAIRS_AT_ONCE = 256

# Timeout between ranks, in seconds.
_COLLECTIVE_TIMEOUT = 600.0

_COLUMNS = {
    "loss": "loss",
    "rewards/margins": "reward margin",
    "rewards/accuracies": "accuracy",
    "validation/rewards/accuracies": "validation accuracy",
    "optim/grad_norm": "gradient norm",
    "time/step": "seconds per step",
}


class DpoResult(RunResult):
    """Result of a run."""


def dpo(config: DpoConfig) -> DpoResult:
    """Train a model on preferences.

    Args:
        config: All options.

    Raises:
        ConfigError: The configuration or a pair is invalid.
        CheckpointError: There are checkpoints to resume from but none is complete, or one cannot be written.
        TrainingDiverged: Loss or gradient were not finite in several consecutive steps, or the loss exploded in the
            first ones.
    """
    validate_dpo(config)
    with contextlib.ExitStack() as closing:
        ranks = closing.enter_context(open_process_group(_COLLECTIVE_TIMEOUT))
        closing.enter_context(open_folder(config, ranks))
        closing.enter_context(limit_threads())
        read = read_preferences(config.preferences.file, config.preferences)
        policy = Policy(config.model, seed=config.seed)
        limit = LengthLimit(config.length, context_length(policy.model))
        data = _Data.of(config, read, ChatRenderer(policy.tokenizer), limit)
        steps = math.ceil(_trained_pairs(config, data) / config.pairs_per_step)
        learner = Learner(policy, config.optimizer, steps, ranks=ranks)
        run = closing.enter_context(
            OfflineRun(
                config,
                learner,
                steps=steps,
                title="preferences",
                columns=_COLUMNS,
                fingerprints={"the pairs": fingerprint([pair.content() for pair in data.train])},
            )
        )
        for line in [read.note(), limit.note()]:
            run.note(line)
        return _run(config, run, learner, data)


@dataclass(slots=True)
class _Data:
    """Pairs for training and evaluation, with the known log-probs of the reference.

    Attributes:
        ref_train: Log-probs ``(pairs, 2)``; NaN if not computed yet.
        ref_held_out: The same for the held-out pairs.
    """

    train: list[TokenPair]
    held_out: list[TokenPair]
    ref_train: Tensor = field(init=False)
    ref_held_out: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.ref_train = torch.full((len(self.train), 2), math.nan)
        self.ref_held_out = torch.full((len(self.held_out), 2), math.nan)

    @classmethod
    def of(cls, config: DpoConfig, read: Preferences, renderer: ChatRenderer, limit: LengthLimit) -> _Data:
        def tokenized(pairs: Sequence[Pair], files: FilePaths) -> list[TokenPair]:
            tokenized_pairs = list(filter(None, (tokenize_pair(pair, renderer, limit) for pair in pairs)))
            if not tokenized_pairs:
                raise ConfigError(f"every pair in {files!r} is longer than {limit.limit} tokens (length.max_length)")
            return tokenized_pairs

        train, held_out = read.pairs, []
        validation, files = config.validation, config.preferences.file
        if isinstance(validation, HeldOutConfig):
            held_out_tasks = split_held_out([pair.chosen.task for pair in train], validation.fraction, config.seed)
            held_out = tokenized([pair for pair in train if pair.chosen.task in held_out_tasks], files)
            train = [pair for pair in train if pair.chosen.task not in held_out_tasks]
        elif validation is not None:
            measured = read_preferences(validation.file, config.preferences, option="validation.file")
            held_out = tokenized(measured.pairs, validation.file)
        return cls(tokenized(train, files), held_out)


def _trained_pairs(config: DpoConfig, data: _Data) -> int:
    """Return how many pairs are trained on, counted as often as they are."""
    limits = [config.steps * config.pairs_per_step] if config.steps is not None else []
    if config.epochs is not None or not limits:
        limits.append((config.epochs or 1) * len(data.train))
    return min(limits)


def _run(config: DpoConfig, run: OfflineRun, learner: Learner, data: _Data) -> DpoResult:
    loss, order = PreferenceLoss(config), EpochOrder(len(data.train), config.seed, "pairs")
    total = _trained_pairs(config, data)
    if "ref_train" in run.memory:
        data.ref_train, data.ref_held_out = run.memory["ref_train"], run.memory["ref_held_out"]
    with run.clock("reference"):
        _fill_reference(config, run, learner, data, order.span(0, min(total, len(data.train))))
    run.memory = {"ref_train": data.ref_train, "ref_held_out": data.ref_held_out}
    if data.held_out:
        run.validate_start(lambda: _measure(learner, data, loss))
    while run.step < run.steps:
        start = run.step * config.pairs_per_step
        chosen = order.span(start, min(start + config.pairs_per_step, total))
        with run.clock("update"):
            update, measured = dpo_step(
                learner, run.step, [data.train[index] for index in chosen], data.ref_train[chosen], loss
            )
        run.step += 1
        row = run.update_row(update) | measured
        if data.held_out:
            row |= run.validate(lambda: _measure(learner, data, loss))
        run.log(row)
        run.keep()
        if run.stopping and run.step < run.steps:
            return DpoResult(run.output, None, run.step, run.validation, interrupted=True)
    return DpoResult(run.output, run.save_model(), run.step, run.validation)


def dpo_step(
    learner: Learner, step: int, pairs: Sequence[TokenPair], ref_logp_P2: Tensor, loss: PreferenceLoss
) -> tuple[UpdateStats, dict[str, float]]:
    """Take one optimizer step on the mean loss of the pairs.

    Args:
        learner: The learner.
        step: Step of the run, from 0.
        pairs: P pairs.
        ref_logp_P2: Log-probs of their answers under the reference.
        loss: The loss.

    Returns:
        Statistics of the update, and means of the pairs' metrics before the step.
    """
    policy = learner.policy
    batches = PairBatches(pairs, policy, learner.microbatch_tokens(sum(pair.num_tokens for pair in pairs)))
    measured: dict[str, float] = {}
    part = batches.loss_of(loss, ref_logp_P2.to(policy.device), lambda batch: policy.outputs(batch).logp_N, measured)
    update = learner.optimizer_step(step, batches.batches, part)
    totals: Counter[str] = Counter()
    for means in learner.ranks.all_gather(measured):
        totals.update(means)
    return update, dict(totals)


@torch.no_grad()
def _measure(learner: Learner, data: _Data, loss: PreferenceLoss) -> dict[str, float]:
    """Compute the loss and mean metrics of the held-out pairs."""
    policy = learner.policy
    batches = PairBatches(data.held_out, policy, learner.tokens_per_microbatch)
    logp_P2 = batches.logp(lambda batch: policy.outputs(batch).logp_N)
    batch_arguments = (logp_P2, data.ref_held_out.to(policy.device), batches.tokens_P2)
    measured = {name: value_P.mean().item() for name, value_P in loss.metrics(*batch_arguments).items()}
    return {"loss": loss(*batch_arguments).mean().item(), **measured}


# Reference


def _fill_reference(config: DpoConfig, run: OfflineRun, learner: Learner, data: _Data, trained: Sequence[int]) -> None:
    """Compute the missing log-probs of the reference for the pairs that will be used and the held-out ones."""
    missing = [index for index in sorted(trained) if bool(data.ref_train[index].isnan().any())]
    missing_held_out = [index for index in range(len(data.held_out)) if bool(data.ref_held_out[index].isnan().any())]
    if not missing and not missing_held_out:
        return
    tokens = learner.tokens_per_microbatch
    with _reference(config, learner.policy, moved=run.step > 0) as (policy, logprobs):
        for pairs, indices, known in (
            (data.train, missing, data.ref_train),
            (data.held_out, missing_held_out, data.ref_held_out),
        ):
            for start in range(0, len(indices), _PAIRS_AT_ONCE):
                part = indices[start : start + _PAIRS_AT_ONCE]
                batches = PairBatches([pairs[index] for index in part], policy, tokens)
                known[part] = batches.logp(logprobs).cpu()


@contextlib.contextmanager
def _reference(config: DpoConfig, policy: Policy, *, moved: bool) -> Iterator[tuple[Policy, LogProbs]]:
    """Provide the reference: another model, the policy with adapters disabled, or the policy itself as long as it
    has not ``moved``; after a resume, the original model."""
    if not config.reference and policy.adapted:
        yield policy, policy.reference_logprobs
        return
    if not config.reference and not moved:
        yield policy, lambda batch: policy.outputs(batch).logp_N
        return
    path = config.reference or config.model.path
    frozen = ModelConfig(path=path, tuning="full", dtype=config.model.dtype, device=config.model.device)
    reference = Policy(frozen)
    if reference.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise ConfigError(
            f"reference={config.reference!r} has another vocabulary than the model, so log-probs cannot be compared"
        )
    yield reference, lambda batch: reference.outputs(batch).logp_N
