"""What happened, in numbers: counters an engine keeps over its life."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

PHASES = ("env", "sample", "render", "agent")


@dataclass(slots=True)
class EngineStats:
    """Counters over all episodes of an engine. :meth:`since` gives those of one step of a run.

    Attributes:
        episodes: Episodes finished, dropped ones included.
        turns: Replies that reached the environment, in finished episodes.
        prompt_tokens: Tokens appended to contexts (prompts and observations).
        sampled_tokens: Tokens sampled.
        rewards: Sum of the rewards of episodes that were not dropped.
        faults: Every broken world by kind, also those that a retry mended.
        stop_reasons: Why episodes ended.
        retries: Episodes begun again on a fresh environment.
        dropped: Episodes given up as faults.
        abandoned_threads: Thread workers left behind because they hung.
        killed_processes: Process workers killed because they hung, or that died.
        seconds: Waiting by phase, summed over episodes (they overlap): ``env``, ``sample``, ``render``, ``agent``.
        wall: Seconds in which at least one run was under way.
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
        """Sampled tokens a second of wall time."""
        return self.sampled_tokens / self.wall if self.wall else 0.0

    def copy(self) -> EngineStats:
        """The counters as they stand now."""
        return self.since(EngineStats())

    def since(self, before: EngineStats) -> EngineStats:
        """What was added after ``before`` was copied."""
        difference: dict[str, Any] = {}
        for name in self.__slots__:
            now, then = getattr(self, name), getattr(before, name)
            if isinstance(now, Counter):
                difference[name] = Counter({key: now[key] - then[key] for key in now if now[key] != then[key]})
            else:
                difference[name] = now - then
        return EngineStats(**difference)

    def as_dict(self) -> dict[str, Any]:
        """JSON types, rates included."""
        row: dict[str, Any] = {
            name: dict(value) if isinstance(value := getattr(self, name), Counter) else value for name in self.__slots__
        }
        return {**row, "turns_per_second": self.turns_per_second, "tokens_per_second": self.tokens_per_second}
