"""What one training run holds: model, optimizer, environments, logs, checkpoints; how it begins, goes on and ends."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch

from rllm_gym.core import Episode
from rllm_gym.engine import EngineStats, save_episodes, write_manifest
from rllm_gym.samplers.protocol import Sampler
from trainers.checkpoint import load_checkpoint, save_checkpoint
from trainers.config import ConfigError, TrainConfig, validate
from trainers.curriculum import Curriculum
from trainers.display import Display
from trainers.entropy import EntropyBonus
from trainers.learner import Learner, UpdateStats
from trainers.metrics import MetricsLog, PhaseClock, holds_run, success_by_group, validation_metrics
from trainers.model import Policy
from trainers.rollouts import Rollouts, World, open_world, sandbox_tier_of
from trainers.serving import make_sampler
from trainers.settings import to_mapping, write_yaml

_log = logging.getLogger(__name__)

_COLUMNS = {
    "reward": "reward",
    "success": "success",
    "validation/success": "validation success",
    "groups/useful": "useful groups",
    "entropy": "entropy",
    "grad_norm": "gradient norm",
    "sampler_gap/max": "gap to sampler",
    "seconds/total": "seconds a step",
}


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a run left behind.

    Attributes:
        output: Its folder.
        model: The final model: a PEFT adapter or a Hugging Face folder. ``None`` if the run was interrupted.
        steps: Complete steps.
        validation: Numbers of the last validation.
        interrupted: It was asked to stop (SIGTERM), saved a checkpoint and stopped.
    """

    output: Path
    model: Path | None
    steps: int
    validation: dict[str, float]
    interrupted: bool = False


class NothingPlayed(RuntimeError):
    """Several steps in a row had no episode to learn from: their worlds, agents or prompts were all broken."""


class Run:
    """Everything a run holds: model, optimizer, environments, logs, checkpoints. Use it with ``with``."""

    def __init__(self, config: TrainConfig, world: World | None, sampler: Sampler | None) -> None:
        if world is not None:  # the environment is given as objects
            config = replace(config, env=replace(config.env, id=config.env.id or "given"))
        for warning in validate(config):
            _log.warning("%s", warning)
        self.config = config
        self.output = Path(config.output)
        if not config.resume and holds_run(self.output):
            raise ConfigError(
                f"output={config.output!r} already holds a run: go on with it (--resume), or choose another folder"
            )
        self.clock = PhaseClock()
        self.step = 0
        self.stopping = False
        self._validation: dict[str, float] = {}
        self._empty_steps = 0
        self._closing = contextlib.ExitStack()
        with contextlib.ExitStack() as opened:
            self._open(opened, world, sampler)
            self._closing = opened.pop_all()

    def _open(self, opened: contextlib.ExitStack, world: World | None, sampler: Sampler | None) -> None:
        config = self.config
        opened.enter_context(limit_threads(config.threads))
        self.world = world or open_world(config.env)
        if config.validation.every and self.world.validation is None:
            _log.warning("the environment has no validation split: nothing is validated (env.validation_kwargs?)")
        self.policy = Policy(
            config.model,
            temperature=config.sampling.temperature,
            tokens_per_chunk=config.optimizer.tokens_per_chunk,
            reference=config.algorithm.kl > 0,
            seed=config.seed,
        )
        self.learner = Learner(self.policy, config.optimizer, config.steps)
        self.curriculum = Curriculum(self.world.train, config.curriculum, config.seed)
        self.entropy = EntropyBonus(config.entropy, config.steps)
        notes = self._restore()
        self.output.mkdir(parents=True, exist_ok=True)
        write_yaml(self.output / "config.yaml", config)
        write_manifest(
            self.output / "manifest.json",
            config=to_mapping(config),
            seeds={"run": config.seed},
            sandbox_tier=sandbox_tier_of(self.world),
        )
        self.rollouts = Rollouts(
            self.world,
            sampler or make_sampler(self.policy, max_batch=config.env.parallel, deterministic=config.deterministic),
            self.policy.tokenizer,
            env=config.env,
            sampling=config.sampling,
            seed=config.seed,
            deterministic=config.deterministic,
        )
        opened.callback(self.rollouts.close)
        self.push()  # also after a resume: the sampler begins with the base model
        self._metrics = opened.enter_context(MetricsLog(self.output, keep_until=self.step if self.step else -1))
        self._display = opened.enter_context(
            Display("training", config.steps, columns=_COLUMNS, done=self.step, enabled=config.progress)
        )
        opened.enter_context(self._on_sigterm())
        for note in notes:
            self._display.note(note)

    # What the loop calls ----------------------------------------------------------------------------------

    def measure_untrained(self) -> None:
        """The row of step 0: what the model could do before, unless the run goes on from a checkpoint."""
        if self.step == 0 and (row := self.validate(0)):
            self.log(0, row)

    def push(self) -> None:
        """Give the sampler the present weights."""
        self.rollouts.push(self.policy.weight_update())

    def names(self, tasks: list[int]) -> list[str]:
        """The ids of tasks, for the log."""
        return [str(getattr(self.world.train[index], "task_id", index)) for index in tasks]

    def learn(self, step: int, tasks: list[int], episodes: list[Episode], update: UpdateStats) -> None:
        """What follows from a step for the next ones: tasks that are not solved yet, the weight of the entropy.

        Raises:
            NothingPlayed: As often in a row as ``optimizer.max_bad_steps`` no episode could be learnt from.
        """
        self._empty_steps = 0 if any(episode.trainable for episode in episodes) else self._empty_steps + 1
        if self._empty_steps >= self.config.optimizer.max_bad_steps:
            last = episodes[-1]
            raise NothingPlayed(
                f"no episode of the last {self._empty_steps} steps can be trained on; the last one ended with "
                f"{last.stop_reason.value}: {last.fault or 'see the environment and the prompt'}"
            )
        position = {str(index): task for index, task in enumerate(tasks)}
        rates = success_by_group(episodes)
        self.curriculum.learn({position[name.rpartition(".")[2]]: rate for name, rate in rates.items()})
        if update.tokens:
            self.entropy.observe(step, update.entropy)

    def update_metrics(self, step: int, update: UpdateStats) -> dict[str, float]:
        """The numbers of an update."""
        row = {
            "lr": self.learner.learning_rate(step),
            "entropy_weight": self.entropy.weight,
            "trained_tokens": update.tokens,
            "padded_tokens": update.padded_tokens,
            "skipped_updates": update.skipped,
        }
        target = self.entropy.target(step)
        if target is not None:
            row["entropy_target"] = target
        if not update.padded_tokens:  # not one episode came to an end: there was nothing to measure
            return row
        row |= {
            "loss": update.loss,
            "entropy": update.entropy,
            "sampler_gap/mean": update.gap_mean,
            "sampler_gap/max": update.gap_max,
            "clip_fraction": update.clip_fraction,
            "grad_norm": update.grad_norm,
        }
        return row | ({"kl_reference": update.kl} if self.config.algorithm.kl else {})

    def engine_metrics(self, engine: EngineStats) -> dict[str, float]:
        """What broke while sampling, and how fast it was."""
        row = {"faults": sum(engine.faults.values()), "retries": engine.retries}
        row |= {f"fault/{kind}": count for kind, count in sorted(engine.faults.items())}
        return row | {"tokens_per_second/rollout": engine.tokens_per_second}

    def validate(self, step: int) -> dict[str, float]:
        """Measure on validation tasks, if this step is one of those that do."""
        options = self.config.validation
        due = options.every > 0 and (step % options.every == 0 or step == self.config.steps)
        if not due or self.world.validation is None:
            return {}
        with self.clock("validation"):
            episodes, _ = self.rollouts.validate(step, options.tasks, options.samples, greedy=options.greedy)
        if options.save_episodes:
            save_episodes(self.output / "episodes" / f"validation-{step:06d}.jsonl", episodes)
        self._validation = validation_metrics(episodes, options.samples)
        return self._validation

    def log(self, step: int, row: dict[str, Any]) -> None:
        """Write the row of a step, with the seconds it took."""
        seconds = self.clock.lap()
        row = row | {f"seconds/{phase}": value for phase, value in seconds.items()}
        if seconds.get("update"):
            row["tokens_per_second/update"] = row.get("padded_tokens", 0) / seconds["update"]
        self._metrics.write(step, row)
        self._display.show(step, row)
        self.step = step

    def keep(self, step: int, episodes: list[Episode]) -> None:
        """Write what is to survive: a checkpoint and the step's episodes, where they are due."""
        config = self.config
        if config.save_episodes_every and step % config.save_episodes_every == 0:
            save_episodes(self.output / "episodes" / f"train-{step:06d}.jsonl", episodes)
        every = config.checkpoint.every
        if every and (step % every == 0 or step == config.steps or self.stopping):
            with self.clock("checkpoint"):
                save_checkpoint(self.output / "checkpoints", step, self._state(), keep=config.checkpoint.keep)

    def save_model(self) -> Path:
        """Write the final model."""
        folder = self.output / "model"
        self.policy.save(folder)
        return folder

    def result(self, model: Path | None) -> TrainResult:
        """What the run left behind so far."""
        return TrainResult(self.output, model, self.step, dict(self._validation), interrupted=model is None)

    # State ------------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        return {
            "learner": self.learner.state_dict(),
            "curriculum": self.curriculum.state_dict(),
            "entropy_weight": self.entropy.weight,
            "torch_rng": torch.get_rng_state(),
            "validation": self._validation,
            "config": to_mapping(self.config),
        }

    def _restore(self) -> list[str]:
        """Go on from the newest whole checkpoint, if asked to and there is one; what a person should know of it."""
        if not self.config.resume:
            return []
        loaded = load_checkpoint(self.output / "checkpoints")
        if loaded is None:
            return [f"nothing to resume in {self.output}: starting from the beginning"]
        state = loaded.state
        try:
            self.learner.load_state_dict(state["learner"])
            self.curriculum.load_state_dict(state["curriculum"])
        except ValueError as error:
            raise ConfigError(f"cannot go on from {self.output}: {error}") from error
        self.entropy.weight = state["entropy_weight"]
        torch.set_rng_state(state["torch_rng"])
        self._validation = state["validation"]
        self.step = loaded.step
        notes = [*loaded.skipped, f"resumed after step {loaded.step}"]
        changed = _changes(state["config"], to_mapping(self.config))
        if changed:
            notes.append(f"changed since the checkpoint: {', '.join(changed)}")
        return notes

    @contextlib.contextmanager
    def _on_sigterm(self) -> Iterator[None]:
        """SIGTERM ends the run after the present step, with a checkpoint. Only the main thread may listen to it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            self.stopping = True

        before = signal.signal(signal.SIGTERM, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()


@contextlib.contextmanager
def limit_threads(number: int) -> Iterator[None]:
    """Let torch use this many threads, and as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _changes(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    """Options that differ, but for those that decide nothing about what is learnt."""
    changed = []
    for key, value in now.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and isinstance(before.get(key), dict) and not key.endswith("kwargs"):
            changed += _changes(before[key], value, f"{path}.")
        elif before.get(key) != value and path not in ("resume", "progress", "output"):
            changed.append(f"{path} {before.get(key)!r} → {value!r}")
    return changed
