"""The text that ``render()`` returns for environments whose episodes are a task and the replies to it."""

from __future__ import annotations

from collections.abc import Iterable

_MAX_CHARS = 4_000


def transcript(task_id: str, content: str, replies: Iterable[tuple[str, str]]) -> str:
    """Return the task, and each reply with the observation that followed it. Long texts are cut, with a note."""
    lines = [f"Task {task_id}", _indent(content)]
    for turn, (reply, observation) in enumerate(replies, start=1):
        lines += [f"Reply {turn}", _indent(reply), "Result", _indent(observation)]
    return "\n".join(lines)


def _indent(text: str) -> str:
    if len(text) > _MAX_CHARS:
        text = f"{text[:_MAX_CHARS]}… ({len(text)} characters)"
    return "\n".join(f"  {line}" for line in text.splitlines()) or "  (nothing)"
