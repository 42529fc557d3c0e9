"""Deterministic runs: batches depend on the episodes and not on timing, and results are bit-identical."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from environments import Quiz
from recording_sampler import recording_model

from rllm_gym.engine import (
    AgentExecutionEngine,
    AgentWorkflowEngine,
    EpisodeSpec,
    Workflow,
    WorkflowContext,
    save_episodes,
)
from rllm_gym.engine.workflows import BestOfN, SolverJudge
from rllm_gym.samplers import Completion, SamplerError, SamplingParams, SamplingRequest, ScriptedSampler


class Batches(ScriptedSampler):
    """Replies by the request's seed; records each batch and each release."""

    def __init__(self) -> None:
        super().__init__(lambda request: random.Random(request.seed).choice(["?", "give up", "1", "2"]))
        self.log: list[Any] = []

    async def sample(self, requests: Any) -> list[Completion]:
        self.log.append([request.conversation for request in requests])
        return await super().sample(requests)

    async def release(self, conversation: str) -> None:
        self.log.append(conversation)


class Slow(Quiz):
    """Its resets and steps take random times, different in each run."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    def reset(self, **arguments: Any) -> Any:
        threading.Event().wait(self._rng.random() / 300)
        return super().reset(**arguments)

    def step(self, action: str) -> Any:
        threading.Event().wait(self._rng.random() / 300)
        return super().step(action)


class Nested(Workflow):
    """Nested asyncio tasks of different lengths, with environment steps and calls in between."""

    roles = ("agent",)

    async def run(self, task: Any, context: WorkflowContext) -> None:
        async def pair(first: int) -> list[str]:
            env = await context.env()
            observation, _ = await env.reset(seed=first)
            replies = await asyncio.gather(*(self._one(context, first + n, observation) for n in range(2)))
            await env.step(replies[0])
            return [await self._one(context, first, replies[1])]

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(pair(n * 2)) for n in range(3)]
        joined = " ".join(text for task in tasks for text in task.result())
        await context.call(threading.Event().wait, 0.001)
        await context.agent("last", "agent").generate(joined)

    async def _one(self, context: WorkflowContext, number: int, text: str) -> str:
        return (await asyncio.shield(context.agent(f"agent_{number}").generate(text))).text


def engine_of(workflow: Workflow | None, rng: int, sampler: Any, **options: Any) -> Any:
    """Return a deterministic engine of the workflow, or without one an agent engine."""
    options |= {"env": Slow, "env_kwargs": {"rng": random.Random(rng)}, "sampler": sampler, "deterministic": True}
    return AgentWorkflowEngine(workflow, **options) if workflow else AgentExecutionEngine(**options)


def saved(episodes: Any, path: Path) -> bytes:
    for episode in episodes:
        assert episode.fault is None
        episode.seconds = {}
    save_episodes(path, episodes)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("workflow", "agents"),
    [(None, 1), (SolverJudge(3), 3), (BestOfN(3), 3), (Nested(), 6)],
    ids=["agent", "solver judge", "best of n", "nested"],
)
def test_batches_do_not_depend_on_timing(workflow: Workflow | None, agents: int, tmp_path: Path) -> None:
    def scenario(rng: int) -> tuple[list[Any], bytes]:
        sampler = Batches()
        episodes = engine_of(workflow, rng, sampler, n_parallel=4).run_sync(range(10))
        return sampler.log, saved(episodes, tmp_path / f"{rng}")

    first, second = scenario(1), scenario(2)
    assert first == second
    batches = [entry for entry in first[0] if isinstance(entry, list)]
    # Full: all agents that are ready to sample, of all episodes, are in one batch.
    assert len(batches[0]) == 4 * agents
    conversations = {name for batch in batches for name in batch}
    released = [entry for entry in first[0] if isinstance(entry, str)]
    assert sorted(released) == sorted(conversations)


def test_results_are_delivered_in_order() -> None:
    async def scenario() -> list[str]:
        engine = engine_of(None, 0, Batches(), n_parallel=5)
        return [episode.task_id async for episode in engine.stream(range(20))]

    assert asyncio.run(scenario()) == [f"task-{number}" for number in range(20)]


def test_a_sampler_that_fails_in_a_round_ends_the_run() -> None:
    def reply(request: SamplingRequest) -> str:
        raise SamplerError("out of memory")

    with pytest.raises(SamplerError, match="out of memory"):
        engine_of(None, 0, ScriptedSampler(reply), n_parallel=5).run_sync(range(20))


def test_an_agents_replies_do_not_depend_on_the_order_of_other_agents() -> None:
    """Seeds depend on the episode, the agent and its turn: the order in which asyncio tasks sample changes nothing."""

    class Shuffled(Workflow):
        async def run(self, task: Any, context: WorkflowContext) -> None:
            order = list(range(4))
            rng.shuffle(order)
            for number in order:
                await context.agent(f"agent_{number}").generate("hello")

    output = []
    for shuffle in range(2):
        rng = random.Random(shuffle)
        seeds: dict[str, int] = {}
        sampler = ScriptedSampler(
            lambda request, seeds=seeds: seeds.setdefault(request.conversation, request.seed) and ""
        )
        AgentWorkflowEngine(Shuffled, sampler=sampler).run_sync([EpisodeSpec(seed=5), EpisodeSpec(seed=6)])
        output.append(seeds)
        assert len(set(seeds.values())) == 8
    assert output[0] == output[1]


@pytest.mark.parametrize("workflow", [None, SolverJudge(3)], ids=["agent", "workflow"])
def test_two_runs_with_a_model_are_bit_identical(workflow: Workflow | None, tmp_path: Path) -> None:
    def scenario(number: int) -> bytes:
        sampler = recording_model(tmp_path / "model", deterministic=True)
        engine = engine_of(workflow, number, sampler, sampling_params=SamplingParams(max_tokens=6), n_parallel=3)
        episodes = engine.run_sync([EpisodeSpec(n, seed=n, group_id=str(n // 2)) for n in range(6)])
        asyncio.run(sampler.close())
        return saved(episodes, tmp_path / f"{number}.jsonl")

    assert scenario(1) == scenario(2)
