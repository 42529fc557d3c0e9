"""The OpenAI-compatible sampler with vLLM's own server: the ids and log-probs that training needs, and adapters."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import vllm_models
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from samplers.vllm_server import OPTIONS, relay

from rllm_gym.engine import AgentExecutionEngine
from rllm_gym.samplers import SamplerError, SamplingParams, SamplingRequest, VLLMServerSampler, WeightUpdate
from rllm_gym.samplers.openai_compatible import OpenAISampler
from rllm_gym.samplers.protocol import Probe
from tests.waiting import until

pytest.importorskip("vllm")
pytestmark = pytest.mark.long  # the server takes long to start; test_vllm_in_process.py is in every run

Run = Callable[[Coroutine[Any, Any, Any]], Any]
PROMPT = (5, 77, 300, 12, 8)


CONTEXT, RANK = OPTIONS["context_length"], OPTIONS["lora_rank"]


@pytest.fixture
def url(vllm_server: VLLMServerSampler) -> Iterator[str]:
    with relay(vllm_server) as address:
        yield address


def open_sampler(url: str, **changes: Any) -> OpenAISampler:
    settings: dict[str, Any] = {"model": "base", "base_url": url, "api_key": "", "token_ids": True}
    return OpenAISampler(**(settings | changes))


@pytest.fixture(scope="module")
def model(vllm_folder: Path) -> Any:
    return vllm_models.load(vllm_folder)


def largest_gap(model: Any, requests: list[SamplingRequest], completions: Any) -> float:
    """Return the largest gap between the returned log-probs and those of a plain forward pass over the same ids."""
    gaps = []
    for request, completion in zip(requests, completions, strict=True):
        assert len(completion.ids) == len(completion.logprobs) >= 1
        with torch.no_grad():
            logits_TV = model(torch.tensor([[*request.ids, *completion.ids]])).logits[0].float()
        logp_TV = logits_TV.log_softmax(-1)
        for place, (token, logp) in enumerate(zip(completion.ids, completion.logprobs, strict=True)):
            gaps.append(abs(float(logp_TV[len(request.ids) - 1 + place, token]) - logp))
    return max(gaps)


def probe_of(model: Any) -> Probe:
    ids = (*PROMPT, 40, 41, 42)
    with torch.no_grad():
        logp_TV = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    return Probe(ids, tuple(float(logp_TV[place, token]) for place, token in enumerate(ids[1:])))


def test_replies_have_the_ids_and_log_probs_of_the_model(url: str, model: Any, run: Run) -> None:
    params = SamplingParams(max_tokens=24)
    requests = [SamplingRequest((*PROMPT, number), params, seed=number) for number in range(24)]

    async def scenario() -> Any:
        async with open_sampler(url) as sampler:
            assert sampler.returns_tokens
            assert sampler.context_length == CONTEXT
            return await sampler.sample(requests), await sampler.sample(requests[:4])

    completions, again = run(scenario())
    assert largest_gap(model, requests, completions) < 1e-4
    assert len({completion.ids for completion in completions}) == 24
    assert [completion.ids for completion in again] == [completion.ids for completion in completions[:4]]
    assert {completion.finish_reason for completion in completions} <= {"stop", "length"}


def test_stops_greedy_sampling_and_limits_work_as_in_every_sampler(url: str, model: Any, run: Run) -> None:
    async def scenario() -> None:
        async with open_sampler(url) as sampler:
            plain = SamplingRequest(PROMPT, SamplingParams(max_tokens=12), seed=5)
            (free,) = await sampler.sample([plain])
            stop_id = free.ids[3]
            stopped = SamplingRequest(PROMPT, SamplingParams(max_tokens=12, stop_token_ids=(stop_id,)), seed=5)
            (ended,) = await sampler.sample([stopped])
            first = free.ids.index(stop_id)
            assert ended.ids == free.ids[: first + 1]
            assert ended.finish_reason == "stop"

            word = next(letter for letter in free.text[1:] if letter.isascii() and letter.isprintable())
            (cut,) = await sampler.sample(
                [SamplingRequest(PROMPT, SamplingParams(max_tokens=12, stop=(word,)), seed=5)]
            )
            assert word not in cut.text
            assert free.ids[: len(cut.ids)] == cut.ids
            assert len(cut.logprobs) == len(cut.ids)

            greedy = SamplingRequest(PROMPT, SamplingParams(temperature=0, max_tokens=4))
            completions = await sampler.sample([greedy])
            assert largest_gap(model, [greedy], completions) < 1e-4
            with torch.no_grad():
                assert int(model(torch.tensor([PROMPT])).logits[0, -1].argmax()) == completions[0].ids[0]

            almost = SamplingRequest((9,) * (CONTEXT - 3), SamplingParams(max_tokens=50))
            (short,) = await sampler.sample([almost])
            assert len(short.ids) <= 3

            with pytest.raises(ValueError, match=f"{CONTEXT} tokens"):
                await sampler.sample([plain, SamplingRequest((9,) * CONTEXT)])
            with pytest.raises(ValueError, match="empty"):
                await sampler.sample([SamplingRequest(())])
            with pytest.raises(SamplerError, match="vocabulary"):
                await sampler.sample([SamplingRequest((10_000_000,))])

    run(scenario())


def test_log_probs_of_another_distribution_than_requested_are_refused(url: str, model: Any, run: Run) -> None:
    """This server returns those at the requested temperature, after the cuts of top_p and top_k."""
    warm = [SamplingRequest((*PROMPT, 6), SamplingParams(temperature=0.7, max_tokens=8), seed=1)]

    async def scenario() -> None:
        async with open_sampler(url) as sampler:
            assert vllm_models.largest_gap(model, warm, await sampler.sample(warm)) < 1e-4
            with pytest.raises(SamplerError, match="top_k=1"):
                await sampler.sample([SamplingRequest(PROMPT, SamplingParams(top_k=1, max_tokens=3))])

    run(scenario())


def test_a_default_vllm_server_with_a_key_and_log_probs_at_temperature_1(
    vllm_folder: Path, tmp_path: Path, run: Run
) -> None:
    """At any other temperature, training would use wrong log-probs silently."""

    async def scenario(url: str) -> None:
        async with open_sampler(url, api_key=KEY) as sampler:
            with pytest.raises(SamplerError, match=r"temperature=0\.7.*processed_logprobs"):
                await sampler.sample([SamplingRequest(PROMPT, SamplingParams(temperature=0.7))])
            # Truncation happens after the log-probs are taken.
            params = SamplingParams(top_k=1, max_tokens=3)
            (completion,) = await sampler.sample([SamplingRequest(PROMPT, params)])
            assert completion.logprobs[0] < -0.01
        with pytest.raises(SamplerError, match="401"):
            open_sampler(url, api_key="sk-wrong")

    with plain_server(vllm_folder, tmp_path / "server.log") as url:
        run(scenario(url))


KEY = "sk-loopback-0123456789"


@contextlib.contextmanager
def plain_server(folder: Path, log: Path) -> Iterator[str]:
    """vLLM's own server on loopback, started by its own command."""
    # Kept open, so that no other process gets the port before vLLM, which may share it: both set SO_REUSEADDR.
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port = reserved.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--served-model-name", "base", "--host", "127.0.0.1", "--port", str(port), "--api-key", KEY]
    command += ["--max-model-len", str(CONTEXT), "--dtype", "float32", "--enforce-eager"]
    command += ["--distributed-executor-backend", "uni"]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }

    def answers() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60):
            return True
        return False

    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **settings}, start_new_session=True
        )
    try:
        assert until(answers, 240), "no answer of vLLM's server"
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        # The whole session: the engine is a separate process.
        for kill_signal in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, kill_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        reserved.close()


def test_chat_needs_no_tokens_and_a_full_context_ends_the_episode(url: str, run: Run) -> None:
    async def scenario() -> None:
        async with open_sampler(url, token_ids=False) as sampler:
            ask = ({"role": "user", "content": "hello"},)
            (completion,) = await sampler.sample([SamplingRequest((), SamplingParams(max_tokens=5), messages=ask)])
            assert completion.ids == ()
            assert completion.text
            (rest,) = await sampler.sample([SamplingRequest((), SamplingParams(max_tokens=10 * CONTEXT), messages=ask)])
            assert rest.finish_reason in ("length", "stop")
            long = ({"role": "user", "content": "z" * 10 * CONTEXT},)
            (none,) = await sampler.sample([SamplingRequest((), SamplingParams(max_tokens=5), messages=long)])
            assert (none.finish_reason, none.text) == ("context_length", "")

            engine = AgentExecutionEngine("rllm/FrozenLake-v0", sampler=sampler)
            episodes = await engine.run(range(2))
            assert {episode.stop_reason.value for episode in episodes} <= {"context_length", "prompt_too_long"}
            assert not engine.stats.faults

    run(scenario())


def test_the_probe_reports_why_there_are_no_token_ids(url: str, run: Run) -> None:
    with pytest.raises(SamplerError, match=r"404.*`other` does not exist"):
        open_sampler(url, model="other")
    wrong_url = open_sampler(url + "/nowhere", token_ids=None)
    assert not wrong_url.returns_tokens
    assert "404" in wrong_url.no_tokens_reason
    run(wrong_url.close())


def test_synced_adapters_are_served_under_their_own_version(
    url: str, vllm_folder: Path, model: Any, run: Run, tmp_path: Path
) -> None:
    """Five in a row, each compared with PEFT: a stale one, or one of the wrong name, would be far off."""
    base = vllm_models.load(vllm_folder)
    adapted = get_peft_model(base, LoraConfig(r=RANK, lora_alpha=32, target_modules="all-linear", use_rslora=True))
    requests = [SamplingRequest((*PROMPT, number), SamplingParams(max_tokens=8), seed=number) for number in range(4)]

    async def scenario() -> None:
        async with open_sampler(url, adapter_folder=tmp_path) as sampler:
            assert (await sampler.sample(requests))[0].weight_version == 0
            for version in range(1, 6):
                torch.manual_seed(version)
                with torch.no_grad():
                    for name, parameter in adapted.named_parameters():
                        if "lora_" in name:
                            parameter.normal_(std=0.1)
                update = WeightUpdate(
                    list(get_peft_model_state_dict(adapted).items()),
                    kind="lora",
                    lora_config=adapted.peft_config["default"].to_dict(),
                    probe=probe_of(adapted),
                )
                assert await sampler.sync_weights(update) == sampler.weight_version == version
                completions = await sampler.sample(requests)
                assert {completion.weight_version for completion in completions} == {version}
                assert largest_gap(adapted, requests, completions) < 1e-4
                assert largest_gap(model, requests, completions) > 1e-2
            # Adapters that differ from the trainer's are detected, and the previous ones stay in service.
            stale = WeightUpdate(update.tensors, "lora", update.lora_config, probe=probe_of(model))
            with pytest.raises(SamplerError, match="stale"):
                await sampler.sync_weights(stale)
            assert largest_gap(adapted, requests, await sampler.sample(requests)) < 1e-4
            with pytest.raises(SamplerError, match="kind='full'"):
                await sampler.sync_weights(WeightUpdate([]))

    run(scenario())
    assert len(list(tmp_path.iterdir())) == 3  # the one in service, the one before, and the refused one


def test_adapters_are_served_by_name(url: str, vllm_folder: Path, run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_sampler(url, adapter_folder=tmp_path) as sampler:
            await vllm_models.check_named_weights(sampler, vllm_folder, 1, mixed=False)
            with pytest.raises(SamplerError, match=r"kind='full', named 'old'"):
                await sampler.sync_weights(WeightUpdate([], name="old"))

    run(scenario())
    assert not list(tmp_path.iterdir())


def test_requirements_of_a_weight_sync_are_reported() -> None:
    with pytest.raises(ValueError, match="token_ids=True"):
        OpenAISampler(model="m", base_url="http://127.0.0.1:1", api_key="", adapter_folder="/nowhere")
    sampler = OpenAISampler(model="m", base_url="http://127.0.0.1:1", api_key="")
    with pytest.raises(SamplerError, match="adapter_folder"):
        asyncio.run(sampler.sync_weights(WeightUpdate([])))
    asyncio.run(sampler.close())
