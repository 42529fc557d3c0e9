"""A run that goes wrong says so, once, and only if it lasts."""

from __future__ import annotations

from typing import Any

from tests.chat.every import for_every
from trainers.run.divergence import DivergenceWatch

HEALTHY: dict[str, Any] = {
    "success": 0.5,
    "invalid_actions": 0.02,
    "entropy": 0.5,
    "clip_fraction": 0.1,
    "ratio_max": 1.5,
    "sampler_gap/mean": 1e-6,
    "value/explained_variance": 0.3,
}


@for_every(
    "sign",
    [
        ({"value/explained_variance": -3.0}, "lower value.lr"),
        ({"invalid_actions": 0.9}, "losing the answer format"),
        ({"ratio_max": 400.0}, "400 times as likely"),
        ({"clip_fraction": 0.8}, "80% of the tokens"),
        ({"sampler_gap/mean": -0.7}, "disagree by -0.70 nats"),
        ({"entropy": 3.0}, "grew to 3.00"),
        ({"entropy": 1e-4, "success": 0.2}, "nothing new is tried"),
    ],
)
def test_each_sign_is_said_once_if_it_lasts(sign: tuple[dict[str, Any], str]) -> None:
    numbers, named = sign
    watch = DivergenceWatch()
    assert watch.look(HEALTHY) == []
    bad = HEALTHY | numbers
    for _ in range(4):
        assert watch.look(bad) == []
    assert watch.look(HEALTHY) == [], "four steps are an accident"
    said = [warning for _ in range(20) for warning in watch.look(bad)]
    assert len(said) == 1
    assert named in said[0]


def test_rows_without_an_update_and_healthy_ones_say_nothing() -> None:
    watch = DivergenceWatch()
    assert [warning for _ in range(10) for warning in watch.look({"episodes": 8})] == []
    assert [warning for _ in range(10) for warning in watch.look(HEALTHY)] == []
