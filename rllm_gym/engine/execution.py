"""The engine of single agents: environment, agent and sampler, many episodes at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Literal

import gymnasium
from gymnasium.envs.registration import EnvSpec

from rllm_gym.agents import BaseAgent, default_agent
from rllm_gym.chat.renderer import ChatRenderer
from rllm_gym.engine.base import BaseEngine, Specs, TaskLike
from rllm_gym.engine.conversation import Conversation
from rllm_gym.engine.crew import AgentFailed, Result, Seat
from rllm_gym.engine.host import resolve
from rllm_gym.engine.rollout import Rollout, greedy
from rllm_gym.engine.slot import Slot
from rllm_gym.engine.spec import Budget, Deadlines, EpisodeSpec
from rllm_gym.engine.voice import Voice
from rllm_gym.samplers.protocol import Sampler, SamplingParams
from rllm_gym.workers import Kind

__all__ = ["AgentExecutionEngine", "Specs", "TaskLike"]


class AgentExecutionEngine(BaseEngine):
    """Runs episodes: environment, agent and sampler, ``n_parallel`` at a time.

    >>> engine = AgentExecutionEngine(env="rllm/Math-v0", sampler=sampler)            # doctest: +SKIP
    >>> async with engine:                                                            # doctest: +SKIP
    ...     async for episode in engine.stream(range(100)):
    ...         print(episode.task_id, episode.reward, episode.stop_reason)

    Inside ``with`` or ``async with`` workers and environments serve several runs; outside of it every run starts
    and ends its own. The sampler belongs to whoever made it.

    **Faults.** When the world breaks (an exception, a passed deadline, a dead worker, garbage in place of a
    5-tuple) the episode begins again on a fresh environment with the same seeds; past ``retries`` it comes back
    with ``StopReason.FAULT``, ``trainable`` False, and no reward. Every fault is counted in ``stats.faults``.
    An exception of the agent's own code ends the episode as ``StopReason.AGENT_ERROR``.

    Args:
        env: A Gymnasium id, an ``EnvSpec``, or something callable that returns an environment (a class, a function).
        sampler: What draws replies.
        env_kwargs: Keyword arguments of the environment.
        agent: An agent class or factory without arguments; ``None`` picks one by the environment's family.
        renderer: Makes token ids of messages. ``None`` makes one of ``tokenizer`` (or the sampler's own).
        tokenizer: A Hugging Face tokenizer with a chat template.
        sampling_params: How replies are drawn. The token that ends a turn of the template is a stop id in any case.
        n_parallel: Episodes that run at a time in one run, and results that may wait to be read.
        workers: ``"thread"``; ``"process"``, which a hang or a crash cannot outlive; or ``"ray"``, processes on all
            machines of a Ray cluster (extra ``ray``; :class:`~rllm_gym.workers.WorkerPool` says which cluster).
        memory_mb: Cap for each worker process or Ray actor; ``None`` for none.
        max_turns, max_prompt_tokens, max_response_tokens, max_context_tokens: As :class:`Budget`.
        deadlines: Seconds for each phase.
        retries: Times an episode may begin again after a fault.
        reuse_envs: Whether an environment serves further episodes after a clean end. ``None``: those named by an
            ``rllm/`` id do; any other is made for one episode and closed before its result is delivered, so that
            a fault in ``close`` counts against that episode.
        on_sampler_error: ``"raise"`` ends the run with the sampler's error, ``"drop"`` makes it a fault of the
            episode, without retries.
        seed: Root of the seeds of episodes that name none.
        deterministic: Sample in rounds, so that the batches depend on the episodes alone and not on timing, and
            deliver results in the order of the specs. Slower: everyone waits for the slowest environment.
        progress: Show a progress bar on stderr.

    Raises:
        gymnasium.error.Error: There is no such id.
        TypeError: ``deadlines`` is no :class:`Deadlines`.
        ValueError: An argument is out of range, or one could have no effect.
    """

    def __init__(
        self,
        env: str | EnvSpec | Callable[..., gymnasium.Env[Any, Any]],
        *,
        sampler: Sampler,
        env_kwargs: Mapping[str, Any] | None = None,
        agent: Callable[[], BaseAgent] | None = None,
        renderer: ChatRenderer | None = None,
        tokenizer: Any = None,
        sampling_params: SamplingParams | None = None,
        n_parallel: int = 64,
        workers: Kind = "thread",
        memory_mb: int | None = None,
        max_turns: int | None = None,
        max_prompt_tokens: int | None = None,
        max_response_tokens: int | None = None,
        max_context_tokens: int | None = None,
        deadlines: Deadlines | None = None,
        retries: int = 2,
        reuse_envs: bool | None = None,
        on_sampler_error: Literal["raise", "drop"] = "raise",
        seed: int = 0,
        deterministic: bool = False,
        progress: bool = False,
    ) -> None:
        self.source = resolve(env)
        super().__init__(
            env_id=name_of(self.source),
            sampler=sampler,
            renderer=renderer,
            tokenizer=tokenizer,
            sampling_params=sampling_params,
            n_parallel=n_parallel,
            workers=workers,
            memory_mb=memory_mb,
            budget=Budget(max_turns, max_prompt_tokens, max_response_tokens, max_context_tokens),
            deadlines=deadlines,
            retries=retries,
            reuse_envs=reuse_envs,
            on_sampler_error=on_sampler_error,
            seed=seed,
            deterministic=deterministic,
            progress=progress,
        )
        self.env_kwargs = dict(env_kwargs or {})
        self.make_agent: Callable[[], BaseAgent] = agent or default_agent(self.env_id)

    async def stream_with_agents(self, specs: Specs) -> AsyncIterator[Result]:
        """:meth:`stream` with the position of the spec and the agent that played it (``None`` if none did)."""
        async with aclosing(self._run(specs)) as results:
            async for result in results:
                yield result

    def new_place(self) -> Slot:
        return self.new_slot(self.source, self.env_kwargs, env_id=self.env_id)

    def attempt(self, spec: EpisodeSpec, place: Slot, name: str, seat: Seat) -> Rollout:
        try:
            agent = self.make_agent()
        except Exception as error:
            raise AgentFailed(f"making the agent raised {type(error).__name__}: {error}") from error
        if not isinstance(agent, BaseAgent):
            raise TypeError(
                f"agent= gave a {type(agent).__name__}, not a BaseAgent; derive it from rllm_gym.agents.BaseAgent"
            )
        params = greedy(self.params) if spec.greedy else self.params
        conversation = Conversation(self.renderer, self.budget, self.sampler.context_length)
        return Rollout(
            spec=spec,
            agent=agent,
            slot=place,
            voice=Voice(conversation, seat.sample, params, name, f"{spec.seed}/turn/", self.sampler.returns_tokens),
            max_turns=self.budget.max_turns,
        )


def name_of(source: EnvSpec | Callable[..., Any]) -> str:
    return source.id if isinstance(source, EnvSpec) else getattr(source, "__qualname__", type(source).__name__)
