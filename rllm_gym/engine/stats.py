"""Counters that an engine keeps over its lifetime."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class EngineStats:
    """Counters over all episodes of an engine. :meth:`since` returns the difference to an earlier copy.

    Attributes:
        episodes: Finished episodes, including dropped ones.
        turns: Replies that reached the environment, in finished episodes.
        prompt_tokens: Tokens appended to contexts (prompts and observations).
        sampled_tokens: Tokens sampled.
        rewards: Sum of the rewards of episodes that were not dropped.
        faults: Environment faults by kind, including those after which a retry succeeded, and errors of the agent, the
            sampler and the task (kinds ``agent``, ``sampler``, ``task``).
        stop_reasons: Episodes by stop reason.
        retries: Episodes restarted on a fresh environment.
        dropped: Episodes without a reward, see :attr:`~rllm_gym.core.Episode.trainable`: faults, agent errors,
            prompts that were too long, cancellation.
        abandoned_threads: Thread workers that were abandoned because they hung.
        killed_processes: Process workers that died, or were killed because they hung.
        seconds: Waiting time in seconds by phase, summed over episodes (which overlap): ``env``, ``sample``,
            ``render``, ``agent``.
        wall: Seconds during which at least one run was in progress.
    """

    episodes: int = 0
    turns: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    rewards: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    stop_reasons: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    dropped: int = 0
    abandoned_threads: int = 0
    killed_processes: int = 0
    seconds: Counter[str] = field(default_factory=Counter)
    wall: float = 0.0

    @property
    def turns_per_second(self) -> float:
        return self.turns / self.wall if self.wall else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Sampled tokens per second of wall time."""
        return self.sampled_tokens / self.wall if self.wall else 0.0

    def count_lost_worker(self, kind: str) -> None:
        """Count a worker that was abandoned (``"thread"``) or killed (any other kind)."""
        if kind == "thread":
            self.abandoned_threads += 1
        else:
            self.killed_processes += 1

    def copy(self) -> EngineStats:
        """Return a copy of the counters."""
        return self.since(EngineStats())

    def since(self, before: EngineStats) -> EngineStats:
        """Return the difference to ``before``, an earlier copy."""
        difference: dict[str, Any] = {}
        for name in self.__slots__:
            now, then = getattr(self, name), getattr(before, name)
            if isinstance(now, Counter):
                difference[name] = Counter({key: now[key] - then[key] for key in now if now[key] != then[key]})
            else:
                difference[name] = now - then
        return EngineStats(**difference)
