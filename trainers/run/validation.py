"""``Validation``: the validation episodes of a run, their metrics, and the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rllm_gym.core import Episode
from rllm_gym.samplers.protocol import SamplerError
from trainers.callbacks import Callback
from trainers.config import ConfigError, TrainConfig, ValidationConfig
from trainers.process_group import ProcessGroup
from trainers.rollouts.collector import RolloutAbandoned, RolloutCollector
from trainers.run.metrics import validation_metrics
from trainers.run.run_log import RunLog
from trainers.run.run_state import RunState
from trainers.run.weight_publisher import WeightPublisher


@dataclass(frozen=True, slots=True)
class Validation:
    """Validates the served weights.

    Attributes:
        config: Options of the run.
        collector: Runs the episodes.
        publisher: Replaces a sampler that died.
        state: Gets the metrics, and the best step.
        log: Writes the episodes.
        ranks: The ranks that share the work.
        callbacks: Get the result of each validation.
    """

    config: TrainConfig
    collector: RolloutCollector
    publisher: WeightPublisher
    state: RunState
    log: RunLog
    ranks: ProcessGroup
    callbacks: Sequence[Callback]

    def run(self, step: int) -> dict[str, float]:
        """Run the validation if it is due after this many steps, and return its metrics.

        Raises:
            RolloutAbandoned: This rank or another one was asked to stop.
            SamplerError: The sampler died, and so did its replacements.
            ConfigError: ``validation.best`` is not one of the metrics.
        """
        options, tasks = self.config.validation, self.collector.train_env.validation
        if options is None or tasks is None or (step % options.every and step != self.config.steps):
            return {}
        with self.log.clock("validation"):
            episodes = self._episodes(step, options, len(tasks))
        self.log.save_episodes(f"validation-{step:06d}", episodes)
        self.state.validation = validation_metrics(episodes, options.samples)
        for callback in self.callbacks:
            callback.on_validation(step, self.state.validation, episodes)
        self._compare_with_best(step, options.best)
        return self.state.validation

    def _episodes(self, step: int, options: ValidationConfig, num_tasks: int) -> list[Episode]:
        """Run the validation episodes on all ranks."""
        span = self.ranks.local_range(min(options.tasks, num_tasks))
        mine: list[Episode] | None = None
        while mine is None:
            try:
                mine = self.collector.validate(step, options.tasks, options.samples, greedy=options.greedy, span=span)
            except SamplerError as error:
                self.publisher.replace_sampler(error)
            except RolloutAbandoned:
                break
        parts = self.ranks.all_gather(mine)
        complete = [part for part in parts if part is not None]
        if len(complete) < len(parts):
            raise RolloutAbandoned("the run was asked to stop")
        return [episode for part in complete for episode in part]

    def _compare_with_best(self, step: int, metric: str) -> None:
        state = self.state
        if not metric:
            return
        if metric not in state.validation:
            raise ConfigError(
                f"validation.best={metric!r} is not a validation metric of this run: {', '.join(state.validation)}"
            )
        is_first = not state.best or state.best["metric"] != metric
        if step and (is_first or state.validation[metric] > state.best["value"]):
            state.best = {"metric": metric, "step": step, "value": state.validation[metric]}
