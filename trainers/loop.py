"""Reinforcement learning, read from top to bottom: sample, reward, advantage, loss, step, push, log.

The loop knows no algorithm, no environment and no file format. On-policy: one batch of episodes by the present
weights, then updates from it, with the sampler's own log-probs as the old ones (no further forward pass). What is
left out on purpose: asynchrony between sampling and learning, and any memory of episodes beyond one step.
"""

from __future__ import annotations

from rllm_gym.samplers.protocol import Sampler
from trainers.algorithms import Signals, make_algorithm
from trainers.config import TrainConfig
from trainers.metrics import episode_metrics, group_metrics
from trainers.rollouts import World
from trainers.run import Run, TrainResult
from trainers.samples import samples_of


def train(config: TrainConfig, *, world: World | None = None, sampler: Sampler | None = None) -> TrainResult:
    """Train a model by reinforcement learning.

    Args:
        config: Every option.
        world: The environment as objects, in place of ``config.env.id``.
        sampler: What draws the replies, in place of the embedded torch sampler. It is closed at the end.

    Raises:
        ConfigError: The configuration cannot be used.
        CheckpointError: There are checkpoints to resume from and none is whole.
        TrainingDiverged: Loss or gradient were not finite several times in a row.
        NothingPlayed: No episode of several steps in a row could be learnt from.
    """
    with Run(config, world, sampler) as run:
        algorithm = make_algorithm(config.algorithm)
        run.measure_untrained()

        for step in range(run.step, config.steps):
            with run.clock("rollout"):
                tasks = run.curriculum.deal(step, config.algorithm.groups_per_step)
                episodes, engine = run.rollouts.train(step, tasks, algorithm.plan())

            samples = samples_of(episodes, format_penalty=config.algorithm.format_penalty)
            targets = algorithm.targets(samples, Signals())

            with run.clock("update"):
                update = run.learner.update(step, samples, targets, algorithm, run.entropy.weight)
            with run.clock("push"):
                run.push()

            row = episode_metrics(episodes) | group_metrics(episodes, samples)
            row |= run.update_metrics(step, update) | run.engine_metrics(engine) | {"tasks": run.names(tasks)}
            run.learn(step, tasks, episodes, update)
            row |= run.validate(step + 1)
            run.log(step + 1, row)
            run.keep(step + 1, episodes)
            if run.stopping:
                return run.result(None)
        return run.result(run.save_model())
