"""Warnings about divergence: once per sign, and only if it lasts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from echo_config import echo_config

from tests.chat.for_every import for_every
from trainers.run.divergence import DivergenceWatch
from trainers.run.metrics import PhaseClock
from trainers.run.peak_memory import PeakMemory
from trainers.run.run_log import RunLog

HEALTHY: dict[str, Any] = {
    "success": 0.5,
    "episodes/invalid_action_fraction": 0.02,
    "policy/entropy": 0.5,
    "policy/clip_fraction/low": 0.1,
    "policy/clip_fraction/high": 0.1,
    "sampling/importance_ratio/max": 1.5,
    "sampling/logprob_difference/mean": 1e-6,
    "value/explained_variance": 0.3,
}


@for_every(
    "sign",
    [
        ({"value/explained_variance": -3.0}, "lower algorithm.value_lr"),
        ({"episodes/invalid_action_fraction": 0.9}, "losing the answer format"),
        ({"sampling/importance_ratio/max": 400.0}, "400 times as likely"),
        ({"policy/clip_fraction/low": 0.6}, "60% of the tokens"),
        ({"sampling/logprob_difference/mean": -0.7}, "differ by -0.70 nats"),
        (
            {"sampling/logprob_difference/mean": -0.7, "sampling/staleness/max": 2},
            "moved by -0.70 nats per token in the up to 2 weight syncs",
        ),
        ({"policy/entropy": 3.0}, "grew to 3.00"),
        ({"policy/entropy": 1e-4, "success": 0.2}, "stopped exploring"),
        ({"groups/zero_std_fraction": 1.0, "groups/all_success_fraction": 0.25}, "25% of the groups solved"),
    ],
)
def test_each_lasting_sign_is_reported_once(sign: tuple[dict[str, Any], str]) -> None:
    numbers, named = sign
    watch = DivergenceWatch()
    assert watch.check(HEALTHY) == []
    bad = HEALTHY | numbers
    for _ in range(4):
        assert watch.check(bad) == []
    assert watch.check(HEALTHY) == [], "four steps are an accident"
    output = [warning for _ in range(20) for warning in watch.check(bad)]
    assert len(output) == 1
    assert named in output[0]


def test_replies_cut_at_the_limit_are_reported_at_once() -> None:
    watch = DivergenceWatch()
    assert watch.check(HEALTHY | {"completions/truncated_fraction": 0.1}) == []
    (warning,) = watch.check(HEALTHY | {"completions/truncated_fraction": 0.25})
    assert "25% of the replies were cut" in warning
    assert "raise sampling.max_tokens" in warning
    assert watch.check(HEALTHY | {"completions/truncated_fraction": 0.25}) == []


def test_groups_of_one_episode_that_are_compared_with_a_value_head_are_healthy() -> None:
    watch = DivergenceWatch()
    row = HEALTHY | {"groups/zero_std_fraction": 1.0, "groups/all_success_fraction": 0.5, "advantages/max": 1.5}
    assert [warning for _ in range(10) for warning in watch.check(row)] == []


def test_healthy_rows_and_rows_without_an_update_give_no_warning() -> None:
    watch = DivergenceWatch()
    assert [warning for _ in range(10) for warning in watch.check({"episodes/count": 8})] == []
    assert [warning for _ in range(10) for warning in watch.check(HEALTHY)] == []


def test_only_the_main_process_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for main in (True, False):
        memory, config = PeakMemory(torch.device("cpu")), echo_config(tmp_path)
        with RunLog(
            config, "training", 1, {}, PhaseClock(), memory, done=0, keep_until=-1, is_main_process=main
        ) as log:
            for step in range(6):
                log.warn(step, HEALTHY | {"policy/entropy": 1e-4, "success": 0.2})
        assert len(caplog.records) == 1, "the other processes see the same metrics"
