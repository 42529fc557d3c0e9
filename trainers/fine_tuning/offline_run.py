"""Common parts of fine-tuning on fixed examples, for any loss: folder, logs, checkpoints, order of the examples."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rllm_gym.core import stream_seed
from trainers.config import DpoConfig, SftConfig
from trainers.learner import Learner, UpdateStats
from trainers.rollouts.curriculum import shuffled
from trainers.run.checkpoint import Checkpoints
from trainers.run.divergence import LossWatch
from trainers.run.metrics import PhaseClock
from trainers.run.peak_memory import PeakMemory
from trainers.run.resume import generator_states, set_generator_states, weights_fingerprint
from trainers.run.run_folder import save_model, write_settings
from trainers.run.run_log import RunLog
from trainers.run.stop_signals import on_stop_signal


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """The order of the examples: each once per pass, shuffled differently in each pass, a pure function of the
    position.

    Attributes:
        size: Number of examples.
        seed: Seed of the orders.
        name: Separates the orders of different data.
    """

    size: int
    seed: int
    name: str

    def __getitem__(self, number: int) -> int:
        """Return the index of the example at position ``number`` of the run, from 0."""
        epoch, position = divmod(number, self.size)
        return shuffled(position, self.size, key=stream_seed(self.name, self.seed, epoch))

    def span(self, start: int, end: int) -> list[int]:
        return [self[number] for number in range(start, end)]


class OfflineRun:
    """Logs and checkpoints of one run, optionally resumed from a checkpoint. Use it as a context manager.

    Args:
        config: All options.
        learner: The learner, whose tensors are stored in checkpoints.
        steps: Number of optimizer steps of the whole run.
        title: Name of the run in the display.
        columns: Metrics to show, with their captions.
        fingerprints: Fingerprints of what must be unchanged after a resume.
        sandbox_tier: Sandbox tier of model-written programs, for the manifest.

    Attributes:
        output: Folder of the run.
        step: Number of complete steps.
        stopping: Whether SIGTERM or SIGINT was received: the run ends after the current step, with a checkpoint.
        clock: Seconds per phase.
        memory: The caller's plain values, stored in checkpoints and restored from them.
        validation: Metrics of the last evaluation.
    """

    def __init__(
        self,
        config: SftConfig | DpoConfig,
        learner: Learner,
        *,
        steps: int,
        title: str,
        columns: Mapping[str, str],
        fingerprints: Mapping[str, str],
        sandbox_tier: str = "none",
    ) -> None:
        self.config = config
        self.output = Path(config.output)
        self.steps = steps
        self.step = 0
        self.clock = PhaseClock()
        self.memory: dict[str, Any] = {}
        self.validation: dict[str, float] = {}
        self._learner = learner
        self._ranks = learner.ranks
        self._asked_to_stop = False
        self._best: float | None = None
        self.stopping = False
        self._watch = LossWatch()
        is_main_process = self._ranks.is_main_process
        self._checkpoints = Checkpoints(
            config,
            self,
            {**fingerprints, "the frozen weights": weights_fingerprint(learner.policy.model)},
            self.clock,
            is_main_process=is_main_process,
        )
        notes = self._checkpoints.restore()
        self._ranks.broadcast(parameter for _, parameter in learner.policy.parameters)
        if is_main_process:
            write_settings(config, sandbox_tier)
        shown = (title, steps, columns, self.clock, PeakMemory(learner.policy.device))
        last = self.step if self.step else -1
        log = RunLog(config, *shown, done=self.step, keep_until=last, is_main_process=is_main_process)
        with contextlib.ExitStack() as opened:
            self._log = opened.enter_context(log)
            opened.enter_context(on_stop_signal(self._stop))
            self._closing = opened.pop_all()
        for note in notes:
            self.note(note)

    def note(self, text: str) -> None:
        """Print a line, if it is not empty."""
        if text:
            self._log.note(text)

    def validate(self, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Evaluate on held-out examples if due in this step, and save the model if it is the best.

        Args:
            measure: Returns ``loss`` and other metrics, without the prefix ``validation/``.
        """
        options = self.config.validation
        assert options is not None
        if self.step % options.every and self.step != self.steps:
            return {}
        with self.clock("validation"):
            self.validation |= {f"validation/{name}": value for name, value in measure().items()}
        loss = self.validation["validation/loss"]
        if options.best and (self._best is None or loss < self._best):
            self._best = loss
            self.save_model("best_model")
        return dict(self.validation)

    def validate_start(self, measure: Callable[[], dict[str, float]]) -> None:
        """Log the evaluation before training, unless the run was resumed."""
        if self.step == 0:
            self._log.write(0, self.validate(measure))

    def log(self, row: Mapping[str, Any]) -> None:
        """Write the metrics of the current step, including its duration.

        Raises:
            TrainingDiverged: The loss explodes.
        """
        self._log.write(self.step, row)
        self._watch.check(self.step, row["loss"], self._learner.peak_lr)

    def update_row(self, update: UpdateStats) -> dict[str, Any]:
        """Return the metrics of an update, for the step that was just completed."""
        return {
            "loss": update.loss,
            "policy/entropy": update.entropy,
            "optim/grad_norm": update.grad_norm,
            "optim/lr": self._learner.learning_rate(self.step - 1),
            "optim/trained_tokens": update.tokens,
            "optim/skipped_steps": update.skipped,
        } | update.forward.metrics()

    def keep(self, *, last: bool = False) -> None:
        """Write a checkpoint if one is due: at the configured interval, after the last step, and after a stop signal on
        any rank.

        Raises:
            CheckpointError: It cannot be written.
        """
        self.stopping = any(self._ranks.all_gather(self._asked_to_stop))
        if last or self.stopping or self.step == self.steps:
            self._checkpoints.save()
        self._checkpoints.save_if_due()

    def save_model(self, name: str = "model") -> Path:
        """Save the model to the run's folder; an existing folder of that name is replaced once the new one is
        complete.
        """
        target = self.output / name
        if self._ranks.is_main_process:
            save_model(self._learner.policy, target)
        self._ranks.all_gather(None)  # no rank continues before it is saved
        return target

    @property
    def best_step(self) -> int | None:
        """``None``: the best model is saved, and its checkpoint is not kept."""
        return None

    def state_dict(self) -> dict[str, Any]:
        return {
            "learner": self._learner.state_dict(),
            "generators": generator_states(),
            "memory": self.memory,
            "validation": self.validation,
            "best": self._best,
        }

    def load_state_dict(self, state: Mapping[str, Any], step: int) -> None:
        """Restore the state after this many steps.

        Raises:
            ValueError: The run has fewer steps, or another model.
        """
        if step > self.steps:
            raise ValueError(f"it has {step} complete steps, more than steps={self.steps}")
        self._learner.load_state_dict(state["learner"])
        set_generator_states(state["generators"])
        self.memory, self.validation, self._best = state["memory"], state["validation"], state["best"]
        self.step = step

    def _stop(self) -> None:
        self._asked_to_stop = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()
