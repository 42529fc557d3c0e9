"""Conversion of a row of a data set of prompts to a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rllm_gym.core import Task, TaskError
from rllm_gym.data.conversion import ID_KEYS, check_json

PROMPT_KEYS = ("prompt", "question", "problem")
RESERVED = ("prompts", "completions")
"""Columns that would hide an argument of the reward functions."""

_ROLES = ("system", "user", "assistant")
# Columns of formats that are no prompts -> what to do.
_OTHER_FORMATS = {
    "conversations": "a row of ShareGPT: make a prompt of the turns before the reply, with from/value renamed to "
    'role/content: "prompt": [{"role": "user", "content": "…"}]',
    "instruction": 'a row of Alpaca: join instruction and input to "prompt", and name the output "solution"',
    "messages": 'a whole chat: name the messages up to the last user message "prompt", and the reply "solution" '
    "(`rllm-gym sft` trains on chats as they are)",
    "chosen": "a preference pair without a prompt: see `rllm-gym dpo`",
    "text": 'a text to be continued: name what the model is given "prompt"',
}


def row_to_prompt(row: Mapping[str, Any], task_id: str) -> Task:
    """Return a task whose content is the prompt as text and whose data is the row.

    The prompt is a text or a list of messages in the column ``prompt`` (else a text in ``question`` or ``problem``). A
    task written by :meth:`rllm_gym.core.Task.to_json` is restored.

    Raises:
        TaskError: The row has no prompt; says what to rename where the format is known.
    """
    if set(row) == {"task_id", "content", "data"} and isinstance(row["data"], Mapping):
        return row_to_prompt(row["data"], task_id)
    check_json(row)
    for name in RESERVED:
        if name in row:
            raise TaskError(f"its column {name!r} has the name of an argument of every reward function; rename it")
    return Task(task_id, prompt_text(prompt_of(row)), row)


def prompt_key(row: Mapping[str, Any]) -> str:
    """Return the column of the prompt.

    Raises:
        TaskError: The row has none.
    """
    key = next((name for name in PROMPT_KEYS if row.get(name)), None)
    if key is None:
        other = next((text for name, text in _OTHER_FORMATS.items() if name in row), None)
        columns = ", ".join(name for name in row if name not in ID_KEYS) or "none"
        fix = f"it looks like {other}" if other else 'each row needs "prompt": a text or a list of messages'
        raise TaskError(f"it has no prompt (its columns: {columns}); {fix}")
    return key


def prompt_of(row: Mapping[str, Any]) -> str | Sequence[Mapping[str, str]]:
    """Return the prompt of a row: a text, or messages that end with one of the user.

    Raises:
        TaskError: The row has none, or it is neither of the two.
    """
    key = prompt_key(row)
    prompt = row[key]
    if isinstance(prompt, str):
        return prompt
    if key != "prompt" or not isinstance(prompt, Sequence):
        raise TaskError(
            f"its {key!r} is {prompt!r:.80}; a prompt is a text" + " or a list of messages" * (key == "prompt")
        )
    for message in prompt:
        if not isinstance(message, Mapping) or set(message) != {"role", "content"} or message["role"] not in _ROLES:
            fix = "rename them" if isinstance(message, Mapping) and set(message) >= {"from", "value"} else "correct it"
            raise TaskError(
                f"its prompt has the message {dict(message) if isinstance(message, Mapping) else message!r}"[:300]
                + f'; a message is {{"role": one of {", ".join(_ROLES)}, "content": a text}}: {fix}'
            )
        if not isinstance(message["content"], str):
            raise TaskError(
                f"its prompt has the content {message['content']!r:.80}; the content of a message is a text"
            )
    if prompt[-1]["role"] != "user":
        raise TaskError(f"its prompt ends with a message of {prompt[-1]['role']!r}; the last one must be of 'user'")
    return prompt


def prompt_text(prompt: str | Sequence[Mapping[str, str]]) -> str:
    """Return a prompt as one text: the content of a single message of the user, else all messages with their roles."""
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1:
        return prompt[0]["content"]
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in prompt)
