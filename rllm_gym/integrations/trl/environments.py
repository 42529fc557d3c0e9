"""Environments for TRL's ``environment_factory``: the model acts by calling a tool."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Self

from gymnasium.envs.registration import EnvSpec

from rllm_gym.agents import default_agent
from rllm_gym.core import EnvironmentFault, stream_seed
from rllm_gym.core.background_loop import BackgroundLoop
from rllm_gym.engine import Deadlines, EngineStats, EnvironmentUnavailable
from rllm_gym.engine.episode_env_worker import EpisodeEnvWorker
from rllm_gym.integrations.trl.dataset import Tasks, dataset_of, tasks_of
from rllm_gym.runtime import WorkerPool
from rllm_gym.runtime.env_building import Env, resolve


class EnvironmentFactory:
    """Creates a :class:`TRLToolEnvironment` for each concurrent rollout of TRL; TRL keeps and reuses them.

    The model acts by calling the tool ``act``; a reply without a call ends TRL's rollout. After a failure of the
    environment, ``get_reward`` returns ``None``, which TRL leaves out. Seeds: each rollout has its own dynamics seed,
    derived from ``seed``, the task and the number of earlier rollouts in its environment.

    TRL never closes environments. Use the factory with ``with``, or :meth:`close` it; otherwise environments and worker
    processes end with the program, but without the environments' own ``close``.

    Args:
        env: A Gymnasium id, an ``EnvSpec``, or a callable that returns an environment.
        env_kwargs: Keyword arguments of the environment.
        workers: ``"thread"``, or ``"process"``, which can be killed if it hangs or crashes.
        deadlines: Seconds for each phase; ``episode`` is not used, because TRL runs the episode.
        retries: How often a failed ``reset`` is retried on a new environment.
        seed: Root of the seeds.
    """

    def __init__(
        self,
        env: Env,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        workers: Literal["thread", "process"] = "thread",
        deadlines: Deadlines | None = None,
        retries: int = 2,
        seed: int = 0,
    ) -> None:
        if retries < 0:
            raise ValueError(f"retries={retries!r} must be 0 or more")
        self._source = resolve(env)
        self.env_id = self._source.id if isinstance(self._source, EnvSpec) else ""
        self._env_kwargs = dict(env_kwargs or {})
        self._workers = workers
        self._deadlines = deadlines or Deadlines()
        self.retries = retries
        self.seed = seed
        self.stats = EngineStats()
        self.env_made = threading.Event()
        self._count = 0
        self._env_workers: _EnvWorkers | None = None

    def __call__(self) -> TRLToolEnvironment:
        self._count += 1
        return TRLToolEnvironment(self, self._count)

    def dataset(self, tasks: Tasks | None = None, *, system_prompt: str | None = None) -> Any:
        """Return a ``datasets.Dataset`` for ``train_dataset``. TRL appends the first observation to the prompt.

        Args:
            tasks: As :meth:`~rllm_gym.integrations.trl.RolloutFunction.dataset`.
            system_prompt: ``None`` uses that of the family's agent, ``""`` none.
        """
        if system_prompt is None:
            system_prompt = str(getattr(default_agent(self.env_id), "system_prompt", ""))
        head = [{"role": "system", "content": system_prompt}] if system_prompt else []
        rows = [
            {"prompt": [*head, {"role": "user", "content": ""}], "task_id": task.task_id}
            for task in tasks_of(self._source, self._env_kwargs, tasks)
        ]
        return dataset_of(rows)

    def env_worker(self) -> tuple[EpisodeEnvWorker, BackgroundLoop]:
        """Return the worker of one environment, and the loop it belongs to."""
        if self._env_workers is None:
            self._env_workers = _EnvWorkers(self._workers, self.env_id)
        env_workers = self._env_workers
        worker = EpisodeEnvWorker(
            env_workers.pool,
            self._source,
            self._env_kwargs,
            self._deadlines,
            reuse=True,
            env_made=self.env_made,
            stats=self.stats,
        )
        env_workers.workers.append(worker)
        return worker, env_workers.loop

    def close(self) -> None:
        """Close all environments and end their workers. Safe to call twice; a further rollout creates new ones."""
        env_workers, self._env_workers = self._env_workers, None
        if env_workers is not None:
            env_workers.close()

    def is_open(self, worker: EpisodeEnvWorker) -> bool:
        """Return whether the worker is still open."""
        return self._env_workers is not None and worker in self._env_workers.workers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _EnvWorkers:
    """The workers of a factory's environments, and their event loop."""

    def __init__(self, workers: Literal["thread", "process"], env_id: str) -> None:
        self.pool = WorkerPool(
            workers,
            max_workers=1_000_000,  # TRL decides how many environments there are
            name=f"{env_id} environment",
            preload=("rllm_gym.engine.task_env_host",) if workers == "process" else (),
        )
        self.loop = BackgroundLoop("trl-environments")
        self.workers: list[EpisodeEnvWorker] = []

    def close(self) -> None:
        try:
            for worker in self.workers:
                self.loop.run(worker.aclose())  # each within its deadline
        finally:
            self.loop.close()
            self.pool.close()


class TRLToolEnvironment:
    """One environment for TRL: every public method except ``reset`` and ``get_reward`` is a tool."""

    def __init__(self, factory: EnvironmentFactory, number: int) -> None:
        self._factory = factory
        self._number = number
        self._resets = 0
        self._worker: EpisodeEnvWorker | None = None
        self._loop: BackgroundLoop | None = None
        self._reward: float | None = 0.0
        self._done = True

    def reset(self, **row: Any) -> str:
        """Begin an episode with the task of a row of the dataset.

        Args:
            **row: ``task_id`` (or ``task``) names the task, else the seed selects it; ``seed`` sets the dynamics, which
                the repeats of the row then share. Other columns belong to TRL and the user.

        Returns:
            The first observation, which TRL appends to the prompt, with the environment's tool schemas if it has any.

        Raises:
            TaskError: There is no such task.
            EnvironmentUnavailable: No environment could be created at all.
        """
        factory = self._factory
        task = row.get("task_id", row.get("task"))
        seed = row.get("seed")
        if seed is None:
            name = task if isinstance(task, str | int) else ""
            rank = int(os.environ.get("RANK", "0"))
            seed = stream_seed("trl", factory.seed, name, rank, self._number, self._resets) % 2**32
        self._resets += 1
        self._reward, self._done = 0.0, False
        for attempt in range(factory.retries + 1):
            worker, loop = self._env_worker()
            try:
                observation, info, _ = loop.run(worker.reset(int(seed), None if task is None else {"task": task}))
                break
            except EnvironmentFault as fault:
                self._on_fault(fault)
                if attempt == factory.retries:
                    if not factory.env_made.is_set():
                        raise EnvironmentUnavailable(f"no environment could be created: {fault}") from fault
                    return "The environment is not available."
                factory.stats.retries += 1
        self._reward, self._done = 0.0, False
        tools = str(info.get("tools", "[]"))
        if tools == "[]":
            return str(observation)
        return f"{observation}\n\nTools, to be called within the reply given to `act`:\n{tools}"

    def act(self, reply: str) -> str:
        """Give your reply to the environment and learn what happens next.

        Args:
            reply: The whole reply, in the format that the task asks for.

        Returns:
            What the environment answers.
        """
        if self._done:
            return "The episode is over: there is nothing left to do."
        assert self._worker is not None
        assert self._loop is not None
        if not isinstance(reply, str):  # the model wrote the argument
            reply = json.dumps(reply)
        try:
            observation, reward, terminated, truncated, _ = self._loop.run(self._worker.step(reply))
        except EnvironmentFault as fault:
            self._on_fault(fault)
            return "The environment broke: there is nothing left to do."
        assert self._reward is not None
        self._reward += reward
        self._done = terminated or truncated
        return str(observation)

    def get_reward(self) -> float | None:
        """Return the sum of the rewards of the episode's steps; ``None`` if the environment failed."""
        return self._reward

    def _env_worker(self) -> tuple[EpisodeEnvWorker, BackgroundLoop]:
        if self._worker is None or not self._factory.is_open(self._worker):
            self._worker, self._loop = self._factory.env_worker()
        assert self._loop is not None
        return self._worker, self._loop

    def _on_fault(self, fault: EnvironmentFault) -> None:
        self._factory.stats.faults[fault.kind] += 1
        self._reward, self._done = None, True
        assert self._worker is not None
        assert self._loop is not None
        self._loop.run(self._worker.discard())
