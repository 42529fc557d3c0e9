"""``AgentTrainer``: rLLM's training interface (an agent class, an environment class and rows to train on)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rllm_gym.agents import BaseAgent, ChatAgent
from rllm_gym.compat.agents import LegacyAgentAdapter
from rllm_gym.compat.environments import LegacyEnvAdapter
from rllm_gym.core import Task
from trainers.config import ConfigError, TrainConfig
from trainers.config.mapping import from_mapping
from trainers.config_loading import load_yaml
from trainers.loop import TrainResult, train
from trainers.train_env import TaskSequence, TrainEnv, open_train_env, tasks_of


class AgentTrainer:
    """Trains an agent in an environment on the rows of a data set.

    >>> AgentTrainer(                                                       # doctest: +SKIP
    ...     agent_class=MyAgent, env_class=MyEnv, train_dataset=rows,
    ...     config={"model": {"path": "Qwen/Qwen2.5-0.5B-Instruct"}, "steps": 100},
    ... ).train()

    Args:
        agent_class: An agent written for rLLM (with new environments it then reads ``observation["question"]``), or
            a :class:`~rllm_gym.agents.ChatAgent`.
        env_class: An environment written for rLLM (it has ``from_dict``, which receives each row), or the Gymnasium
            id or class of a :class:`~rllm_gym.core.TextEnv`.
        config: A :class:`TrainConfig`, a mapping of its options, or a YAML file. rLLM's Hydra configurations are not
            supported: an unknown option raises an error that names the nearest known one.
        train_dataset: Rows, for example a :class:`~rllm_gym.data.Dataset`, or tasks. Optional if the environment has
            tasks of its own.
        val_dataset: The same for validation. Without it, and without validation tasks of the environment, validation
            is disabled.
        agent_args: Keyword arguments of the agent.
        env_args: Keyword arguments of the environment.

    Raises:
        ConfigError: The options are invalid, or there is nothing to train on.
    """

    def __init__(
        self,
        agent_class: type[BaseAgent],
        env_class: Any,
        config: TrainConfig | Mapping[str, Any] | str | Path | None = None,
        train_dataset: Sequence[Any] | None = None,
        val_dataset: Sequence[Any] | None = None,
        agent_args: Mapping[str, Any] | None = None,
        env_args: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(config, TrainConfig):
            config = load_yaml(TrainConfig, config) if isinstance(config, str | Path) else _build(config or {})
        if config.env.agent or config.env.agent_kwargs or config.env.kwargs:
            raise ConfigError(
                "config.env.agent, config.env.agent_kwargs and config.env.kwargs have no effect here: use agent_class, "
                "agent_args and env_args (workflows are trained with trainers.train)"
            )
        arguments = dict(agent_args or {})
        new_environment = not hasattr(env_class, "from_dict")

        def agent() -> BaseAgent:
            instance = agent_class(**arguments)
            if isinstance(instance, ChatAgent) and new_environment:
                return instance
            return LegacyAgentAdapter(instance, new_environment=new_environment, max_steps=max_turns)

        max_turns = config.env.max_turns
        make_train_env = _gym_env if new_environment else _legacy_env
        self.train_env = make_train_env(env_class, dict(env_args or {}), agent, train_dataset, val_dataset, config)
        if self.train_env.validation is None:
            config = replace(config, validation=None)
        self.config = config

    def train(self) -> TrainResult:
        """Run the training; see :func:`trainers.loop.train`."""
        return train(self.config, env=self.train_env)


def _build(options: Mapping[str, Any]) -> TrainConfig:
    return from_mapping(TrainConfig, options)


def _legacy_env(
    env_class: Any,
    env_args: dict[str, Any],
    agent: Callable[[], BaseAgent],
    train_rows: Sequence[Any] | None,
    validation_rows: Sequence[Any] | None,
    config: TrainConfig,
) -> TrainEnv:
    if train_rows is None or len(train_rows) == 0:
        raise ConfigError(f"{env_class.__name__} is created from task rows, but train_dataset has none")
    kwargs = {"env_class": env_class, "env_args": env_args, "max_steps": config.env.max_turns}
    return TrainEnv(LegacyEnvAdapter, agent, train_rows, validation_rows or None, kwargs, kwargs)


def _gym_env(
    env: str | Callable[..., Any],
    env_args: dict[str, Any],
    agent: Callable[[], BaseAgent],
    train_rows: Sequence[Any] | None,
    validation_rows: Sequence[Any] | None,
    config: TrainConfig,
) -> TrainEnv:
    own: TrainEnv | None = None
    if train_rows is None or validation_rows is None:
        own = open_train_env(replace(config.env, id=env if isinstance(env, str) else "given", kwargs=env_args), env=env)

    def side(
        rows: Sequence[Any] | None, tasks: TaskSequence | None, kwargs: Mapping[str, Any]
    ) -> tuple[TaskSequence | None, Any]:
        if rows is None:
            return tasks, kwargs
        if all(isinstance(row, Task) for row in rows):
            return rows, env_args
        env_kwargs = {**env_args, "tasks": list(rows)}
        return tasks_of(env, env_kwargs), env_kwargs

    training, train_kwargs = side(train_rows, own.train if own else None, own.train_kwargs if own else {})
    # With training rows and no validation rows, the environment's own validation tasks are of another kind.
    kept = own.validation if own and train_rows is None else None
    validation, validation_kwargs = side(validation_rows, kept, own.validation_kwargs if own else {})
    assert training is not None
    return TrainEnv(env, agent, training, validation, train_kwargs, validation_kwargs)
