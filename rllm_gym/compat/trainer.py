"""rLLM's trainers, on top of the package ``trainers``: with its Hydra configurations, and for workflows.

``trainers`` is imported inside functions: it needs torch, and imports modules of this package.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rllm_gym.agents import BaseAgent
from rllm_gym.compat.environments import BaseEnv, LegacyEnvAdapter
from rllm_gym.compat.hydra_config import Translation, is_hydra_config, translate, translate_sft
from rllm_gym.compat.legacy_workflow import LegacyWorkflowAdapter
from rllm_gym.compat.rollout import RolloutEngine
from rllm_gym.compat.workflows import Workflow

_log = logging.getLogger(__name__)


class AgentTrainer:
    """Trains an agent in an environment, or a workflow, on the rows of a data set.

    Args:
        workflow_class: A subclass of :class:`~rllm_gym.compat.Workflow`, instead of an agent and an environment.
        workflow_args: Its arguments, except ``rollout_engine``.
        agent_class, env_class, agent_args, env_args: See :class:`trainers.AgentTrainer`.
        config: As of :class:`trainers.AgentTrainer`, or a Hydra configuration as
            :mod:`rllm_gym.compat.hydra_config` describes it.
        train_dataset, val_dataset: Rows.

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
        from trainers import AgentTrainer as Trainer
        from trainers import ConfigError

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
        if workflow_class is None:
            trainer = Trainer(
                agent_class=agent_class,  # type: ignore[arg-type]
                env_class=env_class,
                config=config,
                train_dataset=train_dataset,
                val_dataset=val_dataset,
                agent_args={**(agent_args or {}), **translated.agent_args},
                env_args={**(env_args or {}), **translated.env_args},
            )
            self.config, self.train_env = trainer.config, trainer.train_env
        else:
            self._open_workflow(
                workflow_class, dict(workflow_args or {}), config, train_dataset, val_dataset, translated.retry_limit
            )

    def _open_workflow(
        self,
        workflow_class: type[Workflow],
        arguments: dict[str, Any],
        config: Any,
        train_dataset: Sequence[Any] | None,
        val_dataset: Sequence[Any] | None,
        retry_limit: int,
    ) -> None:
        from trainers import ConfigError, TrainConfig, TrainEnv
        from trainers.config.mapping import from_mapping
        from trainers.config_loading import load_yaml

        if not isinstance(config, TrainConfig):
            is_file = isinstance(config, str | Path)
            config = load_yaml(TrainConfig, config) if is_file else from_mapping(TrainConfig, config or {})
        if train_dataset is None or not len(train_dataset):
            raise ConfigError(f"{workflow_class.__name__} runs task rows, but train_dataset has none")
        limit = config.sampling.max_response_tokens or config.sampling.max_tokens

        def workflow() -> LegacyWorkflowAdapter:
            engine = RolloutEngine(max_response_length=limit or RolloutEngine().max_response_length)
            return LegacyWorkflowAdapter(workflow_class, arguments, rollout_engine=engine, retry_limit=retry_limit)

        unused = {"env_class": BaseEnv}  # a workflow creates its own environments
        validation = val_dataset if val_dataset is not None and len(val_dataset) else None
        self.config = config if validation is not None else replace(config, validation=None)
        self.train_env = TrainEnv(LegacyEnvAdapter, None, train_dataset, validation, unused, unused, workflow)

    def train(self) -> Any:
        """Run the training; see :func:`trainers.loop.train`."""
        from trainers import train

        return train(self.config, env=self.train_env)


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
