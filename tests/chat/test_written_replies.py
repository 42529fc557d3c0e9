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


THINKING = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.role == 'assistant' and loop.last and EMPTY %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{{- m.content + '<|im_end|>\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)


@for_every("empty", ["true", "false"])
@for_every("text", ["up", "<think>\nIt is <b>up</b>.\n</think>\n\nup", "It is up.</think>up"])
def test_after_a_prompt_that_opens_the_reasoning_a_written_reply_closes_it_once(text: str, empty: str) -> None:
    """Otherwise fine-tuning would teach the model to answer within its reasoning."""
    tokenizer = make_tokenizer("qwen3")
    renderer = ChatRenderer(tokenizer, chat_template=THINKING.replace("EMPTY", empty))
    prompt = renderer.extend(None, [{"role": "user", "content": "go"}])
    written = tokenizer.decode(renderer.append_written(prompt, Message("assistant", text)).ids)
    reply = written.partition("<|im_start|>assistant\n")[2].removesuffix("<|im_end|>")
    expected = text if text.startswith("<think>") else f"<think>\n{text}" if "</think>" in text else ""
    assert reply == (expected or "<think>\n\n</think>\n\nup")


TWO_ENDS = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + ('<think>' if m.role == 'assistant' else '') }}"
    "{{- m.content + ('</think>' if m.role == 'assistant' else '') + '<|im_end|>' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_a_turn_may_begin_with_a_control_token_and_end_with_two() -> None:
    """As Command A's: the reply is between <|START_RESPONSE|> and <|END_RESPONSE|>, and the turn ends after it."""
    tokenizer = make_tokenizer("qwen3")
    renderer = ChatRenderer(tokenizer, chat_template=TWO_ENDS)
    chat = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "up"},
        {"role": "user", "content": "on"},
    ]
    prompt = renderer.extend(None, chat[:1])
    expected = tokenizer.apply_chat_template(
        chat, chat_template=TWO_ENDS, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    begin, response_end, turn_end = tokenizer.convert_tokens_to_ids(["<think>", "</think>", "<|im_end|>"])
    reply = [begin, *tokenizer.encode("up"), response_end]
    assert renderer.end_of_turn_id == response_end
    for ids in (reply, [*reply, turn_end]):
        sampled = renderer.append_sampled(prompt, ids, "up")
        assert list(renderer.extend(sampled, chat).ids) == expected
    written = renderer.append_written(prompt, Message("assistant", "up"))
    assert list(renderer.extend(written, chat).ids) == expected
