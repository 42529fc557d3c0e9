"""Valid and invalid responses of endpoints: ids that were not sampled and invalid log-probs are never accepted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samplers.hostile_endpoint import HostileEndpoint, answer, chat, refusal

from rllm_gym.parsing.commands import parse_command
from rllm_gym.samplers import Completion, SamplerError, SamplingParams, SamplingRequest
from rllm_gym.samplers.openai_compatible import OpenAISampler
from rllm_gym.samplers.openai_http import HttpResponse, RequestRefused
from rllm_gym.samplers.openai_responses import PromptTooLong, chat_completion, logprob_mode, parse, token_completion
from rllm_gym.samplers.rate_limit import RateLimit

ASK = SamplingRequest((1, 2), SamplingParams(max_tokens=9), seed=2**62, messages=({"role": "user", "content": "?"},))


def tokens(ids: Any = "4, 5", logprobs: Any = "-0.5, -1", **choice: Any) -> dict[str, Any]:
    """Return a completion with token ids; texts stand for lists of numbers."""
    ids, logprobs = (json.loads(f"[{values}]") if isinstance(values, str) else values for values in (ids, logprobs))
    output = {"token_logprobs": logprobs} if isinstance(logprobs, list) else logprobs
    body = {"text": "ab", "finish_reason": "stop", "token_ids": ids, "logprobs": output}
    return {"choices": [body | choice], "usage": {"prompt_tokens": 3}}


def test_token_ids_may_be_numbers_or_token_names() -> None:
    assert token_completion(tokens(), 3) == Completion((4, 5), (-0.5, -1.0), "ab", "stop", 3)
    named = tokens(None, {"tokens": ["token_id:4", "token_id:5"], "token_logprobs": [-0.5, 1e-6]})
    # Values above 0 from rounding become 0.
    assert token_completion(named, 0) == Completion((4, 5), (-0.5, 0.0), "ab")


def test_a_reply_that_cannot_be_trained_on_is_refused() -> None:
    bad = [
        tokens(None),
        tokens(None, {"tokens": ["a", "b"], "token_logprobs": [-1, -1]}),
        tokens("4"),
        tokens("", ""),
        tokens("4, -5"),
        tokens("4, 5.0"),
        tokens("4, true"),
        tokens(logprobs=None),
        tokens(logprobs="-1, null"),
        tokens(logprobs="-1, NaN"),
        tokens(logprobs="-1, -Infinity"),
        tokens(logprobs="-1, 0.5"),
        tokens(text=None),
        tokens(finish_reason="abort"),
        {"choices": []},
        {"choices": [None]},
        [],
        None,
        "text",
    ]
    taken = []
    for reply in bad:
        with contextlib.suppress(RequestRefused):
            taken.append((reply, token_completion(reply, 0)))
    assert not taken


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "message", "content", "text", "token_ids", "logprobs", "tool_calls", "function"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values, json_values)
def test_any_json_is_parsed_or_refused(whole: Any, choice: Any) -> None:
    for content in (whole, {"choices": [choice]}, {"choices": [{"message": choice}]}):
        for read in (chat_completion, token_completion):
            try:
                completion = read(content, 0)
            except RequestRefused:
                continue
            assert isinstance(completion.text, str)
            assert len(completion.ids) == len(completion.logprobs)


def test_parsed_tool_calls_become_text_for_environments() -> None:
    function = {"name": "bash", "arguments": json.dumps({"command": "ls 'ü'"})}
    reply = chat(None, "tool_calls", tool_calls=[{"id": "1", "type": "function", "function": function}])
    completion = chat_completion(reply, 0)
    command = parse_command(completion.text)
    assert (command.name, command.arguments) == ("bash", {"command": "ls 'ü'"})
    assert completion.finish_reason == "stop"
    broken = chat("Look:", tool_calls=[{"function": {"name": "bash", "arguments": '{"command": '}}])
    assert (
        chat_completion(broken, 0).text == 'Look:\n<tool_call>{"name": "bash", "arguments": {"command": }</tool_call>'
    )


def test_only_errors_about_long_prompts_are_recognized_as_such() -> None:
    too_long = [
        "This model's maximum context length is 512 tokens. However, your prompt contains 600 input tokens",
        "max_tokens=1000 cannot be greater than max_model_len=512. Please request fewer output tokens.",
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
        "Requested token count exceeds the model's maximum context length of 4096 tokens.",
        "the request exceeds the available context size, try increasing it",
        "prompt is too long: 210000 tokens > 200000 maximum",
    ]
    others = ["temperature must be at most 2", "Token id 99 is out of vocabulary", "bad model"]
    expected = {(400, output): PromptTooLong for output in too_long} | {
        (500, output): RequestRefused for output in too_long
    }
    wrong = []
    for (status, output), kind in (expected | {(400, output): RequestRefused for output in others}).items():
        with pytest.raises(RequestRefused) as caught:
            parse(HttpResponse(status, {}, json.dumps({"error": {"message": output}}).encode()))
        if type(caught.value) is not kind:
            wrong.append((status, output, caught.value))
    assert not wrong


def test_log_probs_before_and_after_temperature_are_distinguished() -> None:
    at_one = {1: -1.0, 2: -2.0, 3: -4.0}
    assert logprob_mode(at_one, {1: -1.0, 3: -4.0}) == "raw"
    assert logprob_mode(at_one, {1: -0.2, 2: -2.2, 3: -6.2}) == "processed"
    assert logprob_mode(at_one, {7: -1.0}) == "unknown"
    assert logprob_mode({1: -1.0, 2: -1.001}, {1: -1.0, 2: -1.002}) == "unknown"
    assert logprob_mode(at_one, {1: -0.5, 3: -50.0}) == "unknown"


# Requests


def sample_once(server: HostileEndpoint, *requests: SamplingRequest, **arguments: Any) -> list[Completion]:
    async def go() -> list[Completion]:
        settings: dict[str, Any] = {"api_key": "", "retries": 0, "timeout": 100.0} | arguments
        async with OpenAISampler(model="m", base_url=server.url, **settings) as sampler:
            return await sampler.sample(requests or [ASK])

    return asyncio.run(go())


def scaled(mode: float) -> list[bytes]:
    """Return responses to a probe: the list of models, then one token at temperature 1 and at 1/2."""
    models = {"data": [{"id": "m", "max_model_len": 64}]}
    tables = [{"token_id:4": -1.0, "token_id:5": -3.0}, {"token_id:4": -0.5, "token_id:5": -0.5 - 2.0 * mode}]
    replies = []
    for table in tables:
        output = {"token_logprobs": [table["token_id:4"]], "top_logprobs": [table]}
        replies.append(answer(tokens("4", output)))
    return [answer(models), *replies]


def test_requests_override_the_sampling_defaults_of_the_server() -> None:
    last = answer(tokens())
    with HostileEndpoint([*scaled(2), last]) as server:
        params = SamplingParams(temperature=0.7, max_tokens=100, stop_token_ids=(9,))
        (completion,) = sample_once(server, SamplingRequest((1, 2), params, seed=2**62), token_ids=True)
    assert completion.ids == (4, 5)
    received = server.received[-1].body
    assert server.received[-1].line.startswith("POST /v1/completions ")
    assert (received["prompt"], received["temperature"], received["stop_token_ids"]) == ([1, 2], 0.7, [9])
    assert received["max_tokens"] == 62  # what the context leaves
    assert (received["top_p"], received["top_k"], received["min_p"], received["repetition_penalty"]) == (
        1.0,
        0,
        0.0,
        1.0,
    )
    assert received["seed"] == 2**62


def test_top_p_is_refused_if_log_probs_are_taken_after_it() -> None:
    with HostileEndpoint([*scaled(2), b""]) as server, pytest.raises(SamplerError, match=r"top_p=0\.9"):
        sample_once(server, SamplingRequest((1,), SamplingParams(top_p=0.9)), token_ids=True)


def test_temperatures_are_refused_if_log_probs_are_those_at_temperature_1() -> None:
    """Training would use wrong values silently. Truncation happens after such log-probs are taken."""
    warm, cut = SamplingParams(temperature=0.7), SamplingParams(top_k=1, max_tokens=3)
    refused = pytest.raises(SamplerError, match=r"temperature=0\.7; .*processed_logprobs")
    with HostileEndpoint([*scaled(1), answer(tokens("4"))]) as server, refused:
        sample_once(server, SamplingRequest((1,), warm), token_ids=True)
    with HostileEndpoint([*scaled(1), answer(tokens("4", "-1"))]) as server:
        assert sample_once(server, SamplingRequest((1,), cut), token_ids=True)[0].logprobs == (-1.0,)


def test_a_refused_key_is_an_error_in_every_mode() -> None:
    for token_ids in (True, None):
        with HostileEndpoint([refusal("no such key", 401)]) as server, pytest.raises(SamplerError, match="401"):
            sample_once(server, token_ids=token_ids)


def test_an_endpoint_without_token_ids_is_used_only_where_allowed() -> None:
    plain = answer({"choices": [{"text": "x", "logprobs": None}]})
    with HostileEndpoint([answer({"data": []}), plain]) as server, pytest.raises(SamplerError, match="no token ids"):
        sample_once(server, token_ids=True)
    with HostileEndpoint([answer({"data": []}), plain, answer(chat())]) as server:
        assert sample_once(server, token_ids=None)[0].text == "hello"
    added = answer(tokens("4", "-1") | {"usage": {"prompt_tokens": 4}})
    with (
        HostileEndpoint([answer({"data": []}), added]) as server,
        pytest.raises(SamplerError, match="read as 4 tokens"),
    ):
        sample_once(server, token_ids=True)


def test_a_reply_without_its_token_ids_is_an_error() -> None:
    with (
        HostileEndpoint([*scaled(1), answer(tokens(None))]) as server,
        pytest.raises(SamplerError, match="no token ids"),
    ):
        sample_once(server, token_ids=True)


def test_more_tokens_than_requested_are_an_error() -> None:
    with (
        HostileEndpoint([*scaled(1), answer(tokens("4, 5, 6", "-1, -1, -1"))]) as server,
        pytest.raises(SamplerError, match="3 tokens, more than max_tokens=2"),
    ):
        sample_once(server, SamplingRequest((1, 2), SamplingParams(max_tokens=2)), token_ids=True)


def test_a_full_context_shortens_replies_and_then_ends_the_conversation() -> None:
    too_long = refusal("maximum context length is 8 tokens", 400)
    with HostileEndpoint([too_long, answer(chat("short"))]) as server:
        assert sample_once(server)[0].text == "short"
    assert [received.body.get("max_tokens") for received in server.received] == [9, None]
    with HostileEndpoint([too_long]) as server:
        assert sample_once(server)[0].finish_reason == "context_length"


def test_another_name_of_max_tokens_is_learned_from_the_error() -> None:
    output = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
    with HostileEndpoint([refusal(output, 400), answer(chat())]) as server:

        async def go() -> None:
            async with OpenAISampler(model="m", base_url=server.url, api_key="", retries=0) as sampler:
                await sampler.sample([ASK])
                await sampler.sample([ASK])

        asyncio.run(go())
    names = [sorted(name for name in received.body if name.startswith("max_")) for received in server.received]
    assert names == [["max_tokens"], ["max_completion_tokens"], ["max_completion_tokens"]]


def test_extra_fields_are_added_and_removed() -> None:
    with HostileEndpoint([answer(chat())]) as server:
        sample_once(server, extra_body={"seed": None, "reasoning_effort": "low"})
    assert "seed" not in server.received[0].body
    assert server.received[0].body["reasoning_effort"] == "low"


def test_a_query_of_the_base_url_is_sent_with_every_request() -> None:
    with HostileEndpoint([answer(chat())]) as server:

        async def go() -> None:
            url = server.url + "/?api-version=2"
            async with OpenAISampler(model="m", base_url=url, api_key="") as sampler:
                await sampler.sample([ASK])

        asyncio.run(go())
    assert server.received[0].line == "POST /v1/chat/completions?api-version=2 HTTP/1.1"


def test_a_rate_limit_spaces_requests_evenly() -> None:
    with HostileEndpoint([answer(chat())]) as server:
        began = time.monotonic()
        sample_once(server, *[ASK] * 5, rate_limit=RateLimit(requests_per_minute=600))
        assert time.monotonic() - began > 0.39


def test_an_unknown_model_is_reported_with_the_available_ones() -> None:
    listed = answer({"data": [{"id": "left"}, {"id": "right"}]})
    output = r"404: no such model .*'m'.*left, right"
    with HostileEndpoint([refusal("no such model", 404), listed]) as server, pytest.raises(SamplerError, match=output):
        sample_once(server)


def test_arguments_out_of_range_are_refused() -> None:
    out_of_range: list[dict[str, Any]] = [
        {"timeout": 0}, {"retries": -1}, {"parallel": 0}, {"max_reply_bytes": 0}, {"model": ""}, {"max_pause": -1},
    ]  # fmt: skip
    taken = []
    for wrong in out_of_range:
        with contextlib.suppress(ValueError):
            OpenAISampler(**({"model": "m", "base_url": "http://127.0.0.1:1", "api_key": ""} | wrong))
            taken.append(wrong)
    assert not taken
