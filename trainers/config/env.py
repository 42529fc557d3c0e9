"""Options of the environment, the agent and sampling."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trainers.json_object import JsonObject
from trainers.option_checks import NonNegativeFloat, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class EnvConfig:
    """The environment and the agent that acts in it."""

    id: str = ""
    """Gymnasium id of the environment; ``rllm-gym list`` shows the ones in this package. ``module:id`` imports the
    module first, for your own environments."""
    kwargs: JsonObject = field(default_factory=dict)
    """Keyword arguments of the environment, for training, validation and test."""
    train_kwargs: JsonObject = field(default_factory=dict)
    """Additional keyword arguments for training. ``split="train"`` is added if the environment accepts a ``split``."""
    validation_kwargs: JsonObject = field(default_factory=dict)
    """Additional keyword arguments for validation. ``split="validation"`` is added if the environment accepts a
    ``split``."""
    agent: str = ""
    """Agent class as ``module:Class``, or a workflow class for several agents, whose ``roles`` can have options of
    their own; empty for the default agent of the environment."""
    agent_kwargs: JsonObject = field(default_factory=dict)
    """Keyword arguments of the agent (also of the default one) or of the workflow."""
    workers: Literal["thread", "process", "ray"] = "thread"
    """Where environments run. Threads are faster; processes isolate crashes and hangs; ray distributes such
    processes over the Ray cluster at RAY_ADDRESS."""
    max_turns: PositiveInt | None = None
    """Maximum number of turns, if below the environment's own limit; none for the environment's limit. With a
    workflow: the number of replies per episode, of all agents together."""
    step_timeout: PositiveFloat = 60.0
    """Timeout in seconds for one step, reset or close of the environment. To a step is added what the environment
    itself allows a model to take (``max_step_s``): a command, the run of its tests, a call of a tool."""
    episode_timeout: PositiveFloat = 600.0
    """Timeout in seconds for a whole episode."""
    parallel: PositiveInt = 128
    """Number of concurrent episodes."""


@dataclass(frozen=True)
class SamplingConfig:
    """Sampling of replies during training."""

    temperature: NonNegativeFloat = 1.0
    """Sampling temperature, above 0. The log-probs that the loss uses are those at this temperature."""
    max_tokens: PositiveInt | None = None
    """Maximum length of the reply of one turn, in tokens. None for what the environment asks for (``reply_tokens``, 512
    unless it says otherwise), at most half the context; 64 for a tiny model, which has fewer than ten million
    weights."""
    max_response_tokens: PositiveInt | None = None
    """Maximum number of sampled tokens per episode, over all its turns; none for what fits in the context."""
    context_length: PositiveInt | None = None
    """Maximum length of a conversation in tokens; none for the context length of the model."""

    @property
    def reply_limit(self) -> int:
        """``max_tokens``, which :func:`~trainers.model.size_defaults.with_max_tokens` has set."""
        assert self.max_tokens is not None
        return self.max_tokens


def check_env(env: EnvConfig, problems: list[str]) -> None:
    if not env.id:
        problems.append("env.id is missing: set the id of an environment (`rllm-gym list` shows them)")
    if env.agent and ":" not in env.agent:
        problems.append(f"env.agent={env.agent!r} must have the form module:Class")
