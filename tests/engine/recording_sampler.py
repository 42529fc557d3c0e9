"""A sampler that returns random ids and records every reply with its prompt."""

from __future__ import annotations

import random
from typing import Any

from rllm_gym.core import stream_seed
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
