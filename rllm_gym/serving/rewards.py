"""Rewards of conversations that were served: from a file with feedback, or by a reward function."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rllm_gym.core import EnvironmentFault, TaskError
from rllm_gym.envs.dataset import RewardFunctions
from rllm_gym.envs.dataset.rows import row_to_prompt
from rllm_gym.serving.conversations import Conversation, Conversations
from rllm_gym.serving.log_rows import LogRowError

_NAMES = ("conversation_id", "id")
_THUMBS = {"up": 1.0, "down": 0.0}


def attach_feedback(conversations: Conversations, row: Mapping[str, Any]) -> Conversation | None:
    """Set the reward of the conversation that a row of feedback is about, and return it; ``None`` if it is unknown.

    Raises:
        LogRowError: The row is not about a conversation, or its reward is none.
    """
    name = next((row[name] for name in _NAMES if isinstance(row.get(name), str)), None)
    if name is None:
        raise LogRowError("it has no conversation_id (or id of a response)")
    reward = _reward_of(row.get("reward"))
    call = f"chatcmpl-{name.removeprefix('resp_')}" if name.startswith("resp_") else name
    conversation = conversations.by_id.get(name) or conversations.of_call.get(call)
    if conversation is not None and reward is not None:
        conversation.reward = reward
    return conversation


def _reward_of(value: Any) -> float | None:
    if isinstance(value, str) and value in _THUMBS:
        return _THUMBS[value]
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        number = math.nan
    if value is not None and not math.isfinite(number):
        raise LogRowError(f'reward={value!r:.80} must be a number, true, false, "up" or "down"')
    return None if value is None else number


def reward_by_function(functions: RewardFunctions, conversation: Conversation, columns: Mapping[str, Any]) -> float:
    """Return the reward of a conversation's last reply by functions with the signature of ``rllm/Dataset-v0``.

    The prompt is a text if it is one message of the user (besides a system message), else messages. Other columns are
    those of the feedback about the conversation, and its ``messages``.

    Raises:
        EnvironmentFault: The function failed; the conversation has no reward.
    """
    asked = [message for message in conversation.prompt if message["role"] != "system"]
    is_text = len(asked) == 1 and asked[0]["role"] == "user"
    last = conversation.replies[-1].call
    row = {
        **{name: value for name, value in columns.items() if name not in _NAMES},
        "prompt": asked[0]["content"] if is_text else list(conversation.prompt),
        "messages": list(last.messages),
    }
    try:
        task = row_to_prompt(row, conversation.id)
    except TaskError as error:
        raise EnvironmentFault(str(error), kind="reward_function") from error
    return sum(functions.score(task, last.text if last.text is not None else last.reply["content"]).values())
