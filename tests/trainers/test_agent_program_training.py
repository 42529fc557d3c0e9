"""A program that knows only OpenAI's client is trained on its own requests, without a change of the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from echo_config import echo_config

from rllm_gym.engine import load_episodes
from trainers.loop import train
from trainers.run.metrics import read_metrics

ROWS = [{"prompt": f"{n}: say it", "answer": "x"} for n in range(32)]


async def drafts(observation: str, base_url: str, api_key: str) -> str:
    """Ask for a draft, then for the answer in a conversation that goes on, and for a title in another one."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        messages: Any = [{"role": "user", "content": observation}]
        draft = await client.chat.completions.create(model="any", messages=messages, temperature=0)
        messages += [draft.choices[0].message, {"role": "user", "content": "again"}]
        answer = await client.chat.completions.create(model="any", messages=messages)
        await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "a title"}])
        return answer.choices[0].message.content or ""


def first_half(completions: list[str], **columns: Any) -> list[float]:
    return [float("a" <= text.strip().lower()[:1] <= "m") for text in completions]


def test_the_requests_of_a_program_are_trained_on_token_by_token(tmp_path: Path) -> None:
    config = echo_config(
        tmp_path,
        steps=2,
        env={
            "id": "",
            "agent": "rllm_gym.engine.workflows:AgentProgram",
            "agent_kwargs": {"function": "test_agent_program_training:drafts"},
        },
        algorithm={"drop_zero_variance": False},
        save_episodes_every=1,
        validation=None,
    )
    train(config, dataset=ROWS, reward=first_half)
    rows = read_metrics(tmp_path / "run")
    assert [row["episodes/count"] for row in rows] == [16, 16]
    for row in rows:
        episodes = load_episodes(tmp_path / "run" / "episodes" / f"train-{row['step']:06d}.jsonl")
        steps = [episode.trajectories[0].steps for episode in episodes]
        assert all(len(own) == 3 and len(own[1].chat_completions) == 3 for own in steps)
        sampled = sum(len(step.tokens.ids) for own in steps for step in own if step.tokens is not None)
        assert row["optim/trained_tokens"] == sampled
        assert row["sampling/logprob_difference/max"] == pytest.approx(0.0, abs=1e-4)
        assert row["workflow/program_failed"] == 0.0
