"""Trained ids are sampled ids: with many turns, truncated replies, exhausted budgets and agents that rewrite their
history.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from environments import Quiz
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_sampler import Recorder, assert_tokens_were_sampled

from rllm_gym.agents import ChatAgent
from rllm_gym.engine import AgentExecutionEngine, EpisodeSpec
from rllm_gym.samplers import Completion, SamplingParams, SamplingRequest
from tests.chat.templates import FAMILIES, make_tokenizer

WORDS = ("<think>yes</think> so", "no</think> so", "5")


class Forgetful(ChatAgent):
    """Rewrites its history sometimes: drops thoughts, drops turns, changes a word of an earlier message."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        super().__init__("be brief" if seed % 2 else "")

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        super().update_from_env(observation, reward, done, info)
        match self._rng.randrange(6):
            case 0 if len(self._messages) > 2:
                self._messages = self._messages[2:]
            case 1:
                for message in self._messages:
                    message["content"] = message["content"].rpartition("</think>")[2]
            case 2:
                self._messages[0]["content"] += "!"


@settings(max_examples=60)
@given(
    family=st.sampled_from(sorted(FAMILIES)),
    seed=st.integers(0, 2**32),
    max_tokens=st.integers(1, 15),
    response=st.one_of(st.none(), st.integers(1, 60)),
    context=st.one_of(st.none(), st.integers(60, 400)),
)
def test_trained_ids_are_sampled_ids(
    family: str, seed: int, max_tokens: int, response: int | None, context: int | None
) -> None:
    sampler = Recorder(make_tokenizer(family), seed, context, words=WORDS)
    engine = AgentExecutionEngine(
        env=Quiz,
        env_kwargs={"max_turns": 6},
        agent=lambda: Forgetful(seed),
        sampler=sampler,
        sampling_params=SamplingParams(max_tokens=max_tokens),
        max_response_tokens=response,
    )
    episodes = engine.run_sync([EpisodeSpec(number, episode_id=f"e{number}") for number in range(3)])

    for episode in episodes:
        drawn = sampler.drawn.get(f"0/{episode.episode_id}/1", [])
        (trajectory,) = episode.trajectories
        assert_tokens_were_sampled(trajectory, drawn)
        if response is not None:
            assert sum(len(completion.ids) for _, completion in drawn) <= response


def test_a_rewritten_history_begins_a_branch_and_keeps_the_old_one() -> None:
    class Summing(ChatAgent):
        def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **_: Any) -> None:
            super().update_from_env(observation, reward, done, info)
            if info["turn"] == 2:
                self._messages = [{"role": "user", "content": "summary"}]

    sampler = Recorder(make_tokenizer("qwen2.5"), 0)
    engine = AgentExecutionEngine(env=Quiz, agent=Summing, sampler=sampler)
    (episode,) = engine.run_sync([EpisodeSpec(99)])
    first, second = episode.trajectories[0].branches()
    assert {turn for turn in first.turns if turn >= 0} == {0, 1}
    assert {turn for turn in second.turns if turn >= 0} == {2, 3}


def test_a_sampler_that_omits_tokens_is_detected() -> None:
    class WithoutTokens(Recorder):
        async def sample(self, requests: list[SamplingRequest]) -> list[Completion]:
            return [Completion((), (), "text") for _ in requests]

    engine = AgentExecutionEngine(env=Quiz, sampler=WithoutTokens(make_tokenizer("qwen2.5"), 0))
    with pytest.raises(RuntimeError, match="log-prob"):
        engine.run_sync([0])


def test_prompts_contain_the_environments_tools() -> None:
    tools = '[{"type": "function", "function": {"name": "dig", "description": "d", "parameters": {}}}]'

    class WithTools(Quiz):
        def _tools(self) -> str:
            return tools

    sampler = Recorder(make_tokenizer("qwen2.5"), 0)
    asyncio.run(AgentExecutionEngine(env=WithTools, sampler=sampler, max_turns=1).run([EpisodeSpec(1)]))
    ((request, _),) = next(iter(sampler.drawn.values()))
    assert '"name": "dig"' in sampler.tokenizer.decode(request.ids)
