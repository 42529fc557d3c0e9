"""verl on this package's environments and agents: an ``AgentLoop`` that runs an episode for each row of its data set.

verl owns the weights, the servers and the machines; this project's engine runs the episode, in the agent loop worker
that verl started, and requests every reply from verl's servers. Written for verl 0.9.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

from rllm_gym.agents import BaseAgent
from rllm_gym.chat.renderer import ChatRenderer
from rllm_gym.chat.tokenizer import reply_decoder
from rllm_gym.core import Episode, stream_seed
from rllm_gym.engine import AgentExecutionEngine, Deadlines, EpisodeSpec
from rllm_gym.samplers.protocol import Completion, SamplerError, SamplingParams, SamplingRequest, WeightUpdate

try:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"verl's agent loops need {error.name}: pip install 'rllm-gym[verl]'", name=error.name
    ) from error


class EpisodeFault(RuntimeError):
    """An episode without information about the model, raised with ``on_fault="raise"``."""


@register("rllm_gym")
class RllmGymAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Runs one episode: the row names the task, the environment provides the prompt.

    A row of the data set names its task in ``extra_info["task_id"]`` and may name its environment in
    ``extra_info["env_id"]``. Its prompt is not used: the first observation is the prompt. The repeats of a row share
    the task, and each has its own dynamics seed, derived from ``seed``, the task, verl's ``priority`` (the index of the
    sample in the whole batch) and how often this worker has run both before.

    ``response_mask`` is 1 on exactly the tokens that a server sampled, and the reward is the environment's. All turns
    and the environment's text between them fit ``rollout.response_length``: the last reply gets the remaining space,
    and an episode without space ends there. Its first prompt fits ``rollout.prompt_length``, or the episode is
    excluded.

    verl cannot represent a sample without a reward. An episode without information about the model (the environment or
    the agent failed too often, the prompt did not fit) is one masked token with reward 0: nothing is trained on it, but
    a baseline of its group counts that 0. ``reward_extra_info["left_out"]`` marks it; ``on_fault="raise"`` ends the
    run.

    Environments and their workers serve one episode after the other and live as long as the agent loop worker.

    Args:
        env: A Gymnasium id (``"module:id"`` imports the module first). ``None``: each row names one.
        env_kwargs: Keyword arguments of the environment.
        agent: ``"module:Class"``; ``None`` selects one by the environment's family. It must not rewrite its history.
        agent_kwargs: Keyword arguments of the agent.
        workers: ``"thread"``, or ``"process"``, which can be killed if it hangs or crashes.
        memory_mb, max_turns, retries: As :class:`~rllm_gym.engine.AgentExecutionEngine`.
        max_reply_tokens: Maximum length of the reply of one turn; ``None`` for the remaining space.
        deadlines: Seconds by phase, as :class:`~rllm_gym.engine.Deadlines`.
        seed: Root of the seeds.
        on_fault: ``"mask"`` or ``"raise"``.
        name: Its name in verl's list of agent loops; rows name it in ``agent_name``.
        **verl: verl's arguments for every agent loop.

    Raises:
        TypeError: An argument is neither of this class nor of verl.
        ValueError: An argument is out of range.
    """

    def __init__(
        self,
        *,
        env: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        agent: str | None = None,
        agent_kwargs: Mapping[str, Any] | None = None,
        workers: Literal["thread", "process"] = "thread",
        memory_mb: int | None = None,
        max_turns: int | None = None,
        max_reply_tokens: int | None = None,
        deadlines: Mapping[str, float] | None = None,
        retries: int = 2,
        seed: int = 0,
        on_fault: Literal["mask", "raise"] = "mask",
        name: str = "rllm_gym",
        tools: Any = None,
        **verl: Any,
    ) -> None:
        unknown = sorted(set(verl) - set(inspect.signature(AgentLoopBase.__init__).parameters))
        if unknown:
            raise TypeError(f"{type(self).__name__} has no argument {', '.join(unknown)}")
        if getattr(tools, "tools", None):
            raise ValueError("verl's own tools have no effect here: the environment has those that its tasks need")
        if on_fault not in ("mask", "raise"):
            raise ValueError(f"on_fault={on_fault!r} must be 'mask' or 'raise'")
        if agent is None and agent_kwargs:
            raise ValueError(f"agent_kwargs={dict(agent_kwargs)!r} need agent='module:Class'")
        super().__init__(**verl)
        rollout = self.rollout_config
        self._prompt_length, self._response_length = int(rollout.prompt_length), int(rollout.response_length)
        self._settings: dict[str, Any] = _plain(
            {
                "env": env,
                "env_kwargs": env_kwargs or {},
                "agent": agent,
                "agent_kwargs": agent_kwargs or {},
                "workers": workers,
                "memory_mb": memory_mb,
                "max_turns": max_turns,
                "max_reply_tokens": max_reply_tokens or self._response_length,
                "deadlines": deadlines or {},
                "retries": retries,
                "template_kwargs": self.apply_chat_template_kwargs or {},
            }
        )
        self._seed = seed
        self._on_fault = on_fault
        self.name = name

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **row: Any) -> AgentLoopOutput:
        """Run the episode of one row. Called by verl.

        Raises:
            ValueError: The row names no task or no environment, or the agent rewrote its history.
            EpisodeFault: See ``on_fault``.
            EnvironmentUnavailable: No environment could be created at all.
            SamplerError: A server returned no tokens, or no log-probs.
        """
        task_id, env_id = _task_and_env_of(row, self._settings["env"])
        cache = _engine_cache()
        engine = await cache.engine({**self._settings, "env": env_id}, self.tokenizer)
        turn = cache.count(env_id, task_id, int(priority))
        seed = stream_seed("verl", self._seed, env_id, task_id, int(priority), turn) % 2**32
        determined = getattr(self.rollout_config, "full_determinism", False)
        context = _SampleContext(
            self.server_manager,
            self.tokenizer,
            dict(sampling_params),
            f"det-{int(priority)}" if determined else uuid.uuid4().hex,
            int(priority),
            self._prompt_length,
            self._response_length,
        )
        token = _SAMPLE_CONTEXT.set(context)
        try:
            (episode,) = await engine.run([EpisodeSpec(task_id, seed)])
        finally:
            _SAMPLE_CONTEXT.reset(token)
        if not episode.trainable and self._on_fault == "raise":
            raise EpisodeFault(f"task {task_id!r} of {env_id} ended with {episode.stop_reason}: {episode.fault}")
        return self._output(episode, context, wants_logprobs=bool(sampling_params.get("logprobs")))

    def _output(self, episode: Episode, context: _SampleContext, *, wants_logprobs: bool) -> AgentLoopOutput:
        filler = self.tokenizer.pad_token_id
        if filler is None:
            filler = self.tokenizer.eos_token_id or 0
        kept = episode.trainable and episode.num_turns > 0
        prompt, response, mask, logprobs = _sequence(episode) if kept else ([filler], [filler], [0], [0.0])
        steps = episode.trajectories[0].steps if episode.trajectories else []
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=response,
            response_mask=mask,
            response_logprobs=logprobs if wants_logprobs else None,
            reward_score=float(episode.reward) if kept else 0.0,
            num_turns=2 * len(steps),
            metrics={
                "generate_sequences": context.seconds,
                "tool_calls": float(episode.seconds.get("env", 0.0)),
                "num_preempted": context.preempted,
            },
            extra_fields={
                **context.server_fields,
                "turn_scores": [float(step.reward) for step in steps] if kept else [],
                "tool_rewards": [],
                "task_id": episode.task_id,
                "stop_reason": str(episode.stop_reason),
                "fault": episode.fault or "",
                "reward_extra_info": {"acc": float(episode.success and kept), "left_out": float(not kept)},
            },
        )


async def close_environments() -> None:
    """Close the environments that this event loop's agent loops keep; the next episode creates new ones."""
    cache = _ENGINE_CACHES.pop(asyncio.get_running_loop(), None)
    if cache is not None:
        await cache.aclose()


# State with the lifetime of verl's worker


class _EngineCache:
    """The engines of one event loop, one per configuration: verl creates an agent loop for every single sample."""

    def __init__(self) -> None:
        self._engines: dict[str, AgentExecutionEngine] = {}
        self._counts: Counter[tuple[str, str, int]] = Counter()

    async def engine(self, settings: dict[str, Any], tokenizer: Any) -> AgentExecutionEngine:
        key = json.dumps([settings, id(tokenizer)], sort_keys=True, default=repr)
        engine = self._engines.get(key)
        if engine is None:
            engine = self._engines[key] = AgentExecutionEngine(
                settings["env"],
                sampler=_ServerSampler(tokenizer),
                env_kwargs=settings["env_kwargs"],
                agent=_agent(settings["agent"], settings["agent_kwargs"]),
                renderer=ChatRenderer(tokenizer, template_kwargs=settings["template_kwargs"]),
                sampling_params=SamplingParams(max_tokens=settings["max_reply_tokens"]),
                n_parallel=1,  # episodes per run; verl's worker has many runs in progress
                workers=settings["workers"],
                memory_mb=settings["memory_mb"],
                max_turns=settings["max_turns"],
                deadlines=Deadlines(**settings["deadlines"]),
                retries=settings["retries"],
            )
            await engine.__aenter__()
        return engine

    def count(self, *what: Any) -> int:
        """Return how often this has been run before."""
        self._counts[what] += 1
        return self._counts[what] - 1

    async def aclose(self) -> None:
        engines, self._engines = list(self._engines.values()), {}
        await asyncio.gather(*(engine.aclose() for engine in engines))


_ENGINE_CACHES: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _EngineCache] = weakref.WeakKeyDictionary()


def _engine_cache() -> _EngineCache:
    loop = asyncio.get_running_loop()
    if loop not in _ENGINE_CACHES:
        _ENGINE_CACHES[loop] = _EngineCache()
    return _ENGINE_CACHES[loop]


# Replies from verl's servers


@dataclass(slots=True)
class _SampleContext:
    """One sample's requests to verl's servers, and the data that verl needs about them."""

    server: Any
    tokenizer: Any
    sampling_params: dict[str, Any]
    request_id: str
    priority: int
    prompt_length: int
    response_length: int
    conversation: str = ""
    prompt_tokens: int = 0
    seconds: float = 0.0
    preempted: int = -1
    server_fields: dict[str, Any] = field(default_factory=dict)

    async def reply(self, request: SamplingRequest) -> Completion:
        """Request a reply.

        Raises:
            SamplerError: The server returned no tokens, or no log-probs.
        """
        if request.conversation != self.conversation:  # the first turn, or the first one after a fault
            self.conversation, self.prompt_tokens = request.conversation, len(request.ids)
        max_tokens = self.response_length - (len(request.ids) - self.prompt_tokens)
        if self.prompt_tokens > self.prompt_length or max_tokens < 1:
            return Completion((), (), "", "context_length")
        most = min(max_tokens, request.params.max_tokens)
        began = time.perf_counter()
        output = await self.server.generate(
            request_id=self.request_id,
            prompt_ids=list(request.ids),
            # A new dict: servers modify it.
            sampling_params={
                **self.sampling_params,
                "logprobs": True,
                "max_tokens": most,
                "stop_token_ids": sorted(
                    {*(self.sampling_params.get("stop_token_ids") or ()), *request.params.stop_token_ids}
                ),
            },
            priority=self.priority,
        )
        self.seconds += time.perf_counter() - began
        self._note(output)
        ids = tuple(int(token) for token in output.token_ids)
        logprobs = tuple(float(logprob) for logprob in output.log_probs or ())
        if not ids or len(ids) != len(logprobs):
            raise SamplerError(
                f"verl's server returned {len(ids)} tokens and {len(logprobs)} log-probs for a reply (stop reason "
                f"{output.stop_reason!r}); a reply has at least one token, and one log-prob for each"
            )
        if len(ids) > most:
            ids, logprobs = ids[:most], logprobs[:most]
        ended = ids[-1] in {*request.params.stop_token_ids, self.tokenizer.eos_token_id}
        text = reply_decoder(self.tokenizer)(ids)
        return Completion(ids, logprobs, text, "stop" if ended or len(ids) < most else "length")

    def _note(self, output: Any) -> None:
        if output.num_preempted is not None:
            self.preempted = max(self.preempted, 0) + int(output.num_preempted)
        first = self.server_fields.get("min_global_steps")
        self.server_fields.update(output.extra_fields)
        if first is not None:
            self.server_fields["min_global_steps"] = first


_SAMPLE_CONTEXT: ContextVar[_SampleContext] = ContextVar("rllm_gym_verl_talk")


class _ServerSampler:
    """Sends requests to the servers of the current sample: its tasks inherit the context of ``run``."""

    returns_tokens = True
    context_length: int | None = None
    weight_version = 0

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    async def sample(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        context = _SAMPLE_CONTEXT.get()
        return [await context.reply(request) for request in requests]

    async def sync_weights(self, update: WeightUpdate) -> int:
        raise SamplerError("verl syncs the weights of its servers itself")

    async def drop(self, name: str) -> None:
        raise SamplerError("verl manages the weights of its servers itself")

    async def release(self, conversation: str) -> None:
        """Do nothing: servers manage their own caches."""

    async def close(self) -> None:
        """Do nothing: the servers belong to verl."""


# Rows and results


def _task_and_env_of(row: Mapping[str, Any], env: str | None) -> tuple[str, str]:
    """Return the task and the environment of a row."""
    extra = row.get("extra_info")
    extra = extra if isinstance(extra, Mapping) else {}
    task_id = extra.get("task_id", row.get("task_id"))
    if not isinstance(task_id, str):
        raise ValueError(
            f"this row names no task; put its task_id into extra_info, which has {sorted(extra) or 'nothing'}"
        )
    env_id = extra.get("env_id", env)
    if not isinstance(env_id, str):
        raise ValueError(
            "neither the agent loop's configuration (env:) nor the row (extra_info['env_id']) names an environment"
        )
    return task_id, env_id


def _sequence(episode: Episode) -> tuple[list[int], list[int], list[int], list[float]]:
    """Return prompt, response, its mask and its log-probs."""
    sequences = episode.trajectories[0].branches()
    if len(sequences) != 1:
        raise ValueError(
            f"the agent rewrote its history, so that the episode of task {episode.task_id!r} is {len(sequences)} "
            "sequences, and verl takes one; use an agent that only appends (history='full', keep_thoughts=True)"
        )
    (sequence,) = sequences
    begin = sequence.mask.index(1)
    return (
        list(sequence.ids[:begin]),
        list(sequence.ids[begin:]),
        list(sequence.mask[begin:]),
        list(sequence.logprobs[begin:]),
    )


def _agent(name: str | None, kwargs: Mapping[str, Any]) -> Callable[[], BaseAgent] | None:
    if name is None:
        return None
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(f"agent={name!r} must be 'module:Class'")
    factory = getattr(importlib.import_module(module), attribute)
    return lambda: factory(**kwargs)


def _plain(value: Any) -> Any:
    """Convert OmegaConf's containers to Python's own."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
