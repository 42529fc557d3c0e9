"""The options that the engines have in common."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from rllm_gym.argument_checks import check_int
from rllm_gym.chat.renderer import ChatRenderer
from rllm_gym.engine.spec import Budget, Deadlines
from rllm_gym.runtime import WORKER_KINDS, WorkerKind
from rllm_gym.samplers.protocol import SamplingParams


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The options of :class:`~rllm_gym.engine.AgentExecutionEngine` and :class:`~rllm_gym.engine.AgentWorkflowEngine`.

    They are written as keyword arguments of the engine: ``AgentExecutionEngine(env, sampler=sampler, n_parallel=16)``.

    Attributes:
        renderer: Converts messages to token ids. ``None`` creates one from ``tokenizer`` (or the sampler's own).
        tokenizer: A Hugging Face tokenizer with a chat template.
        sampling_params: Sampling parameters. The end-of-turn token of the chat template is always added to the stop
            ids.
        n_parallel: Maximum number of concurrent episodes per run, and of finished results that wait to be read.
        workers: ``"thread"``: an environment has a thread of its own, those with an ``rllm/`` id share threads;
            ``"process"``, which can be killed after a hang or a crash; or ``"ray"``, processes on all machines of a Ray
            cluster (extra ``ray``; :class:`~rllm_gym.runtime.WorkerPool` documents which cluster).
        memory_mb: Memory limit in MB of each worker process or Ray actor; ``None`` for no limit.
        max_turns, max_prompt_tokens, max_response_tokens, max_context_tokens: See :class:`Budget`. In a workflow
            ``max_turns`` counts the replies of all agents together, and the others apply per agent.
        deadlines: Maximum duration of each phase, in seconds.
        retries: How often an episode may restart after a fault.
        reuse_envs: Whether an environment is reused for further episodes after a clean end. ``None``: only those
            with an ``rllm/`` id are; any other is created for one episode and closed before its result is returned,
            so that a fault in ``close`` counts against that episode.
        on_sampler_error: ``"raise"`` ends the run with the sampler's error; ``"drop"`` records it as a fault of the
            episode, without retries.
        seed: Root of the seeds of episodes whose spec has no seed.
        deterministic: Sample in rounds, so that the batches depend only on the episodes and not on timing, and
            return results in the order of the specs. Slower: every round waits for the slowest environment, and in
            workflows, which may wait only for their context and their own tasks, for every agent of every episode.
        progress: Show a progress bar on stderr.

    Raises:
        TypeError: ``deadlines`` is not a :class:`Deadlines`.
        ValueError: An option is out of range or would have no effect.
    """

    renderer: ChatRenderer | None = None
    tokenizer: Any = None
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    n_parallel: int = 64
    workers: WorkerKind = "thread"
    memory_mb: int | None = None
    max_turns: int | None = None
    max_prompt_tokens: int | None = None
    max_response_tokens: int | None = None
    max_context_tokens: int | None = None
    deadlines: Deadlines = field(default_factory=Deadlines)
    retries: int = 2
    reuse_envs: bool | None = None
    on_sampler_error: Literal["raise", "drop"] = "raise"
    seed: int = 0
    deterministic: bool = False
    progress: bool = False

    def __post_init__(self) -> None:
        check_int("n_parallel", self.n_parallel)
        if self.workers not in WORKER_KINDS:
            raise ValueError(f"workers={self.workers!r} must be one of {', '.join(map(repr, WORKER_KINDS))}")
        check_int("retries", self.retries, 0)
        if self.on_sampler_error not in ("raise", "drop"):
            raise ValueError(f"on_sampler_error={self.on_sampler_error!r} must be 'raise' or 'drop'")
        if self.memory_mb is not None and self.workers == "thread":
            raise ValueError(
                f"memory_mb={self.memory_mb!r} needs workers='process' or 'ray'; threads share this process's memory"
            )
        if not isinstance(self.deadlines, Deadlines):
            raise TypeError(f"deadlines={self.deadlines!r} must be a Deadlines, such as Deadlines(step=5.0)")
        _ = self.budget  # raises if a limit is out of range

    @property
    def budget(self) -> Budget:
        """The limits on turns and tokens."""
        return Budget(self.max_turns, self.max_prompt_tokens, self.max_response_tokens, self.max_context_tokens)


def engine_options(engine: str, arguments: Mapping[str, Any]) -> EngineOptions:
    """Return the options that are given as keyword arguments of the engine with this class name.

    Raises:
        TypeError: There is no such option; the message names the nearest one.
    """
    known = [entry.name for entry in fields(EngineOptions)]
    for name, value in arguments.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(known)}"
            raise TypeError(f"{name}={value!r} is not an argument of {engine}; {hint}")
    return EngineOptions(**arguments)
