"""In every built-in workflow, each trainable token belongs to one agent, which sampled it from its recorded prompt."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from typing import Any

import pytest
from environments import Quiz
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from recording_sampler import Recorder, assert_tokens_were_sampled, recording_model

from rllm_gym.agents import ChatAgent
from rllm_gym.core import Episode, StopReason, Trajectory
from rllm_gym.engine import AgentWorkflowEngine, EpisodeSpec, Role, Workflow
from rllm_gym.engine.workflows import (
    BestOfN,
    Debate,
    MultiTurn,
    PlanExecute,
    SelfPlay,
    SingleTurn,
    SolverJudge,
)
from rllm_gym.samplers import SamplingParams
from tests.chat.templates import FAMILIES, make_tokenizer

WORKFLOWS: dict[str, tuple[Workflow, Any]] = {
    "single turn": (SingleTurn(), Quiz),
    "multi turn": (MultiTurn(agents={"agent": lambda: ChatAgent("Think.", keep_thoughts=False)}), Quiz),
    "solver judge": (SolverJudge(3), Quiz),
    "debate": (Debate(3, rounds=2), Quiz),
    "best of n": (BestOfN(3), Quiz),
    "plan execute": (PlanExecute(), Quiz),
    "self play": (SelfPlay("rllm/TicTacToe-v0"), None),
    "two sides": (SelfPlay("rllm/TicTacToe-v0", roles=("player", "opponent")), None),
}
WORDS = ("1", "2", "5", "9", "\\boxed{1}", "yes", "<think>so</think> 0", "give up")


def assert_tokens_are_the_agents_own(episode: Episode, sampler: Recorder, conversation: str) -> None:
    """Assert that each trainable token was sampled once, by the agent whose trajectory contains it."""
    drawn = {name: replies for name, replies in sampler.drawn.items() if name.startswith(conversation)}
    assert {name.removeprefix(conversation) for name in drawn} == {
        trajectory.name for trajectory in episode.trajectories if trajectory.steps
    }
    for trajectory in episode.trajectories:
        assert_tokens_were_sampled(trajectory, drawn.pop(conversation + trajectory.name, []))
    assert not drawn


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    workflow_case=st.sampled_from(sorted(WORKFLOWS)),
    family=st.sampled_from(sorted(FAMILIES)),
    seed=st.integers(0, 2**32),
    max_tokens=st.integers(1, 15),
    response=st.one_of(st.none(), st.integers(1, 60)),
    together=st.one_of(st.none(), st.integers(1, 80)),
    context=st.one_of(st.none(), st.integers(100, 900)),
    deterministic=st.booleans(),
)
@example(
    workflow_case="self play",
    family="strict",
    seed=0,
    max_tokens=1,
    response=None,
    together=None,
    context=172,
    deterministic=False,
)
def test_trainable_tokens_are_of_one_agent_and_were_sampled_by_it(
    workflow_case: str,
    family: str,
    seed: int,
    max_tokens: int,
    response: int | None,
    together: int | None,
    context: int | None,
    deterministic: bool,
) -> None:
    workflow, env = WORKFLOWS[workflow_case]
    sampler = Recorder(make_tokenizer(family), seed, context, words=WORDS)
    frozen = {"opponent": Role(trainable=False)} if "opponent" in workflow.roles else {}
    engine = AgentWorkflowEngine(
        workflow,
        env=env,
        sampler=sampler,
        roles=frozen,
        sampling_params=SamplingParams(max_tokens=max_tokens),
        max_response_tokens=response,
        max_episode_tokens=together,
        deterministic=deterministic,
        n_parallel=2,
    )
    specs = [EpisodeSpec(None if env is None else n, seed=n, episode_id=f"e{n}") for n in range(3)]
    for episode in engine.run_sync(specs):
        assert episode.fault is None
        assert_tokens_are_the_agents_own(episode, sampler, f"0/{episode.episode_id}/1/")
        for trajectory in episode.trajectories:
            assert trajectory.trainable is False or trajectory.role != "opponent"
            assert response is None or _sampled(trajectory) <= response
        assert together is None or sum(map(_sampled, episode.trajectories)) <= together
    assert set(sampler.released) >= set(sampler.drawn)
    assert len(sampler.released) == len(set(sampler.released))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda made, before: [*made, Trajectory("copy", steps=[copy.deepcopy(made[0].steps[0])])],
            "another step as well",
        ),
        (lambda made, before: list(before) or made, "that no agent of this episode sampled"),
        (lambda made, before: [replace(trajectory, trainable=True) for trajectory in made], "is not trainable"),
        (lambda made, before: [replace(made[0], steps=made[0].steps[1:]), *made[1:]], "without the previous one"),
        (lambda made, before: [replace(made[0], steps=made[0].steps[:1]), *made[1:]], None),
    ],
    ids=["twice", "another episode's", "a frozen role's", "without its prompt", "the last left out"],
)
def test_an_episode_built_by_a_workflow_contains_only_its_own_tokens(make: Any, says: str | None) -> None:
    before: list[Trajectory] = []

    class Makes(Workflow):
        roles = ("player", "opponent")

        async def run(self, task: Any, context: Any) -> Episode:
            for name in ("player_0", "player_0", "opponent_0"):
                await context.agent(name).generate("go on")
            created = context.finish(reward=1.0)
            kept, created.trajectories = created.trajectories, make(created.trajectories, before)
            before.extend(kept)
            return created

    engine = AgentWorkflowEngine(
        Makes, sampler=Recorder(make_tokenizer("qwen3"), 1), roles={"opponent": Role(trainable=False)}, n_parallel=1
    )
    last = engine.run_sync([EpisodeSpec(seed=1), EpisodeSpec(seed=2)])[-1]
    if says is None:
        assert last.fault is None
    else:
        assert last.stop_reason is StopReason.AGENT_ERROR
        assert says in (last.fault or "")


def test_trainable_tokens_of_a_model_were_sampled_by_their_agent(tmp_path: Any) -> None:
    async def scenario() -> None:
        async with recording_model(tmp_path / "model") as sampler:
            for workflow, env in WORKFLOWS.values():
                sampler.drawn = {}
                engine = AgentWorkflowEngine(
                    workflow, env=env, sampler=sampler, sampling_params=SamplingParams(max_tokens=4), max_turns=20
                )
                for episode in await engine.run([EpisodeSpec(seed=n, episode_id=f"e{n}") for n in range(2)]):
                    assert episode.fault is None
                    assert_tokens_are_the_agents_own(episode, sampler, f"0/{episode.episode_id}/1/")

    asyncio.run(scenario())


def _sampled(trajectory: Any) -> int:
    return sum(len(step.tokens.ids) for step in trajectory.steps)
