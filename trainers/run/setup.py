"""Opens a training run: creates its parts, resumes from a checkpoint and closes everything at the end."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rllm_gym.core.background_loop import BackgroundLoop
from rllm_gym.samplers.protocol import Sampler
from trainers.algorithms import make_algorithm
from trainers.callbacks import Callback
from trainers.config import ConfigError, RoleAssignment, TrainConfig, validate
from trainers.config.roles import check_role_assignment
from trainers.entropy import EntropyBonus
from trainers.learner import LearnerSet
from trainers.model import Policy
from trainers.model.size_defaults import size_note, with_learning_rate, with_max_tokens
from trainers.process_group import ProcessGroup, limit_threads, open_process_group
from trainers.rollouts.collector import RolloutCollector
from trainers.rollouts.curriculum import TaskCurriculum
from trainers.rollouts.opponents import OpponentPool
from trainers.rollouts.sampler_factory import make_sampler
from trainers.run.checkpoint import Checkpoints
from trainers.run.metrics import PhaseClock
from trainers.run.peak_memory import PeakMemory
from trainers.run.resume import fingerprints
from trainers.run.rollout_prefetcher import RolloutPrefetcher
from trainers.run.run_folder import open_folder, write_settings
from trainers.run.run_log import RunLog
from trainers.run.run_state import RunState
from trainers.run.stop_signals import on_stop_signal
from trainers.run.validation import Validation
from trainers.run.weight_publisher import WeightPublisher
from trainers.sampler_backends import find_backend
from trainers.train_env import TrainEnv, open_train_env, sandbox_tier_of

_log = logging.getLogger(__name__)

_COLUMNS = {
    "reward/mean": "reward",
    "success": "success",
    "validation/success": "validation success",
    "groups/zero_std_fraction": "groups with equal rewards",
    "policy/entropy": "entropy",
    "optim/grad_norm": "gradient norm",
    "sampling/logprob_difference/max": "max log-prob difference",
    "time/step": "seconds per step",
}


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """The parts of a run, which the training loop combines. Each knows only those before it.

    Attributes:
        config: All options.
        ranks: The processes of the run.
        train_env: Environment, agent and tasks.
        policy: The trained model.
        publisher: Keeps the sampler serving the current weights.
        prefetcher: Collects the episodes of each step.
        state: What a checkpoint stores: the learners, the algorithm, the curriculum, counters.
        checkpoints: Saves the state.
        log: Metrics, display and warnings.
        validation: Runs the validation episodes.
        callbacks: The caller's, in the main process; none in the others.
    """

    config: TrainConfig
    ranks: ProcessGroup
    train_env: TrainEnv
    policy: Policy
    publisher: WeightPublisher
    prefetcher: RolloutPrefetcher
    state: RunState
    checkpoints: Checkpoints
    log: RunLog
    validation: Validation
    callbacks: Sequence[Callback]


@contextlib.contextmanager
def open_run(
    config: TrainConfig,
    env: TrainEnv | None = None,
    sampler: Sampler | None = None,
    callbacks: Sequence[Callback] = (),
) -> Iterator[TrainingRun]:
    """Open a run, resumed from its newest checkpoint if requested. The sampler serves the weights it starts with.

    After SIGTERM or Ctrl-C, the parts raise :class:`~trainers.rollouts.collector.RolloutAbandoned`.

    Args:
        config: All options.
        env: The environment as objects, instead of ``config.env.id``.
        sampler: The sampler, instead of the one in ``config.sampler``. It is closed at the end, also if the run cannot
            be opened.
        callbacks: Their methods are called during the run, in the main process.

    Raises:
        ConfigError: The configuration is invalid, or does not match the checkpoint.
        CheckpointError: There are checkpoints to resume from, but none is complete.
    """
    clock = PhaseClock()
    with contextlib.ExitStack() as opened:
        until_collector = opened.enter_context(contextlib.ExitStack())
        if sampler is not None:
            until_collector.callback(close_sampler, sampler)
        config = _complete_config(config, env)
        ranks = _open_ranks(config, opened)
        main = ranks.is_main_process
        callbacks = callbacks if main else ()
        opened.enter_context(open_folder(config, ranks))
        opened.enter_context(limit_threads(1 if config.deterministic else None))
        train_env, assignment = open_env(config, env)
        policy = Policy(
            config.model,
            temperature=config.sampling.temperature,
            reference=config.algorithm.needs_reference and not config.algorithm.teacher,
            seed=config.seed,
            adapters=assignment.adapters(train_env.roles) if train_env.roles else ("",),
        )
        if config.algorithm.teacher:
            policy.add_teacher(config.algorithm.teacher, config.algorithm.teacher_top_k)
            if policy.endpoint is not None:
                opened.callback(close_sampler, policy.endpoint.client)
        given, config = config, with_size_defaults(config, policy.model, train_env)
        memory = PeakMemory(policy.device)
        max_tokens = config.sampling.max_response_tokens or config.sampling.reply_limit
        algorithm_run = make_algorithm(config.algorithm, max_tokens)
        learners = LearnerSet(policy, config.optimizer, config.steps, algorithm_run.value, ranks)
        curriculum = TaskCurriculum(train_env.train, config.curriculum, config.seed)
        entropy = {adapter: EntropyBonus(config.entropy, config.steps) for adapter in policy.adapters}
        opponents = OpponentPool(config.opponents) if config.opponents.role else None
        new_sampler = functools.partial(make_sampler, policy, config)
        until_collector.pop_all()  # from here on the collector closes the sampler
        collector = RolloutCollector(
            train_env,
            new_sampler() if sampler is None else sampler,
            policy.tokenizer,
            env=config.env,
            sampling=config.sampling,
            assignment=assignment,
            seed=config.seed,
            deterministic=config.deterministic,
            overlap=config.asynchrony.steps_ahead > 1,
        )
        opened.callback(collector.close)
        replacement = new_sampler if sampler is None else None
        publisher = WeightPublisher(policy, learners, collector, opponents, assignment, config, replacement)
        prefetcher = RolloutPrefetcher(collector, publisher, curriculum, algorithm_run, assignment, config, ranks)
        state = RunState(learners, algorithm_run, curriculum, entropy, opponents, prefetcher)
        unchanged = fingerprints(policy, train_env.train)
        checkpoints = Checkpoints(config, state, unchanged, clock, is_main_process=main, callbacks=callbacks)
        learners.save_before_retry(checkpoints.save)
        notes = checkpoints.restore()
        ranks.broadcast(learners.parameters)
        with clock("weight_sync"):
            publisher.sync_weights(state.step)  # also after a resume: the sampler starts with the base model
        state.end_step(state.step)
        if main:
            write_settings(config, sandbox_tier_of(train_env))
        # A new run deletes all rows; that of a validation to be repeated is written again.
        keep_until = state.step - 1 if state.step == 0 or state.unvalidated else state.step
        shown = ("training", config.steps, _COLUMNS, clock, memory)
        log = opened.enter_context(RunLog(config, *shown, done=state.step, keep_until=keep_until, is_main_process=main))
        opened.enter_context(on_stop_signal(collector.abandon))
        chosen = {} if given.optimizer.lr else {"optimizer.lr": config.optimizer.lr}
        chosen |= {} if given.sampling.max_tokens else {"sampling.max_tokens": config.sampling.max_tokens}
        for note in [*size_note(policy.model, chosen), *notes]:
            log.note(note)
        validation = Validation(config, collector, publisher, state, log, ranks, callbacks)
        yield TrainingRun(
            config, ranks, train_env, policy, publisher, prefetcher, state, checkpoints, log, validation, callbacks
        )


def _complete_config(config: TrainConfig, env: TrainEnv | None) -> TrainConfig:
    """Return the options with those of the caller's environment, after all checks."""
    if env is not None:
        config = replace(config, env=env.named(config.env))
    for warning in validate(config):
        _log.warning("%s", warning)
    return config


def with_size_defaults(config: TrainConfig, model: Any, train_env: TrainEnv) -> TrainConfig:
    """Return the options with the defaults that depend on the model and the environment."""
    return replace(
        config,
        optimizer=with_learning_rate(config.optimizer, model),
        sampling=with_max_tokens(config.sampling, model, train_env.reply_tokens),
    )


def _open_ranks(config: TrainConfig, opened: contextlib.ExitStack) -> ProcessGroup:
    ranks = opened.enter_context(open_process_group(_collective_timeout(config)))
    backend = find_backend(config.sampler.backend)
    if ranks.size > 1 and backend.not_with_torchrun:
        raise ConfigError(f"sampler.backend={backend.name} under torchrun: {backend.not_with_torchrun}")
    return ranks


def open_env(config: TrainConfig, env: TrainEnv | None) -> tuple[TrainEnv, RoleAssignment]:
    """Return the environment, and the weights of each of its roles.

    Raises:
        ConfigError: It cannot be created, or the options of the roles do not match it.
    """
    train_env = env or open_train_env(config.env)
    if config.validation is not None and train_env.validation is None:
        _log.warning("the environment has no validation split: validation is disabled; see env.validation_kwargs")
    assignment = RoleAssignment(config.roles, config.opponents)
    check_role_assignment(assignment, train_env.roles, config.sampler, config.model)
    return train_env, assignment


def close_sampler(sampler: Sampler) -> None:
    """Close a sampler outside of an event loop."""
    with contextlib.closing(BackgroundLoop("close-sampler")) as loop:
        loop.run(sampler.close())


def _collective_timeout(config: TrainConfig) -> float:
    """Return the timeout in seconds between ranks: a step's episodes in consecutive waves, plus time for the start."""
    algorithm, validation = config.algorithm, config.validation
    episodes = algorithm.groups_per_step * (algorithm.group_size + 1)
    if validation is not None:
        episodes = max(episodes, validation.tasks * (validation.samples + 1))
    waves = -(-episodes // config.env.parallel)
    return 600.0 + waves * config.env.episode_timeout
