"""Samplers that record every reply with its prompt, and the comparison of episodes with these records."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from rllm_gym.core import Trajectory, stream_seed
from rllm_gym.samplers import Completion, SamplingRequest


class Recorder:
    """Samples random ids, control tokens included; ``words`` are replies that it returns occasionally instead.

    Attributes:
        drawn: For each conversation the requests and the sampled ids, in order.
        released: Conversations in the order of their release.
    """

    returns_tokens = True

    def __init__(
        self, tokenizer: Any, seed: int, context_length: int | None = None, *, words: tuple[str, ...] = ()
    ) -> None:
        self.tokenizer = tokenizer
        self.context_length = context_length
        self.weight_version = 3
        self.drawn: dict[str, list[tuple[SamplingRequest, Completion]]] = {}
        self.released: list[str] = []
        self._words = words
        self._seed = seed

    async def sample(self, requests: list[SamplingRequest]) -> list[Completion]:
        return [self._one(request) for request in requests]

    def _one(self, request: SamplingRequest) -> Completion:
        rng = random.Random(stream_seed(self._seed, request.seed))
        if self._words and rng.random() < 0.7:
            ids = tuple(self.tokenizer.encode(rng.choice(self._words), add_special_tokens=False))
            ids = (*ids, self.tokenizer.eos_token_id)
        else:
            ids = tuple(rng.randrange(len(self.tokenizer)) for _ in range(rng.randint(1, 12)))
        ids = ids[: request.params.max_tokens]
        finish = "stop" if ids[-1] == self.tokenizer.eos_token_id else "length"
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        completion = Completion(ids, tuple(-rng.random() for _ in ids), text, finish, self.weight_version)
        assert len(request.ids) + len(ids) <= (self.context_length or 10**9)
        self.drawn.setdefault(request.conversation, []).append((request, completion))
        return completion

    async def sync_weights(self, update: Any) -> int:
        return 0

    async def release(self, conversation: str) -> None:
        self.released.append(conversation)

    async def close(self) -> None:
        return


def recording_model(folder: Path, **options: Any) -> Any:
    """Return a sampler of a tiny model, made in the folder, that records in ``drawn`` as :class:`Recorder` does."""
    torch = pytest.importorskip("torch", reason="the embedded sampler needs torch")
    from rllm_gym.samplers import TorchSampler
    from trainers.tiny_model import make_tiny_model

    class Recording(TorchSampler):
        async def sample(self, requests: Any) -> list[Completion]:
            completions = await super().sample(requests)
            for request, completion in zip(requests, completions, strict=True):
                self.drawn.setdefault(request.conversation, []).append((request, completion))
            return completions

    torch.set_num_threads(1)
    if not folder.exists():
        make_tiny_model(folder)
    sampler = Recording(folder, **options)
    sampler.drawn = {}
    return sampler


def assert_tokens_were_sampled(trajectory: Trajectory, replies: list[tuple[SamplingRequest, Completion]]) -> None:
    """Assert that each reply is in exactly one branch, after the prompt for which it was sampled."""
    assert len(replies) == len(trajectory.steps)
    turns: list[int] = []
    for sequence in trajectory.branches():
        for turn in sorted({turn for turn in sequence.turns if turn >= 0}):
            places = [place for place, of in enumerate(sequence.turns) if of == turn]
            request, completion = replies[turn]
            assert places == list(range(places[0], places[-1] + 1))
            assert sequence.ids[places[0] : places[-1] + 1] == completion.ids
            assert sequence.logprobs[places[0] : places[-1] + 1] == completion.logprobs
            assert sequence.ids[: places[0]] == request.ids
            assert sequence.rewards[places[-1]] == trajectory.steps[turn].reward
            assert list(request.messages) == trajectory.steps[turn].chat_completions
            turns.append(turn)
        for place, of in enumerate(sequence.turns):
            assert sequence.mask[place] == (of >= 0)
            assert sequence.versions[place] == (replies[of][1].weight_version if of >= 0 else -1)
            assert of >= 0 or sequence.logprobs[place] == sequence.rewards[place] == 0.0
    assert sorted(turns) == list(range(len(replies)))
