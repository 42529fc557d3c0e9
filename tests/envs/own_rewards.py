"""Reward functions in the form of TRL's, for tests that name them as ``own_rewards:…``."""

from __future__ import annotations

import asyncio
from typing import Any


def correct(prompts: list[Any], completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
    texts = [completion if isinstance(completion, str) else completion[0]["content"] for completion in completions]
    return [float(right in text) for right, text in zip(answer, texts, strict=True)]


async def short(completions: list[Any], **columns: Any) -> list[float]:
    await asyncio.sleep(0)
    return [1.0 / (1 + len(str(completion))) for completion in completions]


def letters(completions: list[str]) -> list[float]:
    """An untrained model sometimes gets a reward, so that reinforcement learning has a signal at the start."""
    return [float(completion.strip()[:1].lower() in set("abcdefghijklm")) for completion in completions]
