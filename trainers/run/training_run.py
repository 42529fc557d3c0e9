"""``TrainingRun``: the state of one training run and its start, continuation and end."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from rllm_gym.core import Episode
from rllm_gym.engine import EngineStats, save_episodes, write_manifest
from rllm_gym.samplers.protocol import Sampler, SamplerError
from trainers.algorithms import RolloutRequest, make_algorithm
from trainers.callbacks import Callback
from trainers.config import ConfigError, RoleAssignment, TrainConfig, validate
from trainers.config.mapping import to_mapping
from trainers.config.roles import check_role_assignment
from trainers.config_loading import write_yaml
from trainers.curriculum import TaskCurriculum
from trainers.entropy import EntropyBonus
from trainers.learner import TrainingDiverged, UpdateStats
from trainers.learners import LearnerSet
from trainers.model import Policy
from trainers.rollouts import RolloutAbandoned, Rollouts, TrainEnv, open_train_env, sandbox_tier_of
from trainers.run.checkpoint import load_checkpoint, save_checkpoint
from trainers.run.display import Display
from trainers.run.divergence import DivergenceWatch
from trainers.run.metrics import MetricsLog, PhaseClock, holds_run, success_by_group, validation_metrics
from trainers.run.process_group import open_process_group
from trainers.run.resume import config_changes, fingerprints, generator_states, resume_blockers, set_generator_states
from trainers.run.rollout_prefetcher import RolloutBatch, RolloutPrefetcher
from trainers.run.run_folder import lock_folder
from trainers.run.sigterm import on_sigterm
from trainers.run.throughput import PeakMemory
from trainers.run.update_metrics import entropy_metrics, update_metrics
from trainers.run.weight_publisher import WeightPublisher
from trainers.sampler_factory import make_sampler
from trainers.samples import Sample, samples_of

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
class TrainResult:
    """Result of a run.

    Attributes:
        output: Folder of the run.
        model: The final model: a PEFT adapter or a Hugging Face folder. ``None`` if the run was interrupted.
        steps: Number of complete steps.
        validation: Metrics of the last validation.
        interrupted: Whether the run was stopped by SIGTERM, after it saved a checkpoint.
        best: The model of the best validation, if one was kept.
    """

    output: Path
    model: Path | None
    steps: int
    validation: dict[str, float]
    interrupted: bool = False
    best: Path | None = None


class NoTrainableEpisodes(RuntimeError):
    """Several consecutive steps had no episode to train on, because of environment faults, agent errors or the
    prompts.
    """


class TrainingRun:
    """Model, optimizer, environments, logs and checkpoints of a run. Use it as a context manager.

    If the loop ends with :class:`~trainers.rollouts.RolloutAbandoned`, SIGTERM was received: continue with
    :meth:`finish`.
    """

    def __init__(
        self,
        config: TrainConfig,
        env: TrainEnv | None,
        sampler: Sampler | None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        if env is not None:
            config = replace(config, env=env.named(config.env))
        for warning in validate(config):
            _log.warning("%s", warning)
        self.config = config
        self.output = Path(config.output)
        self.clock = PhaseClock()
        self.step = 0
        self._validation: dict[str, float] = {}
        self._best: dict[str, float] = {}
        self._improved = False
        self._unvalidated: dict[str, Any] = {}  # metrics of a step whose validation was interrupted by SIGTERM
        self._empty_steps = 0
        self._stale = 0
        self._restarts = 0
        self._saved_step = -1
        self._watch = DivergenceWatch()
        self._version_by_sync: dict[int, int] = {}  # weight sync to weight version
        self._callbacks = callbacks
        self._closing = contextlib.ExitStack()
        with contextlib.ExitStack() as opened:
            self._open(opened, env, sampler)
            self._closing = opened.pop_all()

    def _open(self, opened: contextlib.ExitStack, env: TrainEnv | None, sampler: Sampler | None) -> None:
        config = self.config
        self.ranks = opened.enter_context(open_process_group(_collective_timeout(config)))
        if self.ranks.size > 1 and config.sampler.backend == "vllm":
            raise ConfigError(
                "sampler.backend=vllm does not work under torchrun, because vLLM's engine uses torchrun's ranks as its "
                "own; use sampler.backend=vllm-server"
            )
        if self.ranks.is_main_process:
            if not config.resume and holds_run(self.output):
                raise ConfigError(
                    f"output={config.output!r} already contains a run: resume it (--resume), or choose another folder"
                )
            opened.enter_context(lock_folder(self.output))
        opened.enter_context(limit_threads(config.threads))
        self.train_env = env or open_train_env(config.env)
        if config.validation.every and self.train_env.validation is None:
            _log.warning("the environment has no validation split: validation is disabled; see env.validation_kwargs")
        roles = self.train_env.roles
        self.role_assignment = RoleAssignment(config.roles, config.opponents)
        if roles:
            check_role_assignment(self.role_assignment, roles, config.sampler, config.model)
        self.policy = Policy(
            config.model,
            temperature=config.sampling.temperature,
            reference=config.algorithm.needs_reference,
            seed=config.seed,
            adapters=self.role_assignment.adapters(roles) if roles else ("",),
        )
        self._memory = PeakMemory(self.policy.device)
        self.algorithm = make_algorithm(
            config.algorithm, config.sampling.max_response_tokens or config.sampling.max_tokens
        )
        self.learners = LearnerSet(self.policy, config.optimizer, config.steps, self.algorithm.value, self.ranks)
        self.curriculum = TaskCurriculum(self.train_env.train, config.curriculum, config.seed)
        self.entropy = {adapter: EntropyBonus(config.entropy, config.steps) for adapter in self.policy.adapters}
        self._owns_sampler = sampler is None
        self.rollouts = Rollouts(
            self.train_env,
            sampler or self._make_sampler(),
            self.policy.tokenizer,
            env=config.env,
            sampling=config.sampling,
            assignment=self.role_assignment,
            seed=config.seed,
            deterministic=config.deterministic,
        )
        opened.callback(self.rollouts.close)
        self.weight_publisher = WeightPublisher(self.policy, self.rollouts, self.role_assignment, config)
        self.prefetcher = RolloutPrefetcher(
            self.rollouts,
            self.curriculum,
            rollout_plans=self._rollout_plans,
            groups=config.algorithm.groups_per_step,
            steps=config.steps,
            steps_ahead=config.asynchrony.steps_ahead,
            restart_sampler=self._restart_sampler,
            ranks=self.ranks,
        )
        self._fingerprints = fingerprints(self.policy, self.train_env.train)
        notes = self._restore()
        self.ranks.broadcast(self.learners.parameters)
        self.sync_weights(self.step)  # also after a resume: the sampler starts with the base model
        self._complete = self._steps_state()
        self._metrics: MetricsLog | None = None
        if self.ranks.is_main_process:
            self._write_settings()
            self._metrics = opened.enter_context(MetricsLog(self.output, keep_until=self._last_row()))
        self._display = opened.enter_context(
            Display(
                "training",
                config.steps,
                columns=_COLUMNS,
                done=self.step,
                enabled=config.progress and self.ranks.is_main_process,
            )
        )
        opened.enter_context(on_sigterm(self.rollouts.abandon))
        for note in notes:
            self._display.note(note)

    def _write_settings(self) -> None:
        write_yaml(self.output / "config.yaml", self.config)
        write_manifest(
            self.output / "manifest.json",
            config=to_mapping(self.config),
            seeds={"run": self.config.seed},
            sandbox_tier=sandbox_tier_of(self.train_env),
        )

    def _last_row(self) -> int:
        """Return the last step whose logged row is kept: none for a new run, nor the row of a validation to be
        repeated.
        """
        return self.step - 1 if self.step == 0 or self._unvalidated else self.step

    # Called by the loop

    @property
    def callbacks(self) -> Sequence[Callback]:
        """The callbacks of this process: those of the caller in the main process, none in the others."""
        return self._callbacks if self.ranks.is_main_process else ()

    def validate_start(self) -> None:
        """Log the validation of step 0, or in a resumed run repeat the validation that was interrupted."""
        if self._unvalidated:
            row = self._unvalidated | self.validate(self.step)
            self._unvalidated = {}
            self.log(self.step, row)
            self.save_if_due(self.step, [])
        elif self.step == 0 and (row := self.validate(0)):
            self.log(0, row)

    def drop_stale(self, batch: RolloutBatch) -> list[Episode]:
        """Return the episodes that are not too stale to train on; without asynchrony, all of them."""
        if not self.config.asynchrony.steps_ahead:
            return batch.episodes
        episodes = batch.sampled_since(self.rollouts.weight_syncs - self.config.asynchrony.steps_ahead)
        self._stale = len(batch.episodes) - len(episodes)
        return episodes

    def sync_weights(self, step: int) -> None:
        """Sync the weights after this many steps to the sampler, unless it has them already, once no episode is in
        progress.

        A copy of them is added to the opponents if one is due.

        Raises:
            SamplerError: The sampler died, and so did its replacements.
        """
        if not self.weight_publisher.needs_sync(self.learners.version, step):
            return
        with self.clock("rollout"):
            self.prefetcher.wait()
        with self.clock("weight_sync"):
            self.weight_publisher.snapshot_opponent(step)
            try:
                self._sync_weights()
            except SamplerError as error:
                self._restart_sampler(error)

    def _sync_weights(self) -> None:
        self.weight_publisher.sync(self.learners.version)
        # Keep two versions: that of the episodes being trained on, and that of the next episodes, sampled meanwhile.
        before = dict(list(self._version_by_sync.items())[-1:])
        self._version_by_sync = {**before, self.rollouts.weight_syncs: self.weight_publisher.version}

    def _rollout_plans(self, tasks: Sequence[int]) -> Sequence[Sequence[RolloutRequest]]:
        if self.weight_publisher.pool is not None:  # another group of a task may have another opponent
            return [self.algorithm.rollout_plan() for _ in tasks]
        return self.algorithm.rollout_plans(tasks, self.weight_publisher.version)

    def samples(self, batch: RolloutBatch) -> list[Sample]:
        """Convert the episodes to samples, and add the algorithm's cached ones."""
        adapter_of = self.role_assignment.weights if self.train_env.workflow is not None else None
        samples = samples_of(self.drop_stale(batch), self.config.algorithm.format_penalty, adapter_of)
        if self.weight_publisher.pool is not None:
            return samples
        sampled_version = self._version_by_sync.get(min(batch.weight_syncs, default=0), self.weight_publisher.version)
        return self.algorithm.with_cached_baselines(samples, batch.groups, sampled_version)

    def task_ids(self, tasks: list[int]) -> list[str]:
        """Return the ids of tasks, for the log."""
        return [str(getattr(self.train_env.train[index], "task_id", index)) for index in tasks]

    def update_curriculum(
        self, step: int, tasks: list[int], episodes: list[Episode], updates: Mapping[str, UpdateStats]
    ) -> None:
        """Update what later steps depend on: the unsolved tasks and the entropy weight.

        Raises:
            NoTrainableEpisodes: No episode could be trained on in ``optimizer.max_bad_steps`` consecutive steps.
        """
        self._empty_steps = 0 if any(episode.trainable for episode in episodes) else self._empty_steps + 1
        if self._empty_steps >= self.config.optimizer.max_bad_steps:
            last = episodes[-1]
            raise NoTrainableEpisodes(
                f"no episode of the last {self._empty_steps} steps can be trained on; the last one ended with "
                f"{last.stop_reason.value}: {last.fault or 'check the environment and the prompt'}"
            )
        position = {str(index): task for index, task in enumerate(tasks)}
        rates = success_by_group(episodes)
        self.curriculum.update({position[name.rpartition(".")[2]]: rate for name, rate in rates.items()})
        for adapter, update in updates.items():
            if update.tokens:
                self.entropy[adapter].observe(step, update.entropy)

    def entropy_weights(self) -> dict[str, float]:
        """Return the entropy weight of each adapter."""
        return {adapter: bonus.weight for adapter, bonus in self.entropy.items()}

    def update_metrics(self, step: int, updates: Mapping[str, UpdateStats]) -> dict[str, float]:
        """Return the metrics of an update."""
        row = {"optim/lr": self.learners.learning_rate(step)} | update_metrics(updates, self.algorithm)
        return row | entropy_metrics(self.entropy, step)

    def engine_metrics(self, engine: EngineStats) -> dict[str, float]:
        """Return the metrics of faults and speed during sampling."""
        row = {"env/faults": sum(engine.faults.values()), "env/retries": engine.retries}
        row |= {f"env/faults/{kind}": count for kind, count in sorted(engine.faults.items())}
        if self.config.asynchrony.steps_ahead:
            row["sampling/stale_episodes"] = self._stale
        return row | {"throughput/rollout_tokens_per_second": engine.tokens_per_second}

    def validate(self, step: int) -> dict[str, float]:
        """Run the validation, if it is due in this step."""
        options = self.config.validation
        due = options.every > 0 and (step % options.every == 0 or step == self.config.steps)
        if not due or self.train_env.validation is None:
            return {}
        with self.clock("validation"):
            episodes = self._run_validation(step)
        if self.ranks.is_main_process:
            save_episodes(self.output / "episodes" / f"validation-{step:06d}.jsonl", episodes)
        self._validation = validation_metrics(episodes, options.samples)
        for callback in self.callbacks:
            callback.on_validation(step, self._validation, episodes)
        self._compare_with_best(step)
        return self._validation

    def finish_step(self, step: int, row: dict[str, Any], episodes: list[Episode]) -> None:
        """Finish a step: run validation, log the metrics and save a checkpoint, as far as they are due.

        Raises:
            RolloutAbandoned: The run was asked to stop; the validation is repeated on resume.
            CheckpointError: The checkpoint cannot be written; the previous one is intact.
        """
        try:
            measured = self.validate(step)
        except RolloutAbandoned:
            self._unvalidated = row
            self.save_if_due(step, episodes)
            raise
        self.log(step, row | measured)
        for warning in self._watch.check(row):
            _log.warning("step %d: %s", step, warning)
        self.save_if_due(step, episodes)

    def log(self, step: int, row: dict[str, Any]) -> None:
        """Write the metrics of a step, including its duration."""
        seconds = self.clock.lap()
        row = row | {f"time/{phase}": value for phase, value in seconds.items()} | self._memory.lap()
        if seconds.get("update"):
            row["throughput/train_tokens_per_second"] = row.get("batch/sequence_tokens", 0) / seconds["update"]
        if self._metrics is not None:
            self._metrics.write(step, row)
        self._display.show(step, row)
        if step:
            for callback in self.callbacks:
                callback.on_step(step, row)

    def save_if_due(self, step: int, episodes: list[Episode]) -> None:
        """Mark the step as complete, and save a checkpoint and the step's episodes if they are due.

        Raises:
            CheckpointError: The checkpoint cannot be written; the previous one is intact.
        """
        config = self.config
        every = config.save_episodes_every
        if episodes and every and step % every == 0 and self.ranks.is_main_process:
            save_episodes(self.output / "episodes" / f"train-{step:06d}.jsonl", episodes)
        self.step = step
        self._restarts = 0
        improved, self._improved = self._improved, False
        self._complete = self._steps_state()
        due = config.checkpoint.every and step % config.checkpoint.every == 0
        if due or improved or step == config.steps:
            self._save()
        if improved and self.ranks.is_main_process:
            self._save_best()

    def finish(self) -> TrainResult:
        """End the run: save the final model or, if the run was interrupted, a checkpoint of the last complete step."""
        interrupted = self.step < self.config.steps or bool(self._unvalidated)
        model = None if interrupted else self.output / "model"
        if interrupted:
            self._save()
        elif self.ranks.is_main_process:
            self.policy.save(self.output / "model")
        best = self.output / "best_model" if self._best else None
        return TrainResult(self.output, model, self.step, dict(self._validation), interrupted, best)

    # Validation

    def _run_validation(self, step: int) -> list[Episode]:
        """Run the validation episodes on all ranks.

        Raises:
            RolloutAbandoned: The run was asked to stop.
        """
        assert self.train_env.validation is not None
        options = self.config.validation
        span = self.ranks.local_range(min(options.tasks, len(self.train_env.validation)))
        mine: list[Episode] | None = None
        while mine is None:
            try:
                mine, _ = self.rollouts.validate(step, options.tasks, options.samples, greedy=options.greedy, span=span)
            except SamplerError as error:
                self._restart_sampler(error)
            except RolloutAbandoned:
                break
        parts = self.ranks.all_gather(mine)
        complete = [part for part in parts if part is not None]
        if len(complete) < len(parts):
            raise RolloutAbandoned("the run was asked to stop")
        return [episode for part in complete for episode in part]

    def _compare_with_best(self, step: int) -> None:
        metric = self.config.checkpoint.best
        if not metric or not self.config.checkpoint.every:
            return
        if metric not in self._validation:
            raise ConfigError(
                f"checkpoint.best={metric!r} is not a validation metric of this run: {', '.join(self._validation)}"
            )
        if step and (not self._best or self._validation[metric] > self._best["value"]):
            self._best = {"step": step, "value": self._validation[metric]}
            self._improved = True

    def _save_best(self) -> None:
        folder, partial = self.output / "best_model", self.output / "best_model.partial"
        shutil.rmtree(partial, ignore_errors=True)
        self.policy.save(partial)
        (partial / "best.json").write_text(json.dumps({"metric": self.config.checkpoint.best, **self._best}))
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)

    # Sampler

    def _make_sampler(self) -> Sampler:
        return make_sampler(self.policy, self.config)

    def _restart_sampler(self, error: SamplerError) -> None:
        """Replace a sampler that died by a new one with the current weights.

        Raises:
            SamplerError: The sampler was created by the caller, or too many died consecutively.
        """
        while True:
            if not self._owns_sampler or self._restarts >= self.config.sampler.restarts:
                raise error
            self._restarts += 1
            _log.warning("the sampler died and is replaced: %s", error)
            try:
                self.rollouts.replace_sampler(self._make_sampler)
                self.weight_publisher.invalidate()
                self._sync_weights()
                return
            except SamplerError as next_error:
                error = next_error

    # State

    def _steps_state(self) -> dict[str, Any]:
        """Return the small state that changes within a step, as of the end of the last complete step."""
        return {
            "algorithm": self.algorithm.state_dict(),
            "curriculum": self.curriculum.state_dict(),
            "prefetcher": self.prefetcher.state_dict(),
            "entropy_weights": self.entropy_weights(),
            "opponents": self.weight_publisher.state_dict(),
            "generators": generator_states(),
            "validation": self._validation,
            "best": self._best,
            "unvalidated": json.dumps(self._unvalidated),
            "empty_steps": self._empty_steps,
        }

    def _save(self) -> None:
        """Save a checkpoint of the last complete step, unless it exists or checkpoints are disabled."""
        options = self.config.checkpoint
        if not options.every or not self.ranks.is_main_process or self.step in (0, self._saved_step):
            return
        state = self._complete | {
            "learner": self.learners.state_dict(),
            "fingerprints": self._fingerprints,
            "config": to_mapping(self.config),
        }
        spare = {int(self._best["step"])} if self._best else set()
        with self.clock("checkpoint"):
            folder = save_checkpoint(self.output / "checkpoints", self.step, state, keep=options.keep, spare=spare)
        self._saved_step = self.step
        for callback in self.callbacks:
            callback.on_checkpoint(self.step, folder)

    def _restore(self) -> list[str]:
        """Resume from the newest complete checkpoint, if requested and there is one. Returns notes for the user."""
        if not self.config.resume:
            return []
        loaded = load_checkpoint(self.output / "checkpoints")
        if loaded is None:
            return [f"no checkpoint to resume from in {self.output}: starting from the beginning"]
        state, now = loaded.state, to_mapping(self.config)
        if "adapters" not in state["learner"]:
            blockers = ["its checkpoints were written by an earlier version without roles"]
        else:
            blockers = resume_blockers(state, self._fingerprints, now)
        if blockers:
            raise ConfigError(
                f"cannot resume from {self.output}: {'; '.join(blockers)}. Use the options of the checkpoint "
                "(config.yaml there), or start a new run in another folder"
            )
        try:
            self.learners.load_state_dict(state["learner"])
            self.curriculum.load_state_dict(state["curriculum"])
        except ValueError as error:
            raise ConfigError(f"cannot resume from {self.output}: {error}") from error
        self.algorithm.load_state_dict(state["algorithm"])
        self.prefetcher.load_state_dict(state["prefetcher"])
        for adapter, bonus in self.entropy.items():
            bonus.weight = state["entropy_weights"][adapter]
        self.weight_publisher.load_state_dict(state["opponents"])
        set_generator_states(state["generators"])
        self._validation, self._best = state["validation"], state["best"]
        self._unvalidated = json.loads(state["unvalidated"])
        self._empty_steps = state["empty_steps"]
        self.step = self._saved_step = loaded.step
        notes = [*loaded.skipped, f"resumed after step {loaded.step}"]
        if changed := config_changes(state["config"], now):
            notes.append(f"changed since the checkpoint: {', '.join(changed)}")
        return notes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._closing:
            if isinstance(error, TrainingDiverged | NoTrainableEpisodes):
                self._save()


@contextlib.contextmanager
def limit_threads(number: int) -> Iterator[None]:
    """Set the number of torch threads, and restore it afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _collective_timeout(config: TrainConfig) -> float:
    """Return the timeout in seconds between ranks: a step's episodes in consecutive waves, plus time for the start."""
    algorithm, validation = config.algorithm, config.validation
    episodes = max(algorithm.groups_per_step * (algorithm.group_size + 1), validation.tasks * (validation.samples + 1))
    waves = -(-episodes // config.env.parallel)
    return 600.0 + waves * config.env.episode_timeout
