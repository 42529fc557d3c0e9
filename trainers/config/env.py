"""Which environment the model acts in, as which agent, and how its replies are drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trainers.config.checks import idle, positive
from trainers.config.json_object import JsonObject


@dataclass(frozen=True)
class EnvConfig:
    """Which environment the model acts in, and as which agent."""

    id: str = ""
    """Gymnasium id of the environment; `rllm-gym list` shows those that come with this package. `module:id` imports
    the module first, for environments of your own."""
    kwargs: JsonObject = field(default_factory=dict)
    """Keyword arguments of the environment, for training, validation and test alike."""
    train_kwargs: JsonObject = field(default_factory=dict)
    """Further ones for training. `split="train"` is added where the environment takes a `split`."""
    validation_kwargs: JsonObject = field(default_factory=dict)
    """Further ones for validation. `split="validation"` is added where the environment takes a `split`."""
    workflow: str = ""
    """Workflow class as `module:Class`, for episodes of several agents; see `roles`. Its tasks are those of the
    environment or game `env.id`. Empty for one agent that plays the environment."""
    workflow_kwargs: JsonObject = field(default_factory=dict)
    """Keyword arguments of the workflow."""
    agent: str = ""
    """Agent class as `module:Class`; empty for the one that fits the environment."""
    agent_kwargs: JsonObject = field(default_factory=dict)
    """Keyword arguments of the agent."""
    workers: Literal["thread", "process", "ray"] = "thread"
    """Where environments live. Threads are faster; processes survive environments that crash or hang; ray spreads such
    processes over the Ray cluster at RAY_ADDRESS."""
    max_turns: int | None = None
    """Fewer turns than the environment allows; none keeps the environment's own limit. With a workflow: replies in one
    episode, of all agents together."""
    step_timeout: float = 60.0
    """Seconds one step, reset or close of the environment may take."""
    episode_timeout: float = 600.0
    """Seconds a whole episode may take."""
    retries: int = 2
    """Fresh environments tried after the world broke, before the episode is dropped and counted."""
    parallel: int = 128
    """Episodes under way at once."""


@dataclass(frozen=True)
class SamplingConfig:
    """How replies are drawn while training."""

    temperature: float = 1.0
    """Above 0. The log-probs trained on are those at this temperature."""
    max_tokens: int = 64
    """Longest reply of one turn, in tokens."""
    max_response_tokens: int | None = None
    """Most tokens sampled in one episode, over all its turns; none for what the context leaves."""
    context_length: int | None = None
    """Longest conversation in tokens; none for what the model was made for."""


def check_env(env: EnvConfig, problems: list[str]) -> None:
    if not env.id:
        problems.append("env.id is missing: which environment? `rllm-gym list` shows them")
    if env.agent and ":" not in env.agent:
        problems.append(f"env.agent={env.agent!r} must have the form module:Class")
    if env.agent_kwargs and not env.agent:
        problems.append("env.agent_kwargs without env.agent: name the agent they belong to")
    if env.workflow:
        if ":" not in env.workflow:
            problems.append(f"env.workflow={env.workflow!r} must have the form module:Class")
        idle(env, "env.", ("agent",), "with env.workflow, which makes its own", problems)
    elif env.workflow_kwargs:
        problems.append("env.workflow_kwargs without env.workflow: name the workflow they belong to")
    if env.max_turns is not None and env.max_turns < 1:
        problems.append(f"env.max_turns={env.max_turns} must be at least 1")
    positive(env, "env.", ("step_timeout", "episode_timeout", "parallel"), problems)
    if env.retries < 0:
        problems.append(f"env.retries={env.retries} must be 0 or more")


def check_sampling(sampling: SamplingConfig, problems: list[str]) -> None:
    if not sampling.temperature >= 0:
        problems.append(f"sampling.temperature={sampling.temperature} must be above 0")
    positive(sampling, "sampling.", ("max_tokens", "max_response_tokens", "context_length"), problems)
