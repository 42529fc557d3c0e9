"""rLLM's ``AgentWorkflowEngine``: its constructor and ``execute_tasks``, on top of ``rllm_gym.engine``."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rllm_gym import core
from rllm_gym.compat.legacy_workflow import LegacyWorkflowAdapter
from rllm_gym.compat.rollout import RolloutEngine
from rllm_gym.compat.types import Episode
from rllm_gym.compat.workflows import TerminationReason, Workflow
from rllm_gym.core import StopReason
from rllm_gym.engine import AgentWorkflowEngine as Engine
from rllm_gym.engine import EpisodeSpec
from rllm_gym.samplers.protocol import Sampler

_PORTING_HINT = "see docs/from-rllm.md for the replacement"


class AgentWorkflowEngine:
    """Runs workflows written for rLLM.

    Args:
        workflow_cls: The workflow class.
        workflow_args: Its arguments, except ``rollout_engine``.
        rollout_engine: A :class:`RolloutEngine`, an :class:`OpenAIEngine`, or a sampler of this package.
        n_parallel_tasks: Maximum number of concurrent episodes.
        retry_limit: How often a task is tried if its workflow raises an exception.
        raise_on_error: Raise if all tries failed; otherwise the episode has ``TerminationReason.ERROR``.

    Raises:
        ValueError: An option is not supported; the message says what to write instead.
    """

    def __init__(
        self,
        workflow_cls: type[Workflow],
        workflow_args: Mapping[str, Any] | None = None,
        rollout_engine: RolloutEngine | Sampler | None = None,
        config: Any = None,
        n_parallel_tasks: int = 128,
        retry_limit: int = 3,
        raise_on_error: bool = True,
        episode_logger: Any = None,
        **unsupported: Any,
    ) -> None:
        for name, value in {"config": config, "episode_logger": episode_logger, **unsupported}.items():
            if value:
                raise ValueError(f"{name}={value!r} is not supported; {_PORTING_HINT}")
        if not (isinstance(workflow_cls, type) and issubclass(workflow_cls, Workflow)):
            raise ValueError(f"workflow_cls={workflow_cls!r} must be a subclass of rllm_gym.compat.Workflow")
        if retry_limit < 1:
            raise ValueError(f"retry_limit={retry_limit!r} must be at least 1")
        if not isinstance(rollout_engine, RolloutEngine):
            if not isinstance(rollout_engine, Sampler):
                raise ValueError(
                    f"rollout_engine is a {type(rollout_engine).__name__}, neither a RolloutEngine of "
                    f"rllm_gym.compat nor a sampler (rllm_gym.samplers); {_PORTING_HINT}"
                )
            rollout_engine = RolloutEngine(rollout_engine)
        if rollout_engine.sampler is None:
            raise ValueError("this rollout engine has no sampler: pass RolloutEngine(sampler)")
        self.workflow_cls, self.workflow_args = workflow_cls, dict(workflow_args or {})
        self.rollout_engine = rollout_engine
        self.n_parallel_tasks = n_parallel_tasks
        self.retry_limit = retry_limit
        self.raise_on_error = raise_on_error

    async def initialize_pool(self) -> None:
        """Do nothing: workflows are created when they are needed."""

    async def execute_tasks(
        self, tasks: Iterable[Any], task_ids: Sequence[str] | None = None, **kwargs: Any
    ) -> list[Episode]:
        """Return one episode per task, in the order of the tasks, but with those of one task id together.

        Args:
            tasks: Task rows.
            task_ids: Ids of the tasks, which can occur several times; an episode's ``id`` is ``task_id:number``.
            **kwargs: Arguments of the workflow's ``run``.

        Raises:
            RuntimeError: A workflow raised ``retry_limit`` times, and ``raise_on_error`` is set.
            SamplerError: The sampler failed.
        """
        rows = list(tasks)
        ids = [str(number) for number in range(len(rows))] if task_ids is None else [str(name) for name in task_ids]
        if len(ids) != len(rows):
            raise ValueError(f"{len(rows)} tasks have {len(ids)} task_ids; pass one per task")
        seen: Counter[str] = Counter()
        specs: dict[str, list[EpisodeSpec]] = {}
        for row, task_id in zip(rows, ids, strict=True):
            uid = f"{task_id}:{seen[task_id]}"
            seen[task_id] += 1
            specs.setdefault(task_id, []).append(EpisodeSpec(row, group_id=task_id, episode_id=uid))
        ordered = [spec for group in specs.values() for spec in group]
        adapter = LegacyWorkflowAdapter(
            self.workflow_cls,
            self.workflow_args,
            rollout_engine=self.rollout_engine,
            retry_limit=self.retry_limit,
            arguments=kwargs,
        )
        adapter.keep_episodes = True
        episodes = []
        async for created in self._engine(adapter).stream(ordered):
            if created.stop_reason is StopReason.AGENT_ERROR and self.raise_on_error:
                raise RuntimeError(f"[{created.episode_id}] failed {self.retry_limit} times: {created.fault}")
            known = created.episode_id in adapter.episodes
            episodes.append(adapter.episodes.pop(created.episode_id) if known else _empty_episode(created))
        order = {spec.episode_id: position for position, spec in enumerate(ordered)}
        return sorted(episodes, key=lambda episode: order[episode.id])

    def execute_tasks_sync(self, tasks: Iterable[Any], **kwargs: Any) -> list[Episode]:
        """Run :meth:`execute_tasks` from code without an event loop."""
        return asyncio.run(self.execute_tasks(tasks, **kwargs))

    def shutdown(self) -> None:
        """Do nothing: every :meth:`execute_tasks` cleans up what it started."""

    def _engine(self, adapter: LegacyWorkflowAdapter) -> Engine:
        rollout_engine = self.rollout_engine
        assert rollout_engine.sampler is not None
        return Engine(
            adapter,
            sampler=rollout_engine.sampler,
            tokenizer=rollout_engine.tokenizer,
            sampling_params=rollout_engine.params,
            max_prompt_tokens=rollout_engine.max_prompt_length if rollout_engine.tokenizer is not None else None,
            n_parallel=self.n_parallel_tasks,
        )


def _empty_episode(episode: core.Episode) -> Episode:
    timed_out = episode.stop_reason is StopReason.TIMEOUT
    return Episode(
        id=episode.episode_id,
        task=episode.trajectories[0].task if episode.trajectories else None,
        termination_reason=TerminationReason.TIMEOUT if timed_out else TerminationReason.ERROR,
        info={"error": {"error_message": episode.fault, "error_type": episode.stop_reason.value}},
    )
