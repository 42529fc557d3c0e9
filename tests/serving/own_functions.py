"""Functions of a user, for ``rllm-gym import-logs``."""

from __future__ import annotations

from typing import Any


def correct(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    return [float(text == right) for text, right in zip(completions, answer, strict=True)]


def hide_names(text: str) -> str:
    return text.replace("Ada", "NAME")


def fails(text: str) -> str:
    raise RuntimeError("no")
