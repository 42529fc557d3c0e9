"""Trained ids are sampled ids: with many turns, truncated replies, exhausted budgets and agents that rewrite their
history.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from environments import Quiz
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from templates import FAMILIES, make_tokenizer

from rllm_gym.agents import ChatAgent
from rllm_gym.core import stream_seed
from rllm_gym.engine import AgentExecutionEngine, EpisodeSpec
from rllm_gym.samplers import Completion, SamplingParams, SamplingRequest


class Recorder:
    """Samples random token ids, control tokens included, and records each reply with its prompt."""

    returns_tokens = True
    context_length: int | None = None

    def __init__(self, tokenizer: Any, seed: int, context_length: int | None) -> None:
        self.tokenizer = tokenizer
        self.context_length = context_length
        self.weight_version = 3
        self.drawn: dict[str, list[tuple[tuple[int, ...], Completion]]] = {}
        self._seed = seed

    async def sample(self, requests: list[SamplingRequest]) -> list[Completion]:
        return [self._one(request) for request in requests]

    def _one(self, request: SamplingRequest) -> Completion:
        rng = random.Random(stream_seed(self._seed, request.seed))
        wanted = rng.randint(1, 12)
        length = min(wanted, request.params.max_tokens)
        ids = tuple(rng.randrange(len(self.tokenizer)) for _ in range(length))
        if wanted <= request.params.max_tokens and rng.random() < 0.7:
            ids = (*ids[:-1], self.tokenizer.eos_token_id)
        finish = "stop" if ids[-1] == self.tokenizer.eos_token_id else "length"
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        if rng.random() < 0.3:
            text += "</think> so"  # what an agent may drop later
        logprobs = tuple(-rng.random() for _ in ids)
        completion = Completion(ids, logprobs, text, finish, self.weight_version)
        assert len(request.ids) + len(ids) <= (self.context_length or 10**9)
        self.drawn.setdefault(request.conversation, []).append((request.ids, completion))
        return completion

    async def sync_weights(self, update: Any) -> int:
        return 0

    async def release(self, conversation: str) -> None:
        return

    async def close(self) -> None:
        return


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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
    sampler = Recorder(make_tokenizer(family), seed, context)
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
        assert len(drawn) == len(trajectory.steps)
        trained: dict[int, tuple[tuple[int, ...], tuple[float, ...]]] = {}
        for sequence in trajectory.branches():
            for turn in sorted({turn for turn in sequence.turns if turn >= 0}):
                places = [place for place, of in enumerate(sequence.turns) if of == turn]
                assert places == list(range(places[0], places[-1] + 1))
                assert turn not in trained  # in exactly one branch
                trained[turn] = (
                    tuple(sequence.ids[place] for place in places),
                    tuple(sequence.logprobs[place] for place in places),
                )
                # The tokens before them in the sequence are exactly the prompt for which they were sampled.
                assert sequence.ids[: places[0]] == drawn[turn][0]
                assert sequence.rewards[places[-1]] == trajectory.steps[turn].reward
            for place, of in enumerate(sequence.turns):
                assert sequence.mask[place] == (of >= 0)
                assert sequence.versions[place] == (3 if of >= 0 else -1)
                assert of >= 0 or sequence.logprobs[place] == sequence.rewards[place] == 0.0
        assert trained == {turn: (completion.ids, completion.logprobs) for turn, (_, completion) in enumerate(drawn)}
        if response is not None:
            assert sum(len(completion.ids) for _, completion in drawn) <= response


def test_a_rewritten_history_begins_a_branch_and_keeps_the_old_one() -> None:
    class Summing(ChatAgent):
        def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **_: Any) -> None:
            super().update_from_env(observation, reward, done, info)
            if info["turn"] == 2:
                self._messages = [{"role": "user", "content": "summary"}]

    sampler = Recorder(make_tokenizer("qwen2.5"), 0, None)
    engine = AgentExecutionEngine(env=Quiz, agent=Summing, sampler=sampler)
    (episode,) = engine.run_sync([EpisodeSpec(99)])
    first, second = episode.trajectories[0].branches()
    assert {turn for turn in first.turns if turn >= 0} == {0, 1}
    assert {turn for turn in second.turns if turn >= 0} == {2, 3}


def test_a_sampler_that_omits_tokens_is_detected() -> None:
    class WithoutTokens(Recorder):
        async def sample(self, requests: list[SamplingRequest]) -> list[Completion]:
            return [Completion((), (), "text") for _ in requests]

    engine = AgentExecutionEngine(env=Quiz, sampler=WithoutTokens(make_tokenizer("qwen2.5"), 0, None))
    with pytest.raises(RuntimeError, match="log-prob"):
        engine.run_sync([0])


def test_prompts_contain_the_environments_tools() -> None:
    tools = '[{"type": "function", "function": {"name": "dig", "description": "d", "parameters": {}}}]'

    class WithTools(Quiz):
        def _tools(self) -> str:
            return tools

    sampler = Recorder(make_tokenizer("qwen2.5"), 0, None)
    asyncio.run(AgentExecutionEngine(env=WithTools, sampler=sampler, max_turns=1).run([EpisodeSpec(1)]))
    ((prompt, _),) = next(iter(sampler.drawn.values()))
    assert '"name": "dig"' in sampler.tokenizer.decode(prompt)
