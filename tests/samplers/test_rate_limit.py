"""Rate limits of an endpoint: never more than allowed in any minute, and no unnecessary waits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm_gym.samplers.rate_limit import RateLimit, RateLimiter, duration, retry_after


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(
    st.floats(1, 600),
    st.floats(100, 10_000),
    st.lists(st.tuples(st.floats(0, 20), st.integers(1, 900)), min_size=2, max_size=60),
)
def test_no_minute_exceeds_the_limit_by_more_than_one_request(
    requests: float, tokens: float, asks: list[tuple[float, int]]
) -> None:
    clock = Clock()
    limiter = RateLimiter(RateLimit(requests, tokens), clock)
    sent: list[tuple[float, int]] = []
    for gap, size in asks:
        clock.now += gap
        sent.append((clock.now + limiter.reserve(size), size))
    assert all(later >= earlier for (earlier, _), (later, _) in pairwise(sent))
    for start, _ in sent:
        window = [size for at, size in sent if start <= at < start + 60 - 1e-6]
        assert len(window) <= requests + 1
        assert sum(window[:-1]) <= tokens + 1e-3


def test_without_limits_no_request_waits_and_unused_tokens_are_returned() -> None:
    clock = Clock()
    assert [RateLimiter(RateLimit(), clock).reserve(10**9) for _ in range(3)] == [0, 0, 0]
    limiter = RateLimiter(RateLimit(tokens_per_minute=600), clock)
    assert limiter.reserve(300) == 0
    limiter.correct(-200)  # the reply was short: 100 in all
    assert limiter.reserve(1) == pytest.approx(10)


def test_durations_of_endpoints_are_parsed() -> None:
    cases: dict[str | None, float | None] = {"6m0s": 360, "20ms": 0.02, "1h2m3.5s": 3723.5, "7": 7, "-3": 0}
    cases |= dict.fromkeys(("soon", "", None, "nan", "inf", "1m garbage"))
    got = {output: duration(output) for output in cases}
    assert got == {output: None if seconds is None else pytest.approx(seconds) for output, seconds in cases.items()}


def test_retry_after_is_parsed_as_seconds_milliseconds_or_a_date() -> None:
    assert retry_after({"retry-after": "3"}) == 3
    assert retry_after({"retry-after-ms": "1500", "retry-after": "9"}) == 1.5
    later = datetime.now(UTC) + timedelta(seconds=9000)
    waited = retry_after({"retry-after": format_datetime(later, usegmt=True)})
    assert waited is not None
    # To the second, as in the header, and less the time that passed meanwhile.
    assert (later - datetime.now(UTC)).total_seconds() - 1 <= waited <= 9000
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0
    for nonsense in ({}, {"retry-after": "when ready"}, {"retry-after": "-5"}):
        assert not retry_after(nonsense)


def test_headers_pause_only_at_an_exhausted_limit_and_within_the_maximum() -> None:
    clock = Clock()
    limiter = RateLimiter(RateLimit(), clock)
    limiter.observe_headers({"x-ratelimit-remaining-requests": "1", "x-ratelimit-reset-requests": "60s"}, 10, 120)
    assert limiter.paused() == 0
    limiter.observe_headers({"x-ratelimit-remaining-tokens": "9", "x-ratelimit-reset-tokens": "2s"}, 10, 120)
    assert limiter.paused() == pytest.approx(2)
    limiter.observe_headers({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "24h"}, 10, 120)
    assert limiter.paused() == pytest.approx(120)
    clock.now += 121
    assert limiter.paused() == 0
    # Larger than the whole limit: no pause makes it fit.
    exhausted = {"x-ratelimit-remaining-tokens": "5", "x-ratelimit-limit-tokens": "8", "x-ratelimit-reset-tokens": "2s"}
    limiter.observe_headers(exhausted, 10, 120)
    assert limiter.paused() == 0


def test_invalid_limits_are_refused() -> None:
    for limits in ({"requests_per_minute": 0}, {"tokens_per_minute": -1}, {"requests_per_minute": 1e999}):
        with pytest.raises(ValueError, match=f"{next(iter(limits))}={next(iter(limits.values()))!r}"):
            RateLimit(**limits)
