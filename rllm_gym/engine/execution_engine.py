"""The engine for episodes with a single agent: runs environment, agent and sampler for many episodes concurrently."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from rllm_gym.agents import BaseAgent, default_agent
from rllm_gym.engine.attempt import AgentError
from rllm_gym.engine.base import BaseEngine, EpisodeResult
from rllm_gym.engine.conversation import ConversationTokens
from rllm_gym.engine.conversation_sampler import ConversationSampler
from rllm_gym.engine.episode_env_worker import EpisodeEnvWorker
from rllm_gym.engine.options import engine_options
from rllm_gym.engine.rollout import Rollout, greedy
from rllm_gym.engine.sampler_client import SamplerClient
from rllm_gym.engine.spec import EpisodeSpec, Specs
from rllm_gym.runtime.env_building import resolve
from rllm_gym.samplers.protocol import Sampler


class AgentExecutionEngine(BaseEngine):
    """Runs single-agent episodes (environment, agent and sampler), up to ``n_parallel`` concurrently.

    >>> engine = AgentExecutionEngine(env="rllm/Math-v0", sampler=sampler)            # doctest: +SKIP
    >>> async with engine:                                                            # doctest: +SKIP
    ...     async for episode in engine.stream(range(100)):
    ...         print(episode.task_id, episode.reward, episode.stop_reason)

    Within ``with`` or ``async with``, workers and environments are reused across runs; otherwise every run starts and
    stops its own. The engine does not close the sampler.

    **Error handling.** If the environment fails (an exception, a passed deadline, a dead worker, an invalid return
    value), the episode restarts on a fresh environment with the same seeds. After ``retries`` restarts it is returned
    with ``StopReason.FAULT``, ``trainable`` False, and no reward. Every fault is counted in ``stats.faults``.
    An exception of the agent's own code ends the episode as ``StopReason.AGENT_ERROR``.

    Args:
        env: A Gymnasium id, an ``EnvSpec``, or a callable that returns an environment (a class or a function).
        sampler: Samples the replies.
        env_kwargs: Keyword arguments of the environment.
        agent: An agent class or a factory without arguments; ``None`` selects one by the environment's family.
        **options: See :class:`~rllm_gym.engine.EngineOptions`.

    Raises:
        gymnasium.error.Error: There is no such environment id.
        TypeError: ``deadlines`` is not a :class:`Deadlines`.
        ValueError: An argument is out of range or would have no effect.
    """

    def __init__(
        self,
        env: str | EnvSpec | Callable[..., gymnasium.Env[Any, Any]],
        *,
        sampler: Sampler,
        env_kwargs: Mapping[str, Any] | None = None,
        agent: Callable[[], BaseAgent] | None = None,
        **options: Any,
    ) -> None:
        self.source = resolve(env)
        super().__init__(
            env_id=name_of(self.source), sampler=sampler, options=engine_options(type(self).__name__, options)
        )
        self.env_kwargs = dict(env_kwargs or {})
        self.make_agent: Callable[[], BaseAgent] = agent or default_agent(self.env_id)

    async def stream_with_agents(self, specs: Specs) -> AsyncGenerator[EpisodeResult, None]:
        """Yield from :meth:`stream`, with the position of the spec and the agent (``None`` if none was created)."""
        async with aclosing(self._run(specs)) as results:
            async for result in results:
                yield result

    def new_lease(self) -> EpisodeEnvWorker:
        return self.env_pool.new_env_worker(self.source, self.env_kwargs, env_id=self.env_id)

    def attempt(self, spec: EpisodeSpec, worker: EpisodeEnvWorker, name: str, sampler_client: SamplerClient) -> Rollout:
        try:
            agent = self.make_agent()
        except Exception as error:
            raise AgentError(f"creating the agent raised {type(error).__name__}: {error}") from error
        if not isinstance(agent, BaseAgent):
            raise TypeError(
                f"agent= returned a {type(agent).__name__}, not a BaseAgent; subclass rllm_gym.agents.BaseAgent"
            )
        # Without a task, the episodes of a group share the seed, which selects the task; their replies must differ.
        seed = spec.seed if spec.task is not None else f"{spec.seed}/{spec.episode_id}"
        params = greedy(self.params) if spec.greedy else self.params
        conversation = ConversationTokens(self.renderer, self.budget, self.sampler.context_length)
        return Rollout(
            spec=spec,
            agent=agent,
            worker=worker,
            sampler=ConversationSampler(
                conversation, sampler_client.sample, params, name, f"{seed}/turn/", self.sampler.returns_tokens
            ),
            max_turns=self.budget.max_turns,
        )


def name_of(source: EnvSpec | Callable[..., Any]) -> str:
    return source.id if isinstance(source, EnvSpec) else getattr(source, "__qualname__", type(source).__name__)
