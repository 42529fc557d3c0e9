"""`rllm-gym eval --base-url`: a model behind an endpoint is played like any other, and its key stays unseen."""

from __future__ import annotations

import json

from commands.command_line import assert_one_line_error, rllm_gym, rllm_gym_process
from samplers.hostile_endpoint import HostileEndpoint, answer, chat, refusal

LAKE = "rllm/FrozenLake-v0"
KEY = {"OPENAI_API_KEY": "sk-secret-0123456789"}


def test_an_endpoint_plays_and_is_asked_with_the_key_of_the_environment() -> None:
    with HostileEndpoint([answer(chat("down"))]) as server:
        result = rllm_gym_process(
            *("eval", LAKE, "--base-url", server.url, "--model", "some/model", "--tasks", "3", "--max-tokens", "7"),
            *("--max-turns", "2", "--requests-per-minute", "6000", "--json"),
            env=KEY,
        )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["episodes"], report["faults"]) == (3, {})
    assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer sk-secret-0123456789"}
    body = server.asked[0].body
    assert (body["model"], body["max_tokens"], body["messages"][-1]["role"]) == ("some/model", 7, "user")


def test_an_endpoint_that_refuses_is_one_clear_line_without_the_key() -> None:
    with HostileEndpoint([refusal("Incorrect API key provided: sk-secret-0123456789", 401)]) as server:
        result = rllm_gym("eval", LAKE, "--base-url", server.url, "--model", "m", "--tasks", "1", env=KEY)
    assert_one_line_error(result, "401", "OPENAI_API_KEY")
    assert "sk-secret" not in result.stderr + result.stdout


def test_options_that_cannot_work_are_one_clear_line() -> None:
    cases = [
        (["--base-url", "http://127.0.0.1:1/v1", "--device", "cpu"], ["--device", "the endpoint decides"]),
        (["--request-timeout", "3"], ["--request-timeout", "needs --base-url"]),
        (["--token-ids"], ["--token-ids", "needs --base-url"]),
        (["--base-url", "http://127.0.0.1:1/v1", "--token-ids"], ["needs --tokenizer"]),
        (["--base-url", "http://127.0.0.1:1/v1", "--api-key-env", "NO_SUCH"], ["NO_SUCH"]),
        (["--base-url", "localhost:8000"], ["base_url", "http://"]),
        (["--base-url", "http://127.0.0.1:1/v1", "--tokens-per-minute", "0"], ["tokens_per_minute"]),
        (["--base-url", "http://127.0.0.1:1/v1", "--context-length", "100"], ["tokenizer"]),
    ]
    for options, words in cases:
        assert_one_line_error(rllm_gym("eval", LAKE, "--model", "m", "--tasks", "1", *options), *words)
