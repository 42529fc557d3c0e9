"""Rated conversations of a log are trained on off-policy, with the tokens and log-probs that were recorded."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from commands.command_line import rllm_gym
from echo_config import echo_config

from rllm_gym.chat_server import ChatRequest
from rllm_gym.samplers import SamplingParams, TorchSampler
from rllm_gym.serving import CallLog, ServedAgent
from trainers.loop import NoTrainableEpisodes, train
from trainers.run.metrics import read_metrics


async def converse(agent: ServedAgent, text: str) -> str:
    """Have a conversation of two turns, the first of which is said again in other words; return its id."""
    messages = [{"role": "user", "content": text}]
    reply = await agent.respond(ChatRequest(tuple(messages)))
    for more in ("go on", "no, go on"):
        turns = (*messages, reply.message, {"role": "user", "content": more})
        again = await agent.respond(ChatRequest(turns))
        assert again.conversation == reply.conversation
    return reply.conversation


def test_a_log_is_trained_on_with_its_own_logprobs(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "env": {"id": "", "agent": "rllm_gym.serving:LoggedEpisodes"},
        "algorithm": {"group_size": 4, "groups_per_step": 2},
        "validation": None,
        "steps": 2,
        "save_episodes_every": 1,
    }
    config = echo_config(tmp_path, **options)

    async def serve(log: CallLog) -> list[str]:
        async with TorchSampler(str(tmp_path / "tiny"), num_threads=1) as sampler:
            agent = ServedAgent(sampler, SamplingParams(max_tokens=5), log=log)
            return await asyncio.gather(*(converse(agent, f"question {number % 2}") for number in range(8)))

    with CallLog(tmp_path / "calls.jsonl", max_bytes=1 << 30) as log:
        names = asyncio.run(serve(log))
    feedback = [json.dumps({"conversation_id": name, "reward": index / 8}) for index, name in enumerate(names)]
    (tmp_path / "feedback.jsonl").write_text("\n".join(feedback))
    words = [
        "--as",
        "replay",
        "--feedback",
        str(tmp_path / "feedback.jsonl"),
        "--output",
        str(tmp_path / "replay.jsonl"),
    ]
    shown = rllm_gym("import-logs", str(tmp_path / "calls.jsonl"), *words)
    assert "2 prompts" in shown.stdout, shown.stderr
    rows = [json.loads(line) for line in (tmp_path / "replay.jsonl").read_text().splitlines()]

    train(config, dataset={"train": rows}, reward="rllm_gym.serving:logged_reward")
    calls = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert len(calls) == 24
    first, second = read_metrics(tmp_path / "run")
    for row in (first, second):
        assert row["optim/trained_tokens"] == sum(len(call["ids"]) for call in calls)
        assert row["reward/mean"] == pytest.approx(3.5 / 8)
    assert first["sampling/logprob_difference/max"] < 1e-3  # the model that was served
    assert second["sampling/logprob_difference/max"] > 1e-3  # after one update it is another one

    other = echo_config(tmp_path, **options, output=str(tmp_path / "other"), sampling={"temperature": 0.5})
    with pytest.raises(NoTrainableEpisodes, match=r"sampled at temperature 1.0, so their log-probs"):
        train(other, dataset={"train": rows}, reward="rllm_gym.serving:logged_reward")
    cut = json.loads(json.dumps(rows))
    for row in cut:
        for logged in row["logged"]:
            logged["trajectories"][0]["steps"][0]["info"]["top_p"] = 0.9
    with pytest.raises(NoTrainableEpisodes, match=r"sampled with top_p=0.9, so their log-probs"):
        train(
            echo_config(tmp_path, **options, output=str(tmp_path / "cut")),
            dataset={"train": cut},
            reward="rllm_gym.serving:logged_reward",
        )
    for row in rows:
        for logged in row["logged"]:
            logged["trajectories"][0]["steps"][0]["messages"]["new"][0]["content"] = "something else"
    with pytest.raises(NoTrainableEpisodes, match="are not those that this model has"):
        train(
            echo_config(tmp_path, **options, output=str(tmp_path / "third")),
            dataset={"train": rows},
            reward="rllm_gym.serving:logged_reward",
        )
