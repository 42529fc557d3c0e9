"""`rllm-gym eval --url`: a model behind an endpoint is evaluated like any other, and its key is never printed."""

from __future__ import annotations

from commands.command_line import assert_brief_error, only_result, rllm_gym, rllm_gym_process
from samplers.hostile_endpoint import HostileEndpoint, answer, chat, refusal

LAKE = "rllm/FrozenLake-v0"
KEY = {"OPENAI_API_KEY": "sk-secret-0123456789"}


def test_an_endpoint_is_evaluated_with_the_key_from_the_environment_variable() -> None:
    with HostileEndpoint([answer(chat("down"))]) as server:
        result = rllm_gym_process(
            *(
                "eval",
                LAKE,
                "--url",
                server.url,
                "--model.path",
                "some/model",
                "--limit",
                "3",
                "--sampling.max-tokens",
                "7",
            ),
            *("--max-turns", "2", "--requests-per-minute", "6000", "--json"),
            env=KEY,
        )
    assert result.returncode == 0, result.stderr
    report = only_result(result.stdout)
    assert (report["episodes"], report["faults"]) == (3, {})
    assert {received.headers["authorization"] for received in server.received} == {"Bearer sk-secret-0123456789"}
    body = server.received[0].body
    assert (body["model"], body["max_tokens"], body["messages"][-1]["role"]) == ("some/model", 7, "user")


def test_an_error_of_the_endpoint_is_one_line_without_the_key() -> None:
    with HostileEndpoint([refusal("Incorrect API key provided: sk-secret-0123456789", 401)]) as server:
        result = rllm_gym("eval", LAKE, "--url", server.url, "--model.path", "m", "--limit", "1", env=KEY)
    assert_brief_error(result, "401", "OPENAI_API_KEY")
    assert "sk-secret" not in result.stderr + result.stdout


def test_invalid_options_are_one_line_errors() -> None:
    cases = [
        (
            ["--url", "http://127.0.0.1:1/v1", "--model.device", "cpu"],
            ["--model.device", "has no effect with --url"],
        ),
        (["--request-timeout", "3"], ["--request-timeout", "requires --url"]),
        (["--url", "http://127.0.0.1:1/v1", "--max-turns", "99"], ["--max-turns 99 has no effect", "after 10 turns"]),
        (["--token-ids"], ["--token-ids", "requires --url"]),
        (["--url", "http://127.0.0.1:1/v1", "--token-ids"], ["requires --tokenizer"]),
        (["--url", "http://127.0.0.1:1/v1", "--api-key-env", "NO_SUCH"], ["NO_SUCH"]),
        (["--url", "localhost:8000"], ["base_url", "http://"]),
        (["--url", "http://127.0.0.1:1/v1", "--tokens-per-minute", "0"], ["tokens_per_minute"]),
        (["--url", "http://127.0.0.1:1/v1", "--sampling.context-length", "100"], ["tokenizer"]),
    ]
    for options, words in cases:
        assert_brief_error(rllm_gym("eval", LAKE, "--model.path", "m", "--limit", "1", *options), *words)
