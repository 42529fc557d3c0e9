"""Deterministic runs of workflows: agents of an episode sample concurrently, and no batch depends on timing."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest
from environments import Quiz

from rllm_gym.engine import AgentWorkflowEngine, EpisodeSpec, Workflow, WorkflowContext, save_episodes
from rllm_gym.engine.workflows import BestOfN, SolverJudge
from rllm_gym.samplers import Completion, SamplingParams, ScriptedSampler


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
    """Its steps take random times, different in each run."""

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


@pytest.mark.parametrize("workflow", [SolverJudge(3), BestOfN(3), Nested()], ids=lambda made: type(made).__name__)
def test_batches_do_not_depend_on_timing(workflow: Workflow, tmp_path: Any) -> None:
    def scenario(rng: int) -> tuple[list[Any], bytes]:
        sampler = Batches()
        engine = AgentWorkflowEngine(
            workflow,
            env=Slow,
            env_kwargs={"rng": random.Random(rng)},
            sampler=sampler,
            n_parallel=4,
            deterministic=True,
        )
        episodes = engine.run_sync(range(10))
        for episode in episodes:
            episode.seconds = {}
        save_episodes(tmp_path / f"{rng}", episodes)
        return sampler.log, (tmp_path / f"{rng}").read_bytes()

    first, second = scenario(1), scenario(2)
    assert first == second
    batches = [entry for entry in first[0] if isinstance(entry, list)]
    # Full: all agents that are ready to sample, of all episodes, are in one batch.
    assert len(batches[0]) == 4 * (6 if isinstance(workflow, Nested) else 3)
    conversations = {name for batch in batches for name in batch}
    released = [entry for entry in first[0] if isinstance(entry, str)]
    assert sorted(released) == sorted(conversations)


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


def test_two_runs_with_a_model_are_bit_identical(tmp_path: Any) -> None:
    torch = pytest.importorskip("torch", reason="the embedded sampler needs torch")
    from test_workflow_tokens import assert_tokens_are_the_agents_own

    from rllm_gym.samplers import TorchSampler
    from trainers.tiny_model import make_tiny_model

    torch.set_num_threads(1)
    make_tiny_model(tmp_path / "model")

    class Recording(TorchSampler):
        """Records sampled ids under the name of their conversation."""

        async def sample(self, requests: Any) -> list[Completion]:
            completions = await super().sample(requests)
            for request, completion in zip(requests, completions, strict=True):
                drawn.setdefault(request.conversation, []).append((request, completion))
            return completions

    files = []
    for number in range(2):
        drawn: dict[str, Any] = {}
        sampler = Recording(tmp_path / "model", deterministic=True)
        sampler.drawn = drawn  # type: ignore[attr-defined]
        engine = AgentWorkflowEngine(
            SolverJudge(3),
            env=Slow,
            env_kwargs={"rng": random.Random(number)},
            sampler=sampler,
            sampling_params=SamplingParams(max_tokens=5),
            n_parallel=3,
            deterministic=True,
        )
        episodes = engine.run_sync([EpisodeSpec(n, seed=n, episode_id=f"e{n}") for n in range(5)])
        for episode in episodes:
            assert episode.fault is None
            assert_tokens_are_the_agents_own(episode, sampler, f"0/{episode.episode_id}/1/")  # type: ignore[arg-type]
            episode.seconds = {}
        save_episodes(tmp_path / f"{number}.jsonl", episodes)
        files.append((tmp_path / f"{number}.jsonl").read_bytes())
        asyncio.run(sampler.close())
    assert files[0] == files[1]
