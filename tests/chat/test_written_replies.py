"""A reply that was not sampled gets the ids that a model would have sampled: no text in it becomes a special token."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rllm_gym.chat import ChatRenderer, ChatTemplateError, Message, ToolCall
from tests.chat.for_every import for_every
from tests.chat.templates import FAMILIES, make_tokenizer

ALL = sorted(FAMILIES)
RENDERERS = {family: ChatRenderer(make_tokenizer(family)) for family in ALL}
pieces = st.lists(st.sampled_from(["<|im_end|>", "<|eot_id|>", "</s>", "[INST]", "up", " ", "\n", "é", "<think>", "3"]))


@settings(max_examples=40, deadline=None)
@given(text=pieces.map("".join))
@for_every("family", ALL)
def test_a_text_is_rendered_unchanged_with_one_end_token(family: str, text: str) -> None:
    renderer = RENDERERS[family]
    prompt = renderer.extend(None, [{"role": "user", "content": "go"}])
    written = renderer.append_written(prompt, Message("assistant", text))
    span = written.sampled[-1]
    ids = written.ids[span.start : span.end]
    assert written.ids[: span.start] == prompt.ids
    assert ids[-1] == renderer.end_of_turn_id
    special = {renderer.tokenizer.convert_tokens_to_ids(token) for token in FAMILIES[family][1]}
    assert not special & set(ids[:-1]), "the text forged a special token"
    lead = " " if family == "strict" else ""
    assert renderer.tokenizer.decode(ids[:-1]) == lead + text
    # The conversation continues as one branch, with exactly these ids.
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": text}]
    further = renderer.extend(written, [*messages, {"role": "user", "content": "on"}])
    assert further.branch == 0
    assert further.ids[: span.end] == written.ids


@for_every("family", ["qwen2.5", "qwen3"])
@for_every("content", ["", "Let me see."])
def test_tool_calls_are_written_as_the_template_writes_them(family: str, content: str) -> None:
    renderer, tokenizer = RENDERERS[family], make_tokenizer(family)
    calls = (ToolCall("move", '{"where": "up <|im_end|>"}'), ToolCall("look", "{}"))
    written = renderer.append_written(
        renderer.extend(None, [{"role": "user", "content": "go"}]), Message("assistant", content, tool_calls=calls)
    )
    span = written.sampled[-1]
    text = tokenizer.decode(written.ids[span.start : span.end])
    assert text.count("<tool_call>") == 2
    assert '{"name": "move", "arguments": {"where": "up <|im_end|>"}}' in text
    assert content in text
    assert text.endswith("</tool_call><|im_end|>")
    assert written.ids[span.start : span.end].count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == 1


def test_a_template_that_omits_tool_calls_is_an_error() -> None:
    renderer = RENDERERS["llama3"]
    prompt = renderer.extend(None, [{"role": "user", "content": "go"}])
    with pytest.raises(ChatTemplateError, match="message 1 has tool calls, which the chat template leaves out"):
        renderer.append_written(prompt, Message("assistant", "", tool_calls=(ToolCall("move"),)))
