"""Runs some training tasks with empty replies, to measure prompts and turns before a model is loaded."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from rllm_gym.chat import ChatRenderer
from rllm_gym.core import StopReason, TokenSequence
from rllm_gym.core.background_loop import BackgroundLoop
from rllm_gym.engine import AgentExecutionEngine, AgentWorkflowEngine, EpisodeSpec
from rllm_gym.samplers import ScriptedSampler
from trainers.config import ConfigError, RoleAssignment
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
        ConfigError: There are no tasks, or an episode ends without any reply.
        NotMeasured: An episode ended with an environment fault.
    """
    options: dict[str, Any] = {
        "env": train_env.env,
        "env_kwargs": train_env.train_kwargs,
        "sampler": ScriptedSampler(lambda request: "", renderer.tokenizer),
        "renderer": renderer,
        "n_parallel": 1,
        "retries": 0,
        "max_turns": _MAX_TURNS,
    }
    engine: AgentExecutionEngine | AgentWorkflowEngine
    if train_env.workflow is None:
        engine = AgentExecutionEngine(agent=train_env.agent, **options)
    else:
        engine = AgentWorkflowEngine(train_env.workflow, **options)
    chosen = [train_env.train[index] for index in range(min(tasks, len(train_env.train)))]
    if not chosen:
        raise ConfigError("the environment has no training tasks")
    specs = [task if isinstance(task, EpisodeSpec) else EpisodeSpec(task, seed) for seed, task in enumerate(chosen)]
    with contextlib.closing(BackgroundLoop("dry-run")) as loop:
        episodes = loop.run(engine.run(specs))
    rollouts = []
    for episode in episodes:
        if episode.stop_reason is StopReason.FAULT:
            raise NotMeasured(f"an episode with empty replies ends with a fault: {episode.fault}")
        parts = [
            AgentSequences(item.branches(), len(item.steps), item.role, assignment.trainable(item.role))
            for item in episode.trajectories
        ]
        rollouts.append([part for part in parts if part.sequences])
        if not rollouts[-1]:
            raise ConfigError(
                f"an episode ended with {episode.stop_reason.value} before the first reply"
                + (f": {episode.fault}" if episode.fault else "")
            )
    return rollouts
