"""SmolLM2 in service gets better at its task by one command each for serving, importing and training."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import openai
import pytest
from commands.command_line import rllm_gym
from commands.served_process import served

PAIRS = [(a, b) for a in range(1, 13) for b in range(a, 13)]
HELD_OUT = PAIRS[::3]
SERVING = ("--sampling.max-tokens", "12", "--sampling.temperature", "0.7")


async def answers(url: str, pairs: list[tuple[int, int]], samples: int) -> list[tuple[str, bool]]:
    """Ask for sums; return each conversation with whether the last number of its reply is the sum."""

    async def answer(client: openai.AsyncOpenAI, a: int, b: int) -> tuple[str, bool]:
        asked: Any = [{"role": "user", "content": f"What is {a} + {b}?"}]
        reply: Any = await client.chat.completions.create(model="any", messages=asked)
        return reply.conversation_id, re.findall(r"\d+", reply.choices[0].message.content)[-1:] == [str(a + b)]

    async with openai.AsyncOpenAI(base_url=url, api_key="any", timeout=600) as client:
        return await asyncio.gather(*(answer(client, *pair) for pair in pairs for _ in range(samples)))


def success(results: list[tuple[str, bool]]) -> float:
    return sum(right for _, right in results) / len(results)


@pytest.mark.long
def test_a_served_model_learns_from_feedback_on_its_calls(smollm2: Path, tmp_path: Path) -> None:
    log, episodes = tmp_path / "calls.jsonl", str(tmp_path / "episodes.jsonl")
    with served(str(smollm2), "--log", str(log), *SERVING) as (url, _):
        rated = asyncio.run(answers(url, [pair for pair in PAIRS if pair not in HELD_OUT], 4))
        before = success(asyncio.run(answers(url, HELD_OUT, 3)))
    thumbs = [{"conversation_id": name, "reward": "up" if right else "down"} for name, right in rated]
    (tmp_path / "thumbs.jsonl").write_text("\n".join(map(json.dumps, thumbs)))
    shown = rllm_gym("import-logs", str(log), "--feedback", str(tmp_path / "thumbs.jsonl"), "--output", episodes)
    assert shown.returncode == 0, shown.stderr
    trained = rllm_gym(
        *("sft", "--model.path", str(smollm2), "--demonstrations.file", episodes, "--demonstrations.min-reward", "1"),
        *("--epochs", "2", "--optimizer.lr", "5e-4", "--no-progress", "--output", str(tmp_path / "sft")),
    )
    assert trained.returncode == 0, trained.stderr
    with served(str(tmp_path / "sft"), *SERVING) as (url, _):
        after = success(asyncio.run(answers(url, HELD_OUT, 3)))
    print(
        f"success of {len(HELD_OUT) * 3} replies to other sums: {before:.2f} before, {after:.2f} after; {shown.stdout}"
    )
    assert after >= before + 0.1
