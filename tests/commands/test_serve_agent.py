"""`rllm-gym serve-agent` as a process: clients, its log, its end, and a model that was trained on the log."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from commands.command_line import assert_brief_error, rllm_gym
from commands.served_process import served
from peft import AutoPeftModelForCausalLM

from rllm_gym.engine import load_episodes
from trainers import commands
from trainers.tiny_model import make_tiny_model

TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def test_clients_are_served_or_refused_and_every_call_is_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "replies.txt").write_text("yes\nno\n")
    log = tmp_path / "calls.jsonl"
    words = (f"scripted:{tmp_path}/replies.txt", "--log", str(log), "--key-env", "KEY", "--parallel", "1")
    with served(*words, KEY="secret") as (url, err):
        client = openai.OpenAI(base_url=url, api_key="secret", max_retries=0)
        assert [model.id for model in client.models.list()] == [words[0]]
        messages: Any = [{"role": "user", "content": "hi"}]
        reply: Any = client.chat.completions.create(model="any", messages=messages)
        messages += [reply.choices[0].message, {"role": "user", "content": "sure?"}]
        events: Any = list(client.chat.completions.create(model="any", messages=messages, stream=True))
        assert "".join(event.choices[0].delta.content or "" for event in events) == "no"
        assert events[0].conversation_id == reply.conversation_id
        # A script, as any endpoint that takes messages, would not see the tools.
        with pytest.raises(openai.BadRequestError, match="tools are not supported"):
            client.chat.completions.create(model="any", messages=messages, tools=[TOOL])
        sent = {"Authorization": "Bearer secret"}
        for headers, body, status in (
            ({}, b"{}", 401),
            (sent, b"{", 400),
            (sent, json.dumps({"messages": [{"role": "user", "content": "x"}], "n": 0}).encode(), 400),
            (
                sent,
                json.dumps({"messages": [{"role": "user", "content": "x"}], "n": 18}).encode(),
                400,
            ),  # 1 and 16 wait
            (sent, b" " * ((8 << 20) + 1), 413),
        ):
            refused = httpx.post(f"{url}/chat/completions", content=body, headers=headers, timeout=60)
            assert refused.status_code == status, refused.text
            assert refused.json()["error"]["message"]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["conversation_id"] for line in lines] == [reply.conversation_id] * 2
    assert [line["id"] for line in lines] == [reply.id, events[0].id]
    assert f"2 calls are in {log}" in err[0]
    output = tmp_path / "episodes.jsonl"
    assert rllm_gym("import-logs", str(log), "--output", str(output)).returncode == 0
    (episode,) = load_episodes(output)
    assert [step.model_response for step in episode.trajectories[0].steps] == ["yes", "no"]


def test_what_cannot_be_served_is_named(tmp_path: Path) -> None:
    scripted = tmp_path / "replies.txt"
    scripted.write_text("yes\n")
    run = tmp_path / "run"
    run.mkdir()
    for words, message in (
        ((f"scripted:{scripted}", "--host", "0.0.0.0"), "requires --key-env"),
        ((f"scripted:{scripted}", "--key-env", "NOT_SET"), "environment variable is not set"),
        ((f"scripted:{scripted}", "--port", "99999"), "--port 99999 must be from 0 to 65535"),
        ((f"scripted:{scripted}", "--grace", "nan"), "--grace nan must be a number of seconds"),
        ((f"scripted:{scripted}", "--log-limit", "5"), "--log-limit 5 has no effect without --log"),
        ((f"scripted:{scripted}", "--sampling.context-length", "5"), "--sampling.context-length 5 has no effect"),
        ((f"scripted:{scripted}", "--sampling.temperature", "-1"), "temperature"),
        ((f"scripted:{scripted}", "--token-ids"), "requires --url"),
        ((f"scripted:{tmp_path}/nothing.txt",), "nothing.txt"),
        ((str(run),), "cannot be loaded"),
    ):
        assert_brief_error(rllm_gym("serve-agent", "--port", "0", *words), message)
    (run / "manifest.json").write_text(json.dumps({"config": {}}))
    assert_brief_error(rllm_gym("serve-agent", str(run)), "manifest.json is not that of a run")
    (run / "manifest.json").write_text(json.dumps({"config": {"model": {"dtype": "auto"}}}))
    assert_brief_error(rllm_gym("serve-agent", str(run)), "has no final model", "best_model")


@pytest.mark.long
def test_a_run_is_served_and_its_log_is_trained_on_with_one_command_each(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"prompt": f"say a letter {n}", "answer": str(n)}) for n in range(20)))
    make_tiny_model(tmp_path / "tiny", hidden_size=32, num_heads=1, num_layers=1, vocab_size=300)
    words = ["--dataset", str(rows), "--reward", "envs.own_rewards:letters", "--steps", "1", "--no-progress"]
    words += ["--env.agent-kwargs.system_prompt", "Be brief.", "--model.path", str(tmp_path / "tiny")]
    words += ["--sampling.max-tokens", "5", "--sampling.temperature", "0.9", "--algorithm.group-size", "2"]
    assert commands.train([*words, "--validation", "none", "--output", str(tmp_path / "run")]) == 0

    log, feedback = tmp_path / "calls.jsonl", []
    with served(str(tmp_path / "run"), "--log", str(log), number=signal.SIGINT) as (url, _):
        client = openai.OpenAI(base_url=url, api_key="any")
        for number in range(12):
            messages: Any = [{"role": "user", "content": f"say a letter {number % 2}"}]
            for _ in range(2):
                reply = client.chat.completions.create(model="any", messages=messages, tools=[TOOL])
                assert reply.usage is not None
                assert reply.usage.completion_tokens <= 5
                messages += [reply.choices[0].message, {"role": "user", "content": "and another one"}]
            feedback.append({"conversation_id": reply.conversation_id, "reward": number / 12})  # type: ignore[attr-defined]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == 24
    assert {(line["messages"][0]["content"], line["temperature"]) for line in lines} == {("Be brief.", 0.9)}

    (tmp_path / "feedback.jsonl").write_text("\n".join(map(json.dumps, feedback)))
    episodes = str(tmp_path / "episodes.jsonl")
    result = rllm_gym("import-logs", str(log), "--feedback", str(tmp_path / "feedback.jsonl"), "--output", episodes)
    assert "12 episodes" in result.stdout, result.stderr
    assert "12 of them with tokens" in result.stdout
    assert commands.merge([str(tmp_path / "run" / "model"), "--output", str(tmp_path / "merged")]) == 0
    model = ["--model.path", str(tmp_path / "merged"), "--epochs", "1", "--no-progress"]
    better, preferred = tmp_path / "sft", tmp_path / "dpo"
    words = ["--demonstrations.file", episodes, "--demonstrations.min-reward", "0.5", "--output", str(better)]
    assert commands.sft([*model, *words]) == 0
    assert commands.dpo([*model, "--preferences.file", episodes, "--output", str(preferred)]) == 0
    replay, words = tmp_path / "replay.jsonl", ["--feedback", str(tmp_path / "feedback.jsonl"), "--as", "replay"]
    assert "2 prompts" in rllm_gym("import-logs", str(log), *words, "--output", str(replay)).stdout
    words = ["--dataset", str(replay), "--validation-dataset", str(replay), "--validation", "none", "--reward"]
    words += ["rllm_gym.serving:logged_reward", "--env.agent", "rllm_gym.serving:LoggedEpisodes"]
    words += ["--sampling.temperature", "0.9", "--model.path", str(tmp_path / "merged"), "--steps", "1"]
    assert commands.train([*words, "--no-progress", "--output", str(tmp_path / "off-policy")]) == 0
    again = tmp_path / "again.jsonl"
    with served(str(better), "--log", str(again)) as (url, _):
        client = openai.OpenAI(base_url=url, api_key="any")
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": "hi"}], max_tokens=3)
    (line,) = map(json.loads, again.read_text().splitlines())
    assert len(line["ids"]) <= 3
    assert line["model_version"] != lines[0]["model_version"]
    assert AutoPeftModelForCausalLM.from_pretrained(preferred / "model").peft_config
