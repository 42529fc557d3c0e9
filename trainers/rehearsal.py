"""Runs some training tasks with empty replies, to measure prompts and turns before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rllm_gym.chat import ChatRenderer
from rllm_gym.core import TokenSequence
from rllm_gym.engine import AgentWorkflowEngine, EpisodeSpec
from rllm_gym.samplers import ScriptedSampler
from trainers.config import Cast, ConfigError
from trainers.fine_tuning.demonstrations import Player, tokenize
from trainers.rollouts import World


@dataclass(frozen=True, slots=True)
class Part:
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


def rehearse(world: World, renderer: ChatRenderer, cast: Cast, tasks: int) -> list[list[Part]]:
    """Return the agents' parts of an episode for each of the first ``tasks`` training tasks.

    Raises:
        ConfigError: There are no tasks, or the workflow ends without any reply.
    """
    indices = range(min(tasks, len(world.train)))
    if not indices:
        raise ConfigError("the environment has no training tasks")
    if world.workflow is not None:
        return _play_workflow(world, renderer, cast, indices)
    player = Player(world, lambda env, rng: "", {})
    try:
        played = [player.play(world.train[index], index) for index in indices]
    finally:
        player.close()
    return [[Part(tokenize(episode, renderer), len(episode.turns))] for episode in played]


def _play_workflow(world: World, renderer: ChatRenderer, cast: Cast, indices: Sequence[int]) -> list[list[Part]]:
    assert world.workflow is not None
    engine = AgentWorkflowEngine(
        world.workflow,
        env=world.env,
        env_kwargs=world.train_kwargs,
        sampler=ScriptedSampler(lambda request: "", renderer.tokenizer),
        renderer=renderer,
        n_parallel=1,
    )
    episodes = engine.run_sync([EpisodeSpec(world.train[index], seed=index) for index in indices])
    parts = [
        [Part(each.branches(), len(each.steps), each.role, cast.trainable(each.role)) for each in episode.trajectories]
        for episode in episodes
    ]
    spoken = [[part for part in episode if part.sequences] for episode in parts]
    if not all(spoken):
        silent = next(episode for episode, said in zip(episodes, spoken, strict=True) if not said)
        raise ConfigError(
            f"env.workflow ends with {silent.stop_reason.value} before anybody has spoken"
            + (f": {silent.fault}" if silent.fault else "")
        )
    return spoken
