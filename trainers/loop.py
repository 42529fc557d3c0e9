"""The reinforcement learning loop: sample, reward, advantage, loss, optimizer step, weight sync, log.

The loop does not depend on the algorithm, the environment or file formats. It is on-policy: each batch of episodes
is sampled with the current weights, and the updates on it use the sampler's own log-probs as the old ones (no
additional forward pass). By design there is no replay of episodes beyond one step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from rllm_gym.samplers.protocol import Sampler
from trainers.algorithms import Algorithm
from trainers.algorithms.by_role import targets_by_role
from trainers.algorithms.registry import options_of
from trainers.callbacks import Callback
from trainers.config import TrainConfig
from trainers.rollouts import RolloutAbandoned, TrainEnv
from trainers.run.metrics import episode_metrics, group_metrics
from trainers.run.rollout_prefetcher import RolloutBatch
from trainers.run.training_run import TrainingRun, TrainResult
from trainers.samples import Sample


def train(
    config: TrainConfig,
    *,
    env: TrainEnv | None = None,
    sampler: Sampler | None = None,
    algorithm: Algorithm | None = None,
    callbacks: Sequence[Callback] = (),
) -> TrainResult:
    """Train a model by reinforcement learning.

    Args:
        config: All options.
        env: The environment as objects, instead of ``config.env.id``.
        sampler: The sampler, instead of the one in ``config.sampler``. It is closed at the end.
        algorithm: The algorithm, instead of ``config.algorithm.name``. Options in ``config.algorithm`` that differ from
            their defaults are taken over.
        callbacks: Their methods are called during the run.

    Raises:
        ConfigError: The configuration is invalid.
        CheckpointError: There are checkpoints to resume from, but none is complete.
        TrainingDiverged: Loss or gradient were not finite in several consecutive steps.
        NoTrainableEpisodes: Several consecutive steps had no episode to train on.
    """
    if algorithm is not None:
        config = replace(config, algorithm=options_of(algorithm, config.algorithm))
    with TrainingRun(config, env, sampler, callbacks) as run:
        with contextlib.suppress(RolloutAbandoned):  # SIGTERM: episodes in progress are discarded
            run.validate_start()
            for step in range(run.step, config.steps):
                _step(run, step)
        result = run.finish()
        for callback in run.callbacks:
            callback.on_end(result.output, interrupted=result.interrupted)
        return result


def _step(run: TrainingRun, step: int) -> None:
    algorithm = run.algorithm
    with run.clock("rollout"):
        batch, samples = _sample(run, step)
    for callback in run.callbacks:
        callback.on_episodes(step + 1, batch.episodes)

    with run.clock("update"):
        targets = targets_by_role(algorithm, samples, run.learners.signals(samples, algorithm.required_signals))
        updates = run.learners.update(step, samples, targets, algorithm, run.entropy_weights())
    run.sync_weights(step + 1)

    row = episode_metrics(batch.episodes) | group_metrics(batch.episodes, samples) | dict(targets.metrics)
    row |= run.update_metrics(step, updates) | run.engine_metrics(batch.stats) | {"tasks": run.task_ids(batch.tasks)}
    run.update_curriculum(step, batch.tasks, batch.episodes, updates)
    run.finish_step(step + 1, row, batch.episodes)


def _sample(run: TrainingRun, step: int) -> tuple[RolloutBatch, list[Sample]]:
    """Collect the episodes of a step. While groups carry no signal, run additional rounds on other tasks, up to a
    limit.
    """
    options = run.config.algorithm
    batch = run.prefetcher.get(step)
    samples = run.samples(batch)
    for _ in range(run.algorithm.dynamic_sampling):
        keep_B = run.algorithm.trainable_mask(samples)
        useful = {sample.task_group for sample, kept in zip(samples, keep_B, strict=True) if kept}
        if len(useful) >= options.groups_per_step:
            break
        more = run.prefetcher.get_more(step, options.groups_per_step - len(useful), first=len(batch.groups))
        samples += run.samples(more)
        batch = batch + more
    return batch, samples
