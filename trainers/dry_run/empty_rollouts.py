"""Runs some training tasks with empty replies, to measure prompts and turns before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rllm_gym.chat import ChatRenderer
from rllm_gym.core import EnvironmentFault, TokenSequence
from rllm_gym.engine import AgentWorkflowEngine, EpisodeSpec
from rllm_gym.samplers import ScriptedSampler
from trainers.config import ConfigError, RoleAssignment
from trainers.fine_tuning.demonstrations import DemonstrationCollector, tokenize
from trainers.train_env import TrainEnv

_MAX_TURNS = 100
"""An environment need not end an episode of empty replies."""


class NotMeasured(ConfigError):
    """Raised if the environment cannot be played with empty replies."""


@dataclass(frozen=True, slots=True)
class AgentSequences:
    """One agent's part of an episode: a token sequence for each branch of its conversation.

    Attributes:
        sequences: Token sequences whose masks mark the positions of the replies.
        turns: Number of replies.
        role: The agent's role; ``""`` for the only agent of an environment.
        trained: Whether its replies are trained on.
    """

    sequences: list[TokenSequence]
    turns: int
    role: str = ""
    trained: bool = True


def collect_empty_rollouts(
    train_env: TrainEnv, renderer: ChatRenderer, assignment: RoleAssignment, tasks: int
) -> list[list[AgentSequences]]:
    """Return the agents' parts of an episode for each of the first ``tasks`` training tasks.

    Raises:
        ConfigError: There are no tasks, or the workflow ends without any reply.
        NotMeasured: An episode ended with an environment fault.
    """
    indices = range(min(tasks, len(train_env.train)))
    if not indices:
        raise ConfigError("the environment has no training tasks")
    if train_env.workflow is not None:
        return _run_workflow(train_env, renderer, assignment, indices)
    collector = DemonstrationCollector(train_env, lambda env, rng: "", {})
    try:
        episodes = [collector.collect(train_env.train[index], index, _MAX_TURNS) for index in indices]
    except EnvironmentFault as error:
        raise NotMeasured(f"an episode with empty replies ends with a fault: {error}") from error
    finally:
        collector.close()
    return [[AgentSequences(tokenize(episode, renderer), len(episode.turns))] for episode in episodes]


def _run_workflow(
    train_env: TrainEnv, renderer: ChatRenderer, assignment: RoleAssignment, indices: Sequence[int]
) -> list[list[AgentSequences]]:
    assert train_env.workflow is not None
    engine = AgentWorkflowEngine(
        train_env.workflow,
        env=train_env.env,
        env_kwargs=train_env.train_kwargs,
        sampler=ScriptedSampler(lambda request: "", renderer.tokenizer),
        renderer=renderer,
        n_parallel=1,
    )
    episodes = engine.run_sync([EpisodeSpec(train_env.train[index], seed=index) for index in indices])
    rollouts = []
    for episode in episodes:
        parts = [
            AgentSequences(item.branches(), len(item.steps), item.role, assignment.trainable(item.role))
            for item in episode.trajectories
        ]
        rollouts.append([part for part in parts if part.sequences])
        if not rollouts[-1]:
            raise ConfigError(
                f"the workflow ended with {episode.stop_reason.value} before the first reply"
                + (f": {episode.fault}" if episode.fault else "")
            )
    return rollouts
