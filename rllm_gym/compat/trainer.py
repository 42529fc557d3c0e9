"""rLLM's trainers, on top of the package ``trainers``: with its Hydra configurations, and for workflows.

``trainers`` is imported inside functions: it needs torch, and imports modules of this package.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rllm_gym.agents import BaseAgent, ChatAgent
from rllm_gym.compat.agents import LegacyAgentAdapter
from rllm_gym.compat.environments import BaseEnv, LegacyEnvAdapter
from rllm_gym.compat.hydra_config import Translation, is_hydra_config, translate, translate_sft
from rllm_gym.compat.legacy_workflow import LegacyWorkflowAdapter
from rllm_gym.compat.rollout import RolloutEngine
from rllm_gym.compat.workflows import Workflow
from rllm_gym.core import Task

_log = logging.getLogger(__name__)


class AgentTrainer:
    """Trains an agent in an environment, or a workflow, on the rows of a data set.

    >>> AgentTrainer(                                                       # doctest: +SKIP
    ...     agent_class=MyAgent, env_class=MyEnv, train_dataset=rows,
    ...     config={"model": {"path": "Qwen/Qwen2.5-0.5B-Instruct"}, "steps": 100},
    ... ).train()

    Args:
        workflow_class: A subclass of :class:`~rllm_gym.compat.Workflow`, instead of an agent and an environment.
        workflow_args: Its arguments, except ``rollout_engine``.
        agent_class: An agent written for rLLM (with new environments it then reads ``observation["question"]``), or
            a :class:`~rllm_gym.agents.ChatAgent`.
        env_class: An environment written for rLLM (it has ``from_dict``, which receives each row), or the Gymnasium
            id or class of a :class:`~rllm_gym.core.TextEnv`.
        agent_args, env_args: Keyword arguments of the two.
        config: A ``TrainConfig``, a mapping of its options, a YAML file, or a Hydra configuration as
            :mod:`rllm_gym.compat.hydra_config` describes it.
        train_dataset: Rows, for example a :class:`~rllm_gym.compat.Dataset`, or tasks. Optional if the environment has
            tasks of its own.
        val_dataset: The same for validation. Without it, and without validation tasks of the environment, validation
            is disabled.

    Raises:
        ConfigError: An option is unknown, invalid or has no effect, or there is nothing to train on.
    """

    def __init__(
        self,
        workflow_class: type[Workflow] | None = None,
        workflow_args: Mapping[str, Any] | None = None,
        agent_class: type[BaseAgent] | None = None,
        env_class: Any = None,
        agent_args: Mapping[str, Any] | None = None,
        env_args: Mapping[str, Any] | None = None,
        config: Any = None,
        train_dataset: Sequence[Any] | None = None,
        val_dataset: Sequence[Any] | None = None,
    ) -> None:
        from trainers import ConfigError, TrainConfig
        from trainers.config.mapping import from_mapping
        from trainers.config_loading import load_yaml

        given = {"agent_class": agent_class, "env_class": env_class, "agent_args": agent_args, "env_args": env_args}
        if workflow_class is not None and (both := [name for name, value in given.items() if value]):
            raise ConfigError(f"{', '.join(both)}: a workflow gets its agents and environments by workflow_args")
        if workflow_class is None and (agent_class is None or env_class is None):
            raise ConfigError("pass agent_class and env_class, or workflow_class")
        translated = Translation({}, {}, {})
        if is_hydra_config(config):
            translated = translate(
                config,
                workflow=workflow_class is not None,
                train_rows=len(train_dataset or ()),
                validation_rows=len(val_dataset or ()),
            )
            config = translated.options
        if not isinstance(config, TrainConfig):
            is_file = isinstance(config, str | Path)
            config = load_yaml(TrainConfig, config) if is_file else from_mapping(TrainConfig, config or {})
        if workflow_class is not None:
            self.train_env = _workflow_env(
                workflow_class, dict(workflow_args or {}), config, train_dataset, val_dataset, translated.retry_limit
            )
        else:
            if config.env.agent or config.env.agent_kwargs or config.env.kwargs:
                raise ConfigError(
                    "config.env.agent, config.env.agent_kwargs and config.env.kwargs have no effect here: use "
                    "agent_class, agent_args and env_args (workflows are trained with trainers.train)"
                )
            assert agent_class is not None
            agent_args = {**(agent_args or {}), **translated.agent_args}
            env_args = {**(env_args or {}), **translated.env_args}
            is_old = hasattr(env_class, "from_dict")
            agent = _agent(agent_class, agent_args, config, new_environment=not is_old)
            make = _legacy_env if is_old else _gym_env
            self.train_env = make(env_class, env_args, agent, train_dataset, val_dataset, config)
        self.config = config if self.train_env.validation is not None else replace(config, validation=None)

    def train(self) -> Any:
        """Run the training; see :func:`trainers.loop.train`."""
        from trainers import train

        return train(self.config, env=self.train_env)


def _agent(
    agent_class: type[BaseAgent], arguments: Mapping[str, Any], config: Any, *, new_environment: bool
) -> Callable[[], BaseAgent]:
    def agent() -> BaseAgent:
        instance = agent_class(**arguments)
        if isinstance(instance, ChatAgent) and new_environment:
            return instance
        return LegacyAgentAdapter(instance, new_environment=new_environment, max_steps=config.env.max_turns)

    return agent


def _workflow_env(
    workflow_class: type[Workflow],
    arguments: dict[str, Any],
    config: Any,
    train_rows: Sequence[Any] | None,
    validation_rows: Sequence[Any] | None,
    retry_limit: int,
) -> Any:
    from trainers import TrainEnv

    limit = config.sampling.max_response_tokens or config.sampling.max_tokens

    def workflow() -> LegacyWorkflowAdapter:
        engine = RolloutEngine(max_response_length=limit or RolloutEngine().max_response_length)
        return LegacyWorkflowAdapter(workflow_class, arguments, rollout_engine=engine, retry_limit=retry_limit)

    rows = _rows(train_rows, f"{workflow_class.__name__} runs task rows")
    unused = {"env_class": BaseEnv}  # a workflow creates its own environments
    return TrainEnv(LegacyEnvAdapter, None, rows, _or_none(validation_rows), unused, unused, workflow)


def _legacy_env(
    env_class: Any,
    env_args: Mapping[str, Any],
    agent: Callable[[], BaseAgent],
    train_rows: Sequence[Any] | None,
    validation_rows: Sequence[Any] | None,
    config: Any,
) -> Any:
    from trainers import TrainEnv

    rows = _rows(train_rows, f"{env_class.__name__} is created from task rows")
    kwargs = {"env_class": env_class, "env_args": dict(env_args), "max_steps": config.env.max_turns}
    return TrainEnv(LegacyEnvAdapter, agent, rows, _or_none(validation_rows), kwargs, kwargs)


def _gym_env(
    env: str | Callable[..., Any],
    env_args: Mapping[str, Any],
    agent: Callable[[], BaseAgent],
    train_rows: Sequence[Any] | None,
    validation_rows: Sequence[Any] | None,
    config: Any,
) -> Any:
    from trainers import TrainEnv
    from trainers.train_env import open_train_env, tasks_of

    own: Any = None
    if train_rows is None or validation_rows is None:
        # In rLLM, the number of steps may be above what the environment allows.
        options = replace(config.env, id=env if isinstance(env, str) else "given", kwargs=env_args, max_turns=None)
        own = open_train_env(options, env=env)

    def side(rows: Sequence[Any] | None, tasks: Any, kwargs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        if rows is None:
            return tasks, kwargs
        if all(isinstance(row, Task) for row in rows):
            return rows, env_args
        env_kwargs = {**env_args, "tasks": list(rows)}
        return tasks_of(env, env_kwargs), env_kwargs

    training, train_kwargs = side(train_rows, own and own.train, own.train_kwargs if own else {})
    # With training rows and no validation rows, the environment's own validation tasks are of another kind.
    kept = own.validation if own and train_rows is None else None
    validation, validation_kwargs = side(validation_rows, kept, own.validation_kwargs if own else {})
    return TrainEnv(env, agent, training, validation, train_kwargs, validation_kwargs)


def _rows(rows: Sequence[Any] | None, what: str) -> Sequence[Any]:
    from trainers import ConfigError

    if rows is None or not len(rows):
        raise ConfigError(f"{what}, but train_dataset has none")
    return rows


def _or_none(rows: Sequence[Any] | None) -> Sequence[Any] | None:
    return rows if rows is not None and len(rows) else None


class AgentSFTTrainer:
    """Supervised fine-tuning on chats.

    Args:
        config: A Hydra configuration as :mod:`rllm_gym.compat.hydra_config` describes it, nested options of
            ``SftConfig``, or an ``SftConfig``. ``data.train_files`` are rows with ``messages``.

    Raises:
        ConfigError: An option is unknown, invalid or has no effect.
    """

    def __init__(self, config: Any) -> None:
        from trainers import SftConfig
        from trainers.config.mapping import from_mapping

        if isinstance(config, Mapping):
            config = from_mapping(SftConfig, translate_sft(config) if is_hydra_config(config) else config)
        self.config: SftConfig = config

    def train(self) -> Any:
        """Run the training; see :func:`trainers.fine_tuning.sft.sft`."""
        from trainers.fine_tuning.sft import sft

        return sft(self.config)

    @staticmethod
    def process_trajectories(trajectories: Sequence[Any], reward_threshold: float) -> list[dict[str, Any]]:
        """Return the chats of the trajectories with at least this reward, as rows to train on. Messages without text
        are left out; trajectories of failed environments, and those with fewer than two messages, too.
        """
        rows = []
        for trajectory in trajectories:
            if trajectory.reward is None or trajectory.reward < reward_threshold or not trajectory.steps:
                continue
            messages = [
                {"role": message["role"], "content": text}
                for message in trajectory.steps[-1].chat_completions or ()
                if message.get("role") and (text := str(message.get("content") or "").strip())
            ]
            if len(messages) >= 2:
                rows.append({"messages": messages})
        _log.info("%d of %d trajectories are rows", len(rows), len(trajectories))
        return rows
