"""Rate limits for an endpoint: the user's limits, those that its replies report, and the pauses it asks for.

Requests are spaced evenly, in order of arrival, without bursts: in any minute at most the limit plus one request is
sent. Nothing here sleeps; methods return how long to wait.
"""

from __future__ import annotations

import math
import re
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
    """Maximum request rate of an endpoint.

    Attributes:
        requests_per_minute: Requests; ``None`` for no limit.
        tokens_per_minute: Tokens of prompts and replies together; ``None`` for no limit. A request counts with its
            ``max_tokens`` until its reply reports the actual number.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}={value!r} must be above 0; leave it out for no limit")


class RateLimiter:
    """Computes when the next request may be sent. Used in one thread.

    Args:
        limit: The user's limits.
        clock: Seconds, monotonic.
    """

    def __init__(self, limit: RateLimit, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._next_request = self._next_token = self._paused_until = -math.inf

    def reserve(self, tokens: int) -> float:
        """Reserve the next place in the queue for a request of this many tokens; return seconds until its turn."""
        now = self._clock()
        start = max(now, self._next_request, self._next_token)
        if self._limit.requests_per_minute is not None:
            self._next_request = start + 60 / self._limit.requests_per_minute
        if self._limit.tokens_per_minute is not None:
            self._next_token = start + 60 * tokens / self._limit.tokens_per_minute
        return start - now

    def correct(self, tokens: int) -> None:
        """Correct a reservation: the request took this many tokens more than reserved (negative for fewer)."""
        if self._limit.tokens_per_minute is not None:
            self._next_token += 60 * tokens / self._limit.tokens_per_minute

    def pause(self, seconds: float) -> None:
        """Send nothing for this many seconds."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)

    def paused(self) -> float:
        """Return seconds until the pause ends; 0 if there is none."""
        return max(0.0, self._paused_until - self._clock())

    def observe_headers(self, headers: Mapping[str, str], tokens: int, longest: float) -> None:
        """Pause, at most ``longest`` seconds, if ``x-ratelimit-*`` headers report that the limit is reached.

        Args:
            headers: Headers of a reply.
            tokens: What a request like this one needs.
            longest: Seconds.
        """
        for kind, need in (("requests", 1), ("tokens", tokens)):
            remaining = _number(headers.get(f"x-ratelimit-remaining-{kind}"))
            if remaining is not None and remaining < need:
                # A request larger than the whole limit would wait forever: wait only for what can be granted.
                limit = _number(headers.get(f"x-ratelimit-limit-{kind}"))
                reset = duration(headers.get(f"x-ratelimit-reset-{kind}"))
                if reset is not None and (remaining <= 0 or limit is None or need <= limit):
                    self.pause(min(reset, longest))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait from ``retry-after-ms`` or ``Retry-After`` (seconds or a date; RFC 9110, 10.2.3)."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return max(0.0, milliseconds / 1000)
    header = headers.get("retry-after")
    seconds = _number(header)
    if seconds is not None:
        return max(0.0, seconds)
    try:
        when = parsedate_to_datetime(header) if header else None
    except ValueError:
        return None
    if when is None:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def duration(text: str | None) -> float | None:
    """Return the seconds of ``"6m0s"``, ``"20ms"`` or ``"1.5"``; ``None`` for anything else.

    >>> duration("1m30s"), duration("250ms"), duration("2"), duration("soon")
    (90.0, 0.25, 2.0, None)
    """
    plain = _number(text)
    if plain is not None:
        return max(0.0, plain)
    if text is None or not _DURATION.fullmatch(text.strip()):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _PIECE.findall(text))


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None
