"""Weight updates during a reply: it continues with the new weights, and each token has the log-prob of its weights."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
import torch

from rllm_gym.samplers import Completion, SamplingParams, SamplingRequest, TorchSampler, WeightUpdate

STEPS = 5  # the update arrives after this many steps


def requests(*, temperature: float = 1.0, weights: str = "") -> list[SamplingRequest]:
    """Six replies, two of them to the same prompt, of 3 to 29 tokens: some end before the update."""
    prompts = [tuple(range(3, 3 + length)) for length in (1, 17, 40, 40, 70, 5)]
    return [
        SamplingRequest(
            ids, SamplingParams(temperature=temperature, max_tokens=(29, 3, 20, 29, 12, 8)[index]), seed=index,
            weights=weights,
        )
        for index, ids in enumerate(prompts)
    ]  # fmt: skip


async def sample_with_updates(
    sampler: TorchSampler,
    asked: list[SamplingRequest],
    updates: list[WeightUpdate],
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[list[Completion], list[Any]]:
    """Sample, and load each update ``STEPS`` steps of the decode loop after the one before."""
    loop, syncs, steps = asyncio.get_running_loop(), [], 0
    between = type(sampler._loop)._between_steps

    def counted(self: Any) -> None:
        nonlocal steps
        steps += 1
        if steps % STEPS == 0 and len(syncs) < len(updates):
            syncs.append(asyncio.run_coroutine_threadsafe(sampler.sync_weights(updates[len(syncs)]), loop))
            # The update is in the inbox before the next step.
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(60)
        between(self)

    monkeypatch.setattr(type(sampler._loop), "_between_steps", counted)
    completions = await sampler.sample(asked)
    monkeypatch.undo()
    return completions, [await asyncio.wrap_future(sync) for sync in syncs]


def switch(request: SamplingRequest, completion: Completion, models: list[Any], plain_logprobs: Any) -> list[int]:
    """Return for each token the first model, from that of the token before on, whose log-prob it has."""
    expected = [
        plain_logprobs(model, request.ids, completion.ids, request.params.temperature or 1.0) for model in models
    ]
    found, current = [], 0
    for index, logprob in enumerate(completion.logprobs):
        while current < len(models) and abs(expected[current][index] - logprob) > 1e-4:
            current += 1
        assert current < len(models), f"token {index} has the log-prob of no weights"
        found.append(current)
    return found


@torch.no_grad()
def most_likely(model: Any, prompt: tuple[int, ...], ids: tuple[int, ...]) -> list[int]:
    """Return the most likely token at each position of the reply, given those before."""
    best: list[int] = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].argmax(-1).tolist()
    return best


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_reply_continues_with_the_new_weights(
    make_model: Any,
    tokenizer: Any,
    run: Any,
    plain_logprobs: Any,
    monkeypatch: pytest.MonkeyPatch,
    deterministic: bool,
    temperature: float,
) -> None:
    """Two updates: log-probs, versions and, without randomness, the tokens are those of the weights in turn."""
    model = make_model(seed=0)
    models = [copy.deepcopy(model), make_model(seed=1), make_model(seed=2)]
    updates = [WeightUpdate(list(other.state_dict().items()), in_flight=True) for other in models[1:]]
    asked = requests(temperature=temperature)

    async def go() -> Any:
        options: dict[str, Any] = {"eos_token_ids": (), "deterministic": deterministic}
        async with TorchSampler(model, tokenizer, **options) as sampler:
            completions, versions = await sample_with_updates(sampler, asked, updates, monkeypatch)
            again = (await sampler.sample(asked[:1]))[0]
            return completions, versions, again

    completions, versions, again = run(go())
    assert versions == [1, 2]
    assert [len(completion.ids) for completion in completions] == [request.params.max_tokens for request in asked]
    assert {completion.weight_version for completion in completions} == {0}, "the oldest weights of each reply"
    switches = [
        switch(request, completion, models, plain_logprobs)
        for request, completion in zip(asked, completions, strict=True)
    ]
    assert set(switches[0]) == {0, 1, 2}, "the long reply was sampled by all three"
    assert set(switches[1]) == {0}, "the short one ended before the update"
    assert again.weight_version == 2
    assert set(switch(asked[0], again, models[2:], plain_logprobs)) == {0}, "nothing older is cached"
    if temperature == 0:
        for request, completion, by in zip(asked, completions, switches, strict=True):
            best = [most_likely(model, request.ids, completion.ids) for model in models]
            assert list(completion.ids) == [best[number][index] for index, number in enumerate(by)]


def test_a_seed_gives_the_same_reply_when_the_weights_do_not_change(
    make_model: Any, tokenizer: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise of a token depends on its position in the reply, not on when the reply was suspended."""
    model = make_model(seed=0)
    same = [WeightUpdate(list(copy.deepcopy(model).state_dict().items()), in_flight=True)] * 3

    async def go() -> Any:
        async with TorchSampler(model, tokenizer, eos_token_ids=()) as sampler:
            plain = await sampler.sample(requests())
            return plain, (await sample_with_updates(sampler, requests(), same, monkeypatch))[0]

    plain, interrupted = run(go())
    assert [completion.ids for completion in interrupted] == [completion.ids for completion in plain]


def test_without_in_flight_a_reply_finishes_with_its_weights(
    make_model: Any, tokenizer: Any, run: Any, plain_logprobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(seed=0)
    before = copy.deepcopy(model)
    update = WeightUpdate(list(make_model(seed=1).state_dict().items()))

    async def go() -> Any:
        async with TorchSampler(model, tokenizer, eos_token_ids=()) as sampler:
            return await sample_with_updates(sampler, requests(), [update], monkeypatch)

    completions, _ = run(go())
    for request, completion in zip(requests(), completions, strict=True):
        assert set(switch(request, completion, [before], plain_logprobs)) == {0}


def test_an_update_that_does_not_fit_and_a_cancelled_reply_leave_the_others_alone(
    make_model: Any, tokenizer: Any, run: Any, plain_logprobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(seed=0)
    bad = WeightUpdate([("no.such.weight", next(model.parameters()).detach())], in_flight=True)

    async def go() -> Any:
        async with TorchSampler(model, tokenizer, eos_token_ids=(), max_batch=3) as sampler:
            other = asyncio.create_task(sampler.sample(requests()))
            await asyncio.sleep(0)
            other.cancel()
            with pytest.raises(ValueError, match=r"no\.such\.weight"):
                await sample_with_updates(sampler, requests(), [bad], monkeypatch)
            monkeypatch.undo()
            return await sampler.sample(requests())

    for request, completion in zip(requests(), run(go()), strict=True):
        assert len(completion.ids) == request.params.max_tokens
        assert set(switch(request, completion, [model], plain_logprobs)) == {0}
