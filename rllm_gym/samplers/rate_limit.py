"""How fast an endpoint may be asked: the user's limits, what its replies tell, and pauses it asks for.

Time is shared out in order of asking and evenly, without bursts: in any minute no more goes out than the limit and one
request. Nothing here sleeps; callers are told how long to wait.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_PIECE = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Most that may be asked of an endpoint.

    Attributes:
        requests_per_minute: Requests; ``None`` for no limit.
        tokens_per_minute: Tokens of prompts and replies together; ``None`` for no limit. A request counts with its
            ``max_tokens`` until its reply says what it was.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}={value!r} must be above 0; leave it out for no limit")


class Pace:
    """Says when the next request may go out. Safe from any thread.

    Args:
        limit: The user's limits.
        clock: Seconds, monotonic.
    """

    def __init__(self, limit: RateLimit, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._next_request = self._next_token = self._paused_until = -math.inf

    def book(self, tokens: int) -> float:
        """Take the next place in line for a request of this many tokens; seconds until its turn."""
        with self._lock:
            now = self._clock()
            start = max(now, self._next_request, self._next_token)
            if self._limit.requests_per_minute is not None:
                self._next_request = start + 60 / self._limit.requests_per_minute
            if self._limit.tokens_per_minute is not None:
                self._next_token = start + 60 * tokens / self._limit.tokens_per_minute
            return start - now

    def correct(self, tokens: int) -> None:
        """A request took this many tokens more than was booked; fewer are given back."""
        if self._limit.tokens_per_minute is not None:
            with self._lock:
                self._next_token += 60 * tokens / self._limit.tokens_per_minute

    def pause(self, seconds: float) -> None:
        """Nothing goes out for so long."""
        with self._lock:
            self._paused_until = max(self._paused_until, self._clock() + seconds)

    def paused(self) -> float:
        """Seconds until the pause ends; 0 where there is none."""
        with self._lock:
            return max(0.0, self._paused_until - self._clock())

    def hear(self, headers: Mapping[str, str], tokens: int, longest: float) -> None:
        """Pause, at most ``longest`` seconds, where ``x-ratelimit-*`` says that nothing more may be asked just now.

        Args:
            headers: Of a reply.
            tokens: What a request like this one needs.
            longest: Seconds.
        """
        for kind, need in (("requests", 1), ("tokens", tokens)):
            remaining = _number(headers.get(f"x-ratelimit-remaining-{kind}"))
            if remaining is not None and remaining < need:
                # A request that is larger than the whole limit would wait for ever: only for what can come back.
                limit = _number(headers.get(f"x-ratelimit-limit-{kind}"))
                reset = duration(headers.get(f"x-ratelimit-reset-{kind}"))
                if reset is not None and (remaining <= 0 or limit is None or need <= limit):
                    self.pause(min(reset, longest))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that ``retry-after-ms`` or ``Retry-After`` (seconds or a date; RFC 9110, 10.2.3) asks to wait."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return max(0.0, milliseconds / 1000)
    said = headers.get("retry-after")
    seconds = _number(said)
    if seconds is not None:
        return max(0.0, seconds)
    try:
        when = parsedate_to_datetime(said) if said else None
    except ValueError:
        return None
    if when is None:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def duration(said: str | None) -> float | None:
    """Seconds of ``"6m0s"``, ``"20ms"`` or ``"1.5"``; ``None`` for anything else.

    >>> duration("1m30s"), duration("250ms"), duration("2"), duration("soon")
    (90.0, 0.25, 2.0, None)
    """
    plain = _number(said)
    if plain is not None:
        return max(0.0, plain)
    if said is None or not _DURATION.fullmatch(said.strip()):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _PIECE.findall(said))


def _number(said: str | None) -> float | None:
    try:
        value = float(said) if said is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None
