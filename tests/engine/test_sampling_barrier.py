"""Deterministic runs: batches depend on the episodes and not on timing, and results are bit-identical."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest
from environments import Quiz

from rllm_gym.engine import AgentExecutionEngine, EpisodeSpec, save_episodes
from rllm_gym.samplers import Completion, SamplerError, SamplingParams, SamplingRequest, ScriptedSampler


class Batches(ScriptedSampler):
    """Replies by the request's seed; records each batch and each release."""

    def __init__(self) -> None:
        super().__init__(lambda request: random.Random(request.seed).choice(["?", "give up", "3"]))
        self.log: list[Any] = []

    async def sample(self, requests: Any) -> list[Completion]:
        self.log.append([request.conversation for request in requests])
        return await super().sample(requests)

    async def release(self, conversation: str) -> None:
        self.log.append(conversation)


class Slow(Quiz):
    """Its steps take random times, different in each run."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    def step(self, action: str) -> Any:
        threading.Event().wait(self._rng.random() / 200)
        return super().step(action)


def batches(rng: int) -> tuple[list[Any], list[str]]:
    sampler = Batches()
    engine = AgentExecutionEngine(
        env=Slow, env_kwargs={"rng": random.Random(rng)}, sampler=sampler, n_parallel=5, deterministic=True
    )
    return sampler.log, [episode.task_id for episode in engine.run_sync(range(30))]


def test_batches_do_not_depend_on_timing() -> None:
    first, order = batches(1)
    second, _ = batches(2)
    assert first == second
    assert order == [f"task-{number}" for number in range(30)]
    assert max(len(entry) for entry in first if isinstance(entry, list)) == 5
    # Every conversation is released before the next batch.
    assert sorted(entry for entry in first if isinstance(entry, str)) == sorted(f"0/0-{n}/1" for n in range(30))


def test_results_are_delivered_in_order() -> None:
    engine = AgentExecutionEngine(
        env=Slow, env_kwargs={"rng": random.Random(0)}, sampler=Batches(), n_parallel=5, deterministic=True
    )

    async def scenario() -> list[str]:
        return [episode.task_id async for episode in engine.stream(range(20))]

    assert asyncio.run(scenario()) == [f"task-{number}" for number in range(20)]


def test_a_sampler_that_fails_in_a_round_ends_the_run() -> None:
    def reply(request: SamplingRequest) -> str:
        raise SamplerError("out of memory")

    engine = AgentExecutionEngine(env=Quiz, sampler=ScriptedSampler(reply), n_parallel=5, deterministic=True)
    with pytest.raises(SamplerError, match="out of memory"):
        engine.run_sync(range(20))


def test_two_runs_with_a_model_are_bit_identical(tmp_path: Any) -> None:
    torch = pytest.importorskip("torch", reason="the embedded sampler needs torch")
    from rllm_gym.samplers import TorchSampler
    from trainers.tiny_model import make_tiny_model

    torch.set_num_threads(1)
    folder = tmp_path / "model"
    make_tiny_model(folder)

    def scenario(number: int) -> bytes:
        sampler = TorchSampler(folder, deterministic=True)
        engine = AgentExecutionEngine(
            env=Slow,
            env_kwargs={"rng": random.Random(number)},
            sampler=sampler,
            sampling_params=SamplingParams(max_tokens=6),
            n_parallel=4,
            deterministic=True,
        )
        episodes = engine.run_sync([EpisodeSpec(n, seed=n, group_id=str(n // 2)) for n in range(7)])
        for episode in episodes:
            episode.seconds = {}
        path = tmp_path / f"{number}.jsonl"
        save_episodes(path, episodes)
        return path.read_bytes()

    assert scenario(1) == scenario(2)
