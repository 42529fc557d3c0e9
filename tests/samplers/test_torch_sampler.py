"""The embedded sampler: its ids and log-probs are the plain model's, however the batch was formed."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rllm_gym.samplers import Sampler, SamplerError, SamplingParams, SamplingRequest, TorchSampler, WeightUpdate
from rllm_gym.samplers.decode_batch import DecodeBatch
from tests.chat.for_every import for_every


def prompts(count: int, seed: int = 0, least: int = 1, most: int = 60) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(290) for _ in range(rng.randint(least, most))) for _ in range(count)]


def sampler_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rllm-gym-sampler"]


def test_it_implements_the_sampler_protocol(model: Any, tokenizer: Any, run: Any) -> None:
    async def go() -> None:
        async with TorchSampler(model, tokenizer) as sampler:
            assert isinstance(sampler, Sampler)
            assert sampler.returns_tokens
            assert sampler.context_length == 512
            assert sampler.weight_version == 0
            assert await sampler.sample([]) == []

    run(go())


@pytest.mark.parametrize("deterministic", [False, True])
def test_log_probs_are_those_of_a_plain_forward_pass(
    model: Any, tokenizer: Any, run: Any, plain_logprobs: Any, deterministic: bool
) -> None:
    """Many prompt lengths, temperatures and reply lengths at once, more requests than the batch holds."""
    rng = random.Random(1)
    requests = [
        SamplingRequest(
            ids,
            SamplingParams(
                temperature=rng.choice([0.0, 0.5, 1.0, 1.7]), max_tokens=rng.randint(1, 20), top_k=rng.choice([0, 0, 5])
            ),
            seed=number,
        )
        for number, ids in enumerate(prompts(40, most=200))
    ]

    async def go() -> Any:
        async with TorchSampler(model, tokenizer, max_batch=16, deterministic=deterministic) as sampler:
            return await sampler.sample(requests)

    for request, completion in zip(requests, run(go()), strict=True):
        assert 1 <= len(completion.ids) <= request.params.max_tokens
        expected = plain_logprobs(model, request.ids, completion.ids, request.params.temperature)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)
        assert completion.text == tokenizer.decode(completion.ids, skip_special_tokens=True)


def test_greedy_sampling_equals_generate(model: Any, tokenizer: Any, run: Any) -> None:
    asked = prompts(12, least=3)

    async def go() -> Any:
        async with TorchSampler(model, tokenizer, eos_token_ids=()) as sampler:
            return await sampler.sample(
                [SamplingRequest(ids, SamplingParams(temperature=0, max_tokens=16)) for ids in asked]
            )

    for ids, completion in zip(asked, run(go()), strict=True):
        with torch.no_grad():
            batch = torch.tensor([ids])
            output = model.generate(
                batch, attention_mask=torch.ones_like(batch), do_sample=False, max_new_tokens=16, pad_token_id=0
            )
        assert list(completion.ids) == output[0, len(ids) :].tolist()
        assert completion.finish_reason == "length"


def test_a_seed_gives_the_same_reply_in_every_batch(model: Any, tokenizer: Any, run: Any) -> None:
    requests = [SamplingRequest(ids, SamplingParams(max_tokens=12), seed=7 + n) for n, ids in enumerate(prompts(24))]

    async def go() -> None:
        async with TorchSampler(model, tokenizer, max_batch=8, cache_bytes=0) as sampler:
            together = await sampler.sample(requests)
            backwards = (await sampler.sample(requests[::-1]))[::-1]
            alone = [(await sampler.sample([request]))[0] for request in requests]
            other_seed = await sampler.sample([SamplingRequest(r.ids, r.params, seed=r.seed + 1000) for r in requests])
        assert [c.ids for c in together] == [c.ids for c in backwards] == [c.ids for c in alone]
        assert [c.ids for c in together] != [c.ids for c in other_seed]

    run(go())


@pytest.mark.parametrize("deterministic", [False, True])
def test_turns_of_a_conversation_compute_only_new_tokens(
    model: Any, tokenizer: Any, run: Any, plain_logprobs: Any, deterministic: bool
) -> None:
    async def converse(sampler: TorchSampler, number: int) -> None:
        rng = random.Random(number)
        ids = tuple(rng.randrange(290) for _ in range(rng.randint(20, 60)))
        for turn in range(6):
            request = SamplingRequest(
                ids, SamplingParams(max_tokens=rng.randint(1, 9)), seed=turn, conversation=f"conversation {number}"
            )
            [completion] = await sampler.sample([request])
            assert completion.logprobs == pytest.approx(plain_logprobs(model, ids, completion.ids), abs=1e-4)
            ids += completion.ids + tuple(rng.randrange(290) for _ in range(rng.randint(1, 12)))

    async def go() -> None:
        async with TorchSampler(model, tokenizer, max_batch=5, deterministic=deterministic) as sampler:
            before = sampler._loop.prefilled
            await asyncio.gather(*(converse(sampler, number) for number in range(12)))
            computed = sampler._loop.prefilled - before
        # A turn adds at most 12 tokens and the last one sampled; in fixed chunks, up to a chunk more.
        most = 12 * (60 + 5 * 13) if not deterministic else 12 * (60 + 5 * (64 + 21))
        assert computed <= most

    run(go())


def test_a_group_shares_its_prompt(model: Any, tokenizer: Any, run: Any, plain_logprobs: Any) -> None:
    [ids] = prompts(1, least=100, most=100)

    async def go() -> None:
        async with TorchSampler(model, tokenizer, cache_bytes=0) as sampler:
            group = [SamplingRequest(ids, SamplingParams(max_tokens=10), seed=seed) for seed in range(16)]
            completions = await sampler.sample(group)
            assert sampler._loop.prefilled == 100
            assert len({completion.ids for completion in completions}) > 8
            for completion in completions:
                assert completion.logprobs == pytest.approx(plain_logprobs(model, ids, completion.ids), abs=1e-4)

    run(go())


def test_a_later_prompt_shares_the_prefix_of_a_running_one(
    model: Any, tokenizer: Any, run: Any, plain_logprobs: Any
) -> None:
    [ids] = prompts(1, least=64, most=64)

    async def go() -> None:
        async with TorchSampler(model, tokenizer, eos_token_ids=()) as sampler:
            started, second_asked = threading.Event(), threading.Event()

            def hold(*_: Any) -> None:
                started.set()
                second_asked.wait(200)

            hook = model.register_forward_hook(hold)
            first = asyncio.create_task(sampler.sample([SamplingRequest(ids, SamplingParams(max_tokens=200), seed=1)]))
            assert await asyncio.to_thread(started.wait, 200)
            hook.remove()
            later = SamplingRequest((*ids[:60], 5, 6), SamplingParams(max_tokens=8), seed=2)
            asked = asyncio.create_task(sampler.sample([later]))
            await asyncio.sleep(0)
            second_asked.set()
            [second] = await asked
            assert sampler._loop.prefilled == 64 + 2
            assert second.logprobs == pytest.approx(plain_logprobs(model, (*ids[:60], 5, 6), second.ids), abs=1e-4)
            [completion] = await first
            assert completion.logprobs == pytest.approx(plain_logprobs(model, ids, completion.ids), abs=1e-4)

    run(go())


def test_the_prefix_cache_is_bounded_and_can_be_released(model: Any, tokenizer: Any, run: Any) -> None:
    asked = prompts(8, least=50, most=50)
    params = SamplingParams(max_tokens=2)
    per_token = 2 * 2 * (16 + 16) * 4  # layers, heads, key and value, float32

    async def computed(sampler: TorchSampler, number: int) -> int:
        before = sampler._loop.prefilled
        await sampler.sample([SamplingRequest(asked[number], params, conversation=str(number))])
        return sampler._loop.prefilled - before

    async def go() -> None:
        async with TorchSampler(model, tokenizer, cache_bytes=3 * 51 * per_token, eos_token_ids=()) as sampler:
            for number in range(8):
                assert await computed(sampler, number) == 50
            # The last three are cached, the others were evicted.
            assert [await computed(sampler, number) for number in (7, 6, 5)] == [1, 1, 1]
            assert await computed(sampler, 0) == 50
            await sampler.release("0")
            await sampler.release("nobody")
            assert await computed(sampler, 0) == 50

    run(go())


def test_long_conversations_wait_for_memory(model: Any, tokenizer: Any, run: Any, plain_logprobs: Any) -> None:
    """A long prompt among short ones does not reserve its length for all of them."""
    per_token = 2 * 2 * (16 + 16) * 4
    asked = [*prompts(20, least=10, most=30), *prompts(2, seed=1, least=400, most=400), *prompts(20, seed=2)]

    async def go() -> None:
        limit = 1000 * per_token
        async with TorchSampler(model, tokenizer, slot_bytes=limit, cache_bytes=0, eos_token_ids=()) as sampler:
            requests = [SamplingRequest(ids, SamplingParams(max_tokens=20), seed=n) for n, ids in enumerate(asked)]
            for request, completion in zip(requests, await sampler.sample(requests), strict=True):
                assert completion.logprobs == pytest.approx(
                    plain_logprobs(model, request.ids, completion.ids), abs=1e-4
                )
            kv = sampler._loop._batches[""]._kv
            assert (kv.slots + 1) * kv.length * per_token <= limit

    run(go())


# Ends of replies


def test_replies_end_at_stop_tokens_and_keep_them(model: Any, tokenizer: Any, run: Any) -> None:
    asked = prompts(10, least=4)

    async def go() -> None:
        async with TorchSampler(model, tokenizer, eos_token_ids=()) as sampler:
            free = await sampler.sample([SamplingRequest(ids, SamplingParams(max_tokens=30), seed=3) for ids in asked])
            for ids, completion in zip(asked, free, strict=True):
                stop = completion.ids[9]
                at = completion.ids.index(stop)
                params = SamplingParams(max_tokens=30, stop_token_ids=(stop,))
                [stopped] = await sampler.sample([SamplingRequest(ids, params, seed=3)])
                assert stopped.ids == completion.ids[: at + 1]
                assert stopped.finish_reason == "stop"

    run(go())


def test_the_models_own_stop_tokens_are_used(make_model: Any, tokenizer: Any, run: Any) -> None:
    """From the generation config, which may name several ids, and from the tokenizer."""
    model = make_model()
    model.generation_config.eos_token_id = list(range(0, 290, 2))

    async def go() -> None:
        async with TorchSampler(model, tokenizer) as sampler:
            ids = prompts(20)
            for completion in await sampler.sample(
                [SamplingRequest(i, SamplingParams(max_tokens=100), seed=1) for i in ids]
            ):
                assert completion.finish_reason == "stop"
                assert completion.ids[-1] % 2 == 0 or completion.ids[-1] == tokenizer.eos_token_id
                assert all(index % 2 for index in completion.ids[:-1])

    run(go())


def test_stop_strings_end_replies_across_token_boundaries(model: Any, tokenizer: Any, run: Any) -> None:
    asked = prompts(30, least=4)

    async def go() -> None:
        async with TorchSampler(model, tokenizer, eos_token_ids=()) as sampler:
            free = await sampler.sample([SamplingRequest(ids, SamplingParams(max_tokens=40), seed=5) for ids in asked])
            tried = 0
            for ids, completion in zip(asked, free, strict=True):
                # Three characters from the middle of the text: nearly always parts of several tokens.
                stop = completion.text[12:15]
                if "\ufffd" in stop or len(stop) < 3:
                    continue
                tried += 1
                params = SamplingParams(max_tokens=40, stop=("never said", stop))
                [stopped] = await sampler.sample([SamplingRequest(ids, params, seed=5)])
                assert stopped.finish_reason == "stop"
                assert stopped.text == completion.text[: completion.text.index(stop)]
                assert stopped.ids == completion.ids[: len(stopped.ids)]
                assert stop in tokenizer.decode(stopped.ids)
                assert stop not in tokenizer.decode(stopped.ids[:-1])
            assert tried > 3

    run(go())


def test_a_full_context_ends_replies(model: Any, tokenizer: Any, run: Any) -> None:
    async def go() -> None:
        async with TorchSampler(model, tokenizer, context_length=40, eos_token_ids=()) as sampler:
            assert sampler.context_length == 40
            [completion] = await sampler.sample([SamplingRequest(tuple(range(33)), SamplingParams(max_tokens=100))])
            assert (len(completion.ids), completion.finish_reason) == (7, "length")

    run(go())


# New weights


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_weight_sync_changes_the_weights_and_forgets_the_cache(
    make_model: Any, tokenizer: Any, run: Any, plain_logprobs: Any, deterministic: bool
) -> None:
    [ids] = prompts(1, least=70, most=70)
    new = make_model(seed=1)

    async def go() -> None:
        async with TorchSampler(make_model(), tokenizer, deterministic=deterministic) as sampler:
            await sampler.sample([SamplingRequest(ids, SamplingParams(max_tokens=5), conversation="c")])
            assert await sampler.sync_weights(WeightUpdate(new.state_dict().items())) == 1
            assert sampler.weight_version == 1
            [completion] = await sampler.sample([SamplingRequest(ids, SamplingParams(max_tokens=5), conversation="c")])
            assert completion.weight_version == 1
            assert completion.logprobs == pytest.approx(plain_logprobs(new, ids, completion.ids), abs=1e-4)

    run(go())


def test_running_replies_keep_their_weights(make_model: Any, tokenizer: Any, run: Any, plain_logprobs: Any) -> None:
    """Replies still queued at the weight sync also keep the old ones; requests after it get the new ones."""
    old, new = make_model(), make_model(seed=1)
    asked = prompts(6, least=5)

    async def go() -> None:
        async with TorchSampler(make_model(), tokenizer, max_batch=2, eos_token_ids=()) as sampler:
            request = [SamplingRequest(ids, SamplingParams(max_tokens=30), seed=1) for ids in asked]
            before = asyncio.create_task(sampler.sample(request))
            await asyncio.sleep(0)
            sync = asyncio.create_task(sampler.sync_weights(WeightUpdate(list(new.state_dict().items()))))
            await asyncio.sleep(0)
            after = asyncio.create_task(sampler.sample(request))
            assert await sync == 1
            for task, version, model in ((before, 0, old), (after, 1, new)):
                for ids, completion in zip(asked, await task, strict=True):
                    assert completion.weight_version == version
                    assert completion.logprobs == pytest.approx(plain_logprobs(model, ids, completion.ids), abs=1e-4)

    run(go())


def test_a_model_shared_with_its_trainer_needs_no_copy(
    model: Any, tokenizer: Any, run: Any, plain_logprobs: Any
) -> None:
    [ids] = prompts(1, least=40, most=40)

    async def go() -> None:
        async with TorchSampler(model, tokenizer) as sampler:
            await sampler.sample([SamplingRequest(ids, SamplingParams(max_tokens=3), conversation="c")])
            model.train()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            batch = torch.tensor([ids])
            model(batch, labels=batch).loss.backward()
            optimizer.step()
            assert await sampler.sync_weights(WeightUpdate((), kind="shared")) == 1
            [completion] = await sampler.sample([SamplingRequest(ids, SamplingParams(max_tokens=9), conversation="c")])
            assert not model.training
            assert completion.logprobs == pytest.approx(plain_logprobs(model, ids, completion.ids), abs=1e-4)

    run(go())


def test_a_mismatched_weight_sync_changes_nothing(
    make_model: Any, tokenizer: Any, run: Any, plain_logprobs: Any
) -> None:
    other = make_model(seed=1)
    complete = other.state_dict()
    short = {name: tensor for name, tensor in complete.items() if "layers.1.mlp" not in name}
    wrong = complete | {"model.norm.weight": torch.ones(3)}

    async def go() -> None:
        async with TorchSampler(make_model(), tokenizer) as sampler:
            for tensors, message in (
                (short, "lacks 3"),
                (wrong, r"model.norm.weight.*\(3,\)"),
                (complete | {"x": torch.ones(1)}, "'x'"),
            ):
                with pytest.raises(ValueError, match=message):
                    await sampler.sync_weights(WeightUpdate(list(tensors.items())))
            with pytest.raises(ValueError, match="kind='half'"):
                await sampler.sync_weights(WeightUpdate((), kind="half"))
            [completion] = await sampler.sample([SamplingRequest((1, 2, 3), SamplingParams(max_tokens=5))])
            assert completion.weight_version == 0
            assert completion.logprobs == pytest.approx(
                plain_logprobs(make_model(), (1, 2, 3), completion.ids), abs=1e-4
            )

    run(go())


# Errors


def test_an_invalid_prompt_is_an_error(model: Any, tokenizer: Any, run: Any) -> None:
    cases: list[tuple[tuple[int, ...], str]] = [
        ((), "request 1 is empty"), ((1,) * 512, "512 tokens"), ((1, 300), "outside 0..299"), ((-1,), "outside"),
    ]  # fmt: skip

    async def go() -> None:
        async with TorchSampler(model, tokenizer) as sampler:
            for ids, message in cases:
                with pytest.raises(ValueError, match=message):
                    await sampler.sample([SamplingRequest((1, 2)), SamplingRequest(ids)])
            [completion] = await sampler.sample([SamplingRequest((1, 2), SamplingParams(max_tokens=3))])
            assert completion.ids

    run(go())


def test_a_failure_in_the_model_fails_all_requests_and_the_sampler_recovers(
    model: Any, tokenizer: Any, run: Any, plain_logprobs: Any
) -> None:
    calls = 0

    def fail_later(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RuntimeError("the lights went out")

    async def go() -> None:
        async with TorchSampler(model, tokenizer, eos_token_ids=()) as sampler:
            hook = model.register_forward_pre_hook(fail_later)
            asked = [sampler.sample([SamplingRequest((n, 2), SamplingParams(max_tokens=50))]) for n in range(3)]
            results = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(r, SamplerError) and "the lights went out" in str(r) for r in results)
            hook.remove()
            [completion] = await sampler.sample([SamplingRequest((1, 2), SamplingParams(max_tokens=5))])
            assert completion.logprobs == pytest.approx(plain_logprobs(model, (1, 2), completion.ids), abs=1e-4)

    run(go())


def test_a_diverged_model_is_reported(model: Any, tokenizer: Any, run: Any) -> None:
    async def go() -> None:
        async with TorchSampler(model, tokenizer) as sampler:
            with torch.no_grad():
                model.model.norm.weight.fill_(float("nan"))
            await sampler.sync_weights(WeightUpdate((), kind="shared"))
            with pytest.raises(SamplerError, match="NaN"):
                await sampler.sample([SamplingRequest((1, 2))])
        with pytest.raises(ValueError, match="NaN"):
            TorchSampler(model, tokenizer)

    run(go())


def test_a_cancelled_request_frees_its_slot(model: Any, tokenizer: Any, run: Any) -> None:
    long = SamplingParams(max_tokens=500)

    async def go() -> None:
        async with TorchSampler(model, tokenizer, max_batch=1, eos_token_ids=()) as sampler:
            running = asyncio.create_task(sampler.sample([SamplingRequest((1, 2), long)]))
            queued = asyncio.create_task(sampler.sample([SamplingRequest((1, 3), long)]))
            started = threading.Event()
            model.register_forward_hook(lambda *_: started.set())
            assert await asyncio.to_thread(started.wait, 200)
            running.cancel()
            queued.cancel()
            await asyncio.gather(running, queued, return_exceptions=True)
            [completion] = await sampler.sample([SamplingRequest((1, 4), SamplingParams(max_tokens=3))])
            assert len(completion.ids) == 3

    run(go())


def test_closing_ends_the_thread_and_fails_running_requests(model: Any, tokenizer: Any, run: Any) -> None:
    others = set(sampler_threads())  # of earlier tests

    async def go() -> None:
        sampler = TorchSampler(model, tokenizer, max_batch=1, eos_token_ids=())
        running_calls = [
            asyncio.create_task(sampler.sample([SamplingRequest((1, n), SamplingParams(max_tokens=500))]))
            for n in range(3)
        ]
        await asyncio.sleep(0)
        await sampler.close()
        await sampler.close()
        for task in running_calls:
            with pytest.raises(SamplerError, match="closed"):
                await task
        for call in (sampler.sample([SamplingRequest((1,))]), sampler.sync_weights(WeightUpdate((), kind="shared"))):
            with pytest.raises(SamplerError, match="closed"):
                await call

    run(go())
    assert set(sampler_threads()) <= others


def test_an_unreferenced_sampler_ends_its_thread(model: Any, tokenizer: Any) -> None:
    others = set(sampler_threads())
    sampler = TorchSampler(model, tokenizer)
    (thread,) = set(sampler_threads()) - others
    del sampler
    gc.collect()
    thread.join(120)
    assert not thread.is_alive()


def test_a_sampler_survives_the_end_of_an_event_loop(model: Any, tokenizer: Any, run: Any) -> None:
    """The next event loop can use the sampler."""
    sampler = TorchSampler(model, tokenizer, eos_token_ids=())

    async def leave() -> None:
        task = asyncio.create_task(sampler.sample([SamplingRequest((1, 2), SamplingParams(max_tokens=400))]))
        await asyncio.sleep(0)
        assert not task.done()

    async def go() -> None:
        [completion] = await sampler.sample([SamplingRequest((1, 2), SamplingParams(max_tokens=4))])
        assert len(completion.ids) == 4
        await sampler.close()

    run(leave())
    run(go())


def test_an_interrupted_program_ends(tmp_path: Any, model: Any, tokenizer: Any) -> None:
    """Ctrl-C while replies are being sampled, with a sampler that nobody closes."""
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    script = f"""
import asyncio, signal, sys
from rllm_gym.samplers import SamplingRequest, SamplingParams, TorchSampler
sampler = TorchSampler({str(tmp_path)!r}, eos_token_ids=())
sampler.model.register_forward_hook(lambda *_: print("at work", flush=True))
asyncio.run(sampler.sample([SamplingRequest((1, 2), SamplingParams(max_tokens=500))] * 500))
"""
    program = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "at work\n"
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate(timeout=250)
    assert "KeyboardInterrupt" in errors
    assert "terminate called" not in errors
    assert program.returncode in (1, 130, -signal.SIGINT)


# Models

SMALL = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}


DECODERS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=16)),
    "mistral-sliding": lambda: MistralForCausalLM(MistralConfig(**SMALL, sliding_window=9)),
    "gemma3-two-kinds": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**SMALL, head_dim=8, sliding_window=7, layer_types=["sliding_attention", "full_attention"])
    ),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=2, n_positions=128, eos_token_id=None)
    ),
    "llama-eager": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, attn_implementation="eager")),
}


@for_every("kind", DECODERS)
def test_any_decoder_with_attention_is_supported(kind: str, tokenizer: Any, run: Any, plain_logprobs: Any) -> None:
    torch.manual_seed(0)
    model = DECODERS[kind]().eval()

    async def go() -> None:
        async with TorchSampler(model, tokenizer, eos_token_ids=()) as sampler:
            requests = [
                SamplingRequest(ids, SamplingParams(max_tokens=20), seed=n) for n, ids in enumerate(prompts(8, most=40))
            ]
            for request, completion in zip(requests, await sampler.sample(requests), strict=True):
                assert completion.logprobs == pytest.approx(
                    plain_logprobs(model, request.ids, completion.ids), abs=1e-4
                )

    run(go())


def test_a_model_without_plain_attention_is_refused(tokenizer: Any) -> None:
    from transformers import MambaConfig, MambaForCausalLM

    model = MambaForCausalLM(MambaConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1, state_size=4))
    others = set(sampler_threads())
    with pytest.raises(ValueError, match="TorchSampler needs a decoder"):
        TorchSampler(model, tokenizer)
    assert set(sampler_threads()) <= others


def test_bfloat16_models_are_supported(make_model: Any, tokenizer: Any, run: Any, plain_logprobs: Any) -> None:
    model = make_model(initializer_range=0.05).to(torch.bfloat16)

    async def go() -> None:
        async with TorchSampler(model, tokenizer) as sampler:
            requests = [SamplingRequest(ids, SamplingParams(max_tokens=10), seed=n) for n, ids in enumerate(prompts(6))]
            for request, completion in zip(requests, await sampler.sample(requests), strict=True):
                assert completion.logprobs == pytest.approx(
                    plain_logprobs(model, request.ids, completion.ids), abs=0.05
                )

    run(go())


def test_a_model_path_is_accepted(model: Any, tokenizer: Any, run: Any, plain_logprobs: Any, tmp_path: Any) -> None:
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)

    async def go() -> None:
        async with TorchSampler(tmp_path) as sampler:
            [completion] = await sampler.sample([SamplingRequest((1, 2, 3), SamplingParams(max_tokens=5))])
            assert completion.logprobs == pytest.approx(plain_logprobs(model, (1, 2, 3), completion.ids), abs=1e-4)

    run(go())


def test_the_error_that_ended_the_decoding_thread_is_reported(
    model: Any, tokenizer: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that the sampler was closed, which would hide the cause."""

    async def go() -> None:
        async with TorchSampler(model, tokenizer) as sampler:
            monkeypatch.setattr(DecodeBatch, "forget", lambda *_: 1 / 0)
            await sampler.release("a conversation")
            with pytest.raises(SamplerError, match=r"the decoding thread died.*ZeroDivisionError"):
                await sampler.sample([SamplingRequest((1, 2), SamplingParams(max_tokens=2))])

    run(go())
