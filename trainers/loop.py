"""The reinforcement learning loop: sample, reward, advantage, loss, optimizer step, weight sync, log.

The loop does not depend on the algorithm, the environment or file formats. It is on-policy: each batch of episodes
is sampled with the current weights (or, with ``asynchrony.steps_ahead``, with some of the last ones), and the updates
on it use the sampler's own log-probs as the old ones (no additional forward pass) unless rounding differs too much. By
design no episode is trained on in two steps.

:mod:`trainers.run.setup` creates the parts of a run, each from those before it; the loop combines them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rllm_gym.core import Episode
from rllm_gym.samplers.protocol import Sampler, SamplerError
from trainers.algorithms import Algorithm
from trainers.algorithms.by_role import target_metrics_by_role, targets_by_role
from trainers.algorithms.registry import options_of
from trainers.callbacks import Callback
from trainers.config import ConfigError, TrainConfig
from trainers.dry_run import fit_to_memory
from trainers.learner import MAX_BAD_STEPS, TrainingDiverged
from trainers.rollouts.collector import RolloutAbandoned, RolloutBatch
from trainers.run.metrics import episode_metrics, group_metrics
from trainers.run.run_folder import RunResult, save_model
from trainers.run.setup import TrainingRun, close_sampler, open_run
from trainers.run.update_metrics import entropy_metrics, rollout_metrics, update_metrics
from trainers.samples import Sample, record_advantages
from trainers.train_env import TrainEnv, open_dataset


@dataclass(frozen=True, slots=True)
class TrainResult(RunResult):
    """Result of a run.

    Attributes:
        best: The model of the best validation, if one was kept.
    """

    best: Path | None = None


class NoTrainableEpisodes(RuntimeError):
    """Several consecutive steps had no episode to train on, because of environment faults, agent errors or the
    prompts.
    """


def train(
    config: TrainConfig,
    *,
    env: TrainEnv | None = None,
    sampler: Sampler | None = None,
    algorithm: Algorithm | None = None,
    callbacks: Sequence[Callback] = (),
    dataset: Any = None,
    reward: Any = None,
) -> TrainResult:
    """Train a model by reinforcement learning.

    Args:
        config: All options.
        env: The environment as objects, instead of ``config.env.id``.
        sampler: The sampler, instead of the one in ``config.sampler``. It is closed at the end.
        algorithm: The algorithm, instead of ``config.algorithm.name``. Options in ``config.algorithm`` that differ from
            their defaults are taken over.
        callbacks: Their methods are called during the run.
        dataset: Prompts, instead of an environment; see :class:`~rllm_gym.envs.dataset.DatasetEnv`.
        reward: With ``dataset``: a reward function with TRL's signature, or several.

    Raises:
        ConfigError: The configuration is invalid.
        CheckpointError: There are checkpoints to resume from, but none is complete.
        TrainingDiverged: Loss or gradient were not finite in several consecutive steps.
        NoTrainableEpisodes: Several consecutive steps had no episode to train on.
        RuntimeError: Another thread of this process is in a run.
    """
    try:
        if dataset is not None or reward is not None:
            if env is not None:
                raise ConfigError("env and dataset both describe the environment: give one of them")
            env = open_dataset(config.env, dataset, reward)
            config = replace(config, env=replace(config.env, agent="", agent_kwargs={}))
        elif env is not None:
            env.check_options(config.env)
        if algorithm is not None:
            config = replace(config, algorithm=options_of(algorithm, config.algorithm))
        config = fit_to_memory(config, env)
    except BaseException:
        if sampler is not None:
            close_sampler(sampler)
        raise
    with open_run(config, env, sampler, callbacks) as run:
        try:
            _validate_start(run)
            for step in range(run.state.step, config.steps):
                _step(run, step)
        except RolloutAbandoned:
            pass  # SIGTERM or Ctrl-C: episodes in progress are discarded
        except (TrainingDiverged, NoTrainableEpisodes):
            run.checkpoints.save()
            raise
        result = _finish(run)
        for callback in run.callbacks:
            callback.on_end(result.output, interrupted=result.interrupted)
        return result


def _validate_start(run: TrainingRun) -> None:
    """Log the validation of step 0, or in a resumed run repeat the validation that was interrupted."""
    state = run.state
    if state.unvalidated:
        row = state.unvalidated | run.validation.run(state.step)
        state.unvalidated = {}
        _log_step(run, state.step, row)
        _end_step(run, state.step, [])
    elif state.step == 0 and (row := run.validation.run(0)):
        run.log.write(0, row)


def _step(run: TrainingRun, step: int) -> None:
    state, clock = run.state, run.log.clock
    algorithm, learners = state.algorithm, state.learners
    try:
        with clock("rollout"):
            batch, samples = _sample(run, step)
        with clock("weight_sync"):
            run.publisher.sleep()
        with clock("update"):
            signals = learners.signals(samples, algorithm.required_signals)  # may ask a teacher at an endpoint
    except SamplerError:
        run.checkpoints.save()  # the weights are those of the last complete step
        raise
    run.log.write_episodes(step + 1, batch.episodes)
    for callback in run.callbacks:
        callback.on_episodes(step + 1, batch.episodes)

    with clock("update"):
        targets = targets_by_role(algorithm, samples, signals)
        if _saves_episodes(run.config, step + 1):
            record_advantages(batch.episodes, samples, targets.get("adv", ()))
        fresh = run.publisher.version_of(batch.oldest_sync) == learners.version
        updates = learners.update(step, samples, targets, algorithm, state.entropy_weights, fresh=fresh)

    with clock("weight_sync"):
        run.publisher.wake()
    if run.publisher.is_due(step + 1):
        with clock("rollout"):
            run.prefetcher.wait()
        with clock("weight_sync"):
            run.publisher.sync_weights(step + 1)

    row = episode_metrics(batch.episodes) | group_metrics(batch.episodes, samples)
    row |= target_metrics_by_role(algorithm, samples, targets)
    row |= {"optim/lr": learners.learning_rate(step)} | update_metrics(updates, algorithm)
    row |= entropy_metrics(state.entropy, step) | rollout_metrics(batch, run.config.asynchrony)
    row["tasks"] = run.train_env.task_ids(batch.tasks)

    _check_trainable(run, batch.episodes)
    state.observe(step, batch, updates)
    try:
        validated = run.validation.run(step + 1)
    except RolloutAbandoned:
        state.unvalidated = row
        _end_step(run, step + 1, batch.episodes)
        raise
    _log_step(run, step + 1, row | validated)
    run.log.warn(step + 1, row)
    _end_step(run, step + 1, batch.episodes)


def _sample(run: TrainingRun, step: int) -> tuple[RolloutBatch, list[Sample]]:
    """Collect the episodes of a step. While groups carry no signal, run additional rounds on other tasks, up to a
    limit.
    """
    options = run.config.algorithm
    batch = run.prefetcher.get(step)
    samples = run.prefetcher.samples(batch)
    for _ in range(run.state.algorithm.dynamic_sampling):
        keep_B = run.state.algorithm.trainable_mask(samples, with_variance=True)
        useful = {sample.task_group for sample, kept in zip(samples, keep_B, strict=True) if kept}
        if len(useful) >= options.groups_per_step:
            break
        more = run.prefetcher.get_more(step, options.groups_per_step - len(useful), first=len(batch.groups))
        samples += run.prefetcher.samples(more)
        batch = batch + more
    return batch, samples


def _check_trainable(run: TrainingRun, episodes: Sequence[Episode]) -> None:
    """Count the consecutive steps without an episode to train on.

    Raises:
        NoTrainableEpisodes: There were ``MAX_BAD_STEPS`` of them.
    """
    state = run.state
    state.empty_steps = 0 if any(episode.trainable for episode in episodes) else state.empty_steps + 1
    if state.empty_steps >= min(MAX_BAD_STEPS, run.config.steps):
        last = episodes[-1]
        raise NoTrainableEpisodes(
            f"no episode of the last {state.empty_steps} steps can be trained on; the last one ended with "
            f"{last.stop_reason.value}: {last.fault or 'check the environment and the prompt'}; see "
            f"{run.config.output}/dropped"
        )


def _log_step(run: TrainingRun, step: int, row: Mapping[str, Any]) -> None:
    written = run.log.write(step, row)
    for callback in run.callbacks:
        callback.on_step(step, written)


def _end_step(run: TrainingRun, step: int, episodes: Sequence[Episode]) -> None:
    """Mark the step as complete, and save what is due: its episodes, a checkpoint, the best model."""
    config, state = run.config, run.state
    if episodes and _saves_episodes(config, step):
        run.log.save_episodes(f"train-{step:06d}", episodes)
    run.publisher.end_step()
    state.end_step(step)
    improved = state.best_step == step
    if improved or step == config.steps:
        run.checkpoints.save()
    run.checkpoints.save_if_due()
    if improved and run.ranks.is_main_process:
        save_model(run.policy, Path(config.output) / "best_model", state.best)


def _saves_episodes(config: TrainConfig, step: int) -> bool:
    return config.save_episodes_every > 0 and step % config.save_episodes_every == 0


def _finish(run: TrainingRun) -> TrainResult:
    """Save the final model or, if the run was interrupted, a checkpoint of the last complete step."""
    state, output = run.state, Path(run.config.output)
    interrupted = state.step < run.config.steps or bool(state.unvalidated)
    if interrupted:
        run.checkpoints.save()
    elif run.ranks.is_main_process:
        save_model(run.policy, output / "model")
    return TrainResult(
        output,
        None if interrupted else output / "model",
        state.step,
        dict(state.validation),
        interrupted,
        output / "best_model" if state.best else None,
    )
