"""Messages survive conversion to OpenAI's format and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm_gym.chat import ContentPart, Message, ToolCall

text = st.text(max_size=20)
calls = st.lists(st.builds(ToolCall, name=text, arguments=st.just('{"a": 1}'), id=text), max_size=2).map(tuple)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=text,
    tool_calls=calls,
    name=st.none() | text,
    tool_call_id=st.none() | text,
)


@given(messages)
def test_messages_survive_conversion_to_openai_format_and_back(message: Message) -> None:
    assert Message.from_openai(message.to_openai()) == message
    assert Message.from_openai(json.loads(json.dumps(message.to_openai()))) == message


def test_missing_and_alternative_openai_fields_are_accepted() -> None:
    call = {"function": {"name": "f"}}
    message = Message.from_openai({"role": "assistant", "content": None, "tool_calls": [call]})
    assert message == Message("assistant", "", (ToolCall("f", "{}", ""),))
    parts = Message.from_openai({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]})
    assert parts.content == (ContentPart("text", "a"), ContentPart("image"))
    assert parts.text == "a"
    with pytest.raises(ValueError, match="'developer'"):
        Message.from_openai({"role": "developer", "content": ""})
