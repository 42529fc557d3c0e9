"""Without the optional package Ray, only its users fail, with the install command."""

from __future__ import annotations

import sys

import pytest

from rllm_gym.engine import AgentExecutionEngine
from rllm_gym.runtime import WorkerPool
from rllm_gym.samplers import ScriptedSampler
from rllm_gym.vector import TextVectorEnv


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # this makes the import fail
    engine = AgentExecutionEngine(env="rllm/FrozenLake-v0", sampler=ScriptedSampler(["up"]), workers="ray")
    for use in (
        lambda: WorkerPool("ray", max_workers=1),
        lambda: engine.run_sync(range(1)),
        lambda: TextVectorEnv(2, env_id="rllm/FrozenLake-v0", workers="ray"),
    ):
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'rllm-gym\[ray\]'"):
            use()


def test_an_unknown_kind_is_reported_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'thread', 'process', 'ray'"):
        WorkerPool("dask", max_workers=1)
    with pytest.raises(ValueError, match="'thread', 'process', 'ray'"):
        AgentExecutionEngine(env="rllm/FrozenLake-v0", sampler=ScriptedSampler(["up"]), workers="dask")
