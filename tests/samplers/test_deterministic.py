"""``deterministic=True``: the bits of a reply depend only on its request and the weights."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from rllm_gym.samplers import Completion, SamplingParams, SamplingRequest, TorchSampler, WeightUpdate


def requests(count: int) -> list[SamplingRequest]:
    """Return groups with one prompt, prompts with a common prefix, short and long ones, truncated and greedy ones."""
    rng = random.Random(0)
    system = tuple(rng.randrange(290) for _ in range(70))
    asked = []
    for number in range(count):
        ids = (*(system if number % 2 else ()), *(rng.randrange(290) for _ in range(rng.choice([3, 40, 64, 65, 150]))))
        params = SamplingParams(
            temperature=rng.choice([0.0, 0.7, 1.0]),
            top_p=rng.choice([1.0, 1.0, 0.8]),
            max_tokens=rng.choice([2, 9, 20, 70]),
        )
        asked += [SamplingRequest(ids, params, seed=1000 * number + member) for member in range(rng.choice([1, 3]))]
    return asked


def bits(completions: list[Completion]) -> list[tuple[Any, ...]]:
    return [(c.ids, c.logprobs, c.text, c.finish_reason) for c in completions]


@pytest.mark.parametrize("shape", [{}, {"hidden_size": 40, "intermediate_size": 70, "num_key_value_heads": 4}])
def test_replies_do_not_depend_on_order_batch_or_cache(
    make_model: Any, tokenizer: Any, run: Any, shape: dict[str, int]
) -> None:
    model = make_model(**shape)
    asked = requests(8)
    order = list(range(len(asked)))
    random.Random(3).shuffle(order)

    async def sample_concurrently() -> list[Completion]:
        async with TorchSampler(model, tokenizer, max_batch=13, deterministic=True) as sampler:
            return await sampler.sample(asked)

    async def sample_sequentially() -> list[Completion]:
        async with TorchSampler(model, tokenizer, max_batch=13, deterministic=True, cache_bytes=0) as sampler:
            return [(await sampler.sample([request]))[0] for request in asked[::2]]

    async def sample_shuffled_with_delays() -> list[Completion]:
        async with TorchSampler(model, tokenizer, max_batch=13, deterministic=True) as sampler:
            rng = random.Random(5)

            async def sample_later(place: int) -> Completion:
                for _ in range(rng.randrange(200)):
                    await asyncio.sleep(0)
                return (await sampler.sample([asked[place]]))[0]

            got = await asyncio.gather(*(sample_later(place) for place in order))
        return [completion for _, completion in sorted(zip(order, got, strict=True), key=lambda pair: pair[0])]

    expected = bits(run(sample_concurrently()))
    assert bits(run(sample_sequentially())) == expected[::2]
    assert bits(run(sample_shuffled_with_delays())) == expected


def test_a_conversation_continues_identically_with_and_without_its_cache(
    make_model: Any, tokenizer: Any, run: Any
) -> None:
    """As after a resume: the second sampler has never seen the first turns."""
    model = make_model()

    async def converse(sampler: TorchSampler, turns: int, ids: tuple[int, ...]) -> tuple[list[Any], tuple[int, ...]]:
        seen = []
        for turn in range(turns):
            request = SamplingRequest(ids, SamplingParams(max_tokens=20), seed=len(ids) + turn, conversation="c")
            [completion] = await sampler.sample([request])
            seen += bits([completion])
            ids += (*completion.ids, *range(turn, turn + 30))
        return seen, ids

    async def go() -> None:
        start = tuple(range(50))
        async with TorchSampler(model, tokenizer, deterministic=True) as sampler:
            _, middle = await converse(sampler, 3, start)
            kept, _ = await converse(sampler, 3, middle)
            noise = requests(2)
            await sampler.sample(noise)
        async with TorchSampler(model, tokenizer, deterministic=True, max_batch=7) as sampler:
            company = asyncio.gather(*(sampler.sample([request]) for request in requests(3)))
            fresh, _ = await converse(sampler, 3, middle)
            await company
        assert kept == fresh

    run(go())


def test_synced_weights_equal_a_new_sampler(make_model: Any, tokenizer: Any, run: Any) -> None:
    asked = requests(3)
    new = make_model(seed=2)

    async def go() -> None:
        async with TorchSampler(make_model(), tokenizer, deterministic=True) as sampler:
            await sampler.sample(asked)
            await sampler.sync_weights(WeightUpdate(new.state_dict().items()))
            synced = bits(await sampler.sample(asked))
        async with TorchSampler(new, tokenizer, deterministic=True) as sampler:
            assert bits(await sampler.sample(asked)) == synced

    run(go())
