"""A line of an episodes file as the page shows it: texts of limited length, tokens, and images apart from the rest.

The line was written by a trainer, and its texts by a model, so that nothing about its form is taken for granted.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rllm_gym.engine.json_values import from_json

_MAX_TEXT_CHARS = 200_000
_MAX_TOKENS = 200_000
_MAX_STEPS = 2_000
_MAX_PIXELS = 50_000_000
_IMAGE = "[image]"
_SIGNATURES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}
_FIELDS = (
    *("episode_id", "task_id", "env_id", "group_id", "seed", "greedy", "reward", "success"),
    *("stop_reason", "fault", "attempts", "seconds", "metrics", "info"),
)

TextsOf = Callable[[Sequence[tuple[int, Sequence[int]]]], list[list[str]]]


@dataclass(slots=True)
class EpisodePage:
    """An episode for the page.

    Attributes:
        page: JSON types: ``episode`` (its fields), ``trajectories`` and ``cut`` (whether something was left out).
        images: Type and bytes of each image; the page has their indices.
    """

    page: dict[str, Any] = field(default_factory=dict)
    images: list[tuple[str, bytes]] = field(default_factory=list)


def read_transcript(content: bytes, texts_of: TextsOf | None, control: set[int]) -> EpisodePage:
    """Return the episode of a line.

    Args:
        content: The line.
        texts_of: Gives the texts of the tokens of several turns, each a branch and ids; ``None`` for none.
        control: Ids of the control tokens.

    Raises:
        ValueError, RecursionError: The line is not a JSON object.
    """
    row = json.loads(content)
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    if "completion" in row and "trajectories" not in row:
        row = _episode_of_completion(row)
    shown = EpisodePage()
    budget = _Budget()
    fields = {name: _short(row[name]) for name in _FIELDS if name in row}
    trajectories = [
        _trajectory(item, shown.images, budget, texts_of, control) for item in _list(row.get("trajectories"))[:64]
    ]
    shown.page = {"episode": fields, "trajectories": trajectories, "cut": budget.exceeded}
    return shown


@dataclass(slots=True)
class _Budget:
    tokens: int = _MAX_TOKENS
    exceeded: bool = False


def _trajectory(
    item: Any, images: list[tuple[str, bytes]], budget: _Budget, texts_of: TextsOf | None, control: set[int]
) -> dict[str, Any]:
    row = item if isinstance(item, dict) else {}
    steps = [step if isinstance(step, dict) else {} for step in _list(row.get("steps"))]
    budget.exceeded |= len(steps) > _MAX_STEPS
    shown, replies = [], [""]
    for step in steps[:_MAX_STEPS]:
        shown.append(_step(step, replies[-1], images, budget))
        replies.append(_string(step.get("response")))
    turns = [step["tokens"] for step in shown if step["tokens"]]
    for tokens in turns:
        tokens["control"] = [index for index, token in enumerate(tokens["ids"]) if token in control]
        tokens["texts"] = None
    if texts_of is not None:
        texts = texts_of([(tokens["branch"], tokens["ids"]) for tokens in turns])
        for tokens, own in zip(turns, texts, strict=True):
            tokens["texts"] = own
    return {
        "name": _string(row.get("name")),
        "role": _string(row.get("role")),
        "trainable": row.get("trainable") is not False,
        "reward": _short(row.get("reward")),
        "steps": shown,
    }


def _step(row: dict[str, Any], reply: str, images: list[tuple[str, bytes]], budget: _Budget) -> dict[str, Any]:
    found: list[tuple[str, bytes]] = []
    observation = _shown(_text_of(_without_images(_value(row.get("observation")), found)))
    sent: Any = row.get("messages")
    sent = sent if isinstance(sent, dict) else {}
    messages = [_message(_value(message), found) for message in _list(sent.get("new"))]
    if sent.get("as_before") and messages and messages[0] == {"role": "assistant", "text": reply[:_MAX_TEXT_CHARS]}:
        del messages[0]  # the reply before
    first = len(images)
    images += found
    info = _value(row.get("info"))
    invalid = bool(info.get("invalid_action")) if isinstance(info, dict) else False
    texts = [message["text"] for message in messages]
    return {
        "messages": messages,
        "observation": None if observation and any(observation in text for text in texts) else observation,
        "images": list(range(first, len(images))),
        "reply": _cut(_string(row.get("response"))),
        "thought": _cut(_string(row.get("thought"))),
        "action": _shown(_value(row.get("action"))),
        "reward": _short(row.get("reward")),
        "info": _shown(info),
        "invalid": invalid,
        "tokens": _tokens(row.get("tokens"), budget),
    }


def _tokens(row: Any, budget: _Budget) -> dict[str, Any] | None:
    if not isinstance(row, dict):
        return None
    context, sampled = (_ints(row.get(name)) for name in ("context_ids", "ids"))
    if len(context) + len(sampled) > budget.tokens:
        budget.exceeded = True
        return None
    budget.tokens -= len(context) + len(sampled)
    return {
        "context": len(context),
        "ids": context + sampled,
        # A value that is not recorded is null.
        **{name: _numbers(row.get(name), len(sampled)) for name in ("logprobs", "advantages")},
        "version": row.get("weight_version") if isinstance(row.get("weight_version"), int) else None,
        "branch": row.get("branch") if isinstance(row.get("branch"), int) else 0,
        "finish_reason": _string(row.get("finish_reason")),
    }


def _message(message: Any, found: list[tuple[str, bytes]]) -> dict[str, str]:
    row = message if isinstance(message, dict) else {}
    content = row.get("content")
    if isinstance(content, list):
        parts = [part if isinstance(part, dict) else {} for part in content]
        content = "\n".join(str(part.get("text", "")) for part in parts if part.get("type") == "text")
    text = content if isinstance(content, str) else _shown(content)
    if row.get("tool_calls"):
        text += f"\n{_shown(_without_images(row['tool_calls'], found))}"
    return {"role": _string(row.get("role")), "text": _cut(text)}


def _text_of(observation: Any) -> Any:
    """Return the text of an observation of a text and images, such as a page and its screenshot; others as they are."""
    rest = dict(observation) if isinstance(observation, dict) else {}
    text = rest.pop("text", None)
    return text if rest and all(item == _IMAGE for item in rest.values()) else observation


def _without_images(value: Any, found: list[tuple[str, bytes]]) -> Any:
    """Return a value with each image replaced by ``[image]``, and append the images."""
    if isinstance(value, dict):
        return {key: _without_images(item, found) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_images(item, found) for item in value]
    image = _image(value)
    if image is None:
        return value
    found.append(image)
    return _IMAGE


def _image(value: Any) -> tuple[str, bytes] | None:
    if isinstance(value, bytes):
        kind = next((kind for start, kind in _SIGNATURES.items() if value.startswith(start)), None)
        return None if kind is None else (kind, value)
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim != 3 or value.shape[2] != 3:
        return None
    return ("image/png", png(value)) if 0 < value.size <= 3 * _MAX_PIXELS else None


def png(pixels: np.ndarray) -> bytes:
    """Return an RGB picture, ``uint8`` of shape (height, width, 3), as PNG."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row begins with its filter, 0
    rows[:, 1:] = pixels.reshape(height, 3 * width)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b"")]
    return next(iter(_SIGNATURES)) + b"".join(chunk(kind, data) for kind, data in parts)


def _episode_of_completion(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table of completions as an episode of one turn."""
    step = {
        "messages": {"as_before": 0, "new": [{"role": "user", "content": row.get("prompt")}]},
        "response": row.get("completion"),
        "reward": row.get("reward"),
    }
    return {
        "task_id": row.get("task"),
        "group_id": row.get("group"),
        **{name: row.get(name) for name in ("reward", "success", "stop_reason")},
        "metrics": row.get("rewards"),
        "trajectories": [{"name": "agent", "role": "agent", "reward": row.get("reward"), "steps": [step]}],
    }


def _value(value: Any) -> Any:
    try:
        return from_json(value)
    except RecursionError:
        raise
    except Exception:  # a malformed value can raise anything, such as SyntaxError for the type of an array
        return value


def _shown(value: Any) -> str:
    if value is None or isinstance(value, str):
        return _cut(value or "")
    return _cut(json.dumps(value, ensure_ascii=False, indent=1, default=repr, skipkeys=True))


def _short(value: Any) -> Any:
    """Return a value as JSON that the page can parse: numbers that are finite, texts, or a text of anything else."""
    if value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**53):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return _shown(_value(value))


def _cut(text: str) -> str:
    if len(text) <= _MAX_TEXT_CHARS:
        return text
    return f"{text[:_MAX_TEXT_CHARS]} … ({len(text) - _MAX_TEXT_CHARS} more characters)"


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _ints(value: Any) -> list[int]:
    return [item if isinstance(item, int) and abs(item) < 2**31 else -1 for item in _list(value)]


def _numbers(value: Any, count: int) -> list[float | None] | None:
    items = _list(value)
    if len(items) != count or not items:
        return None
    return [
        # Five digits: more are not shown.
        float(f"{item:.5g}")
        if isinstance(item, int | float) and not isinstance(item, bool) and abs(item) < 1e30
        else None
        for item in items
    ]
