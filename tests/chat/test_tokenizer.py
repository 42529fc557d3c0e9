"""Tokenizers that lose text are not used, and replies in channels become ordinary ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rllm_gym.chat import ChatRenderer, Message, ToolCall, load_tokenizer, reply_decoder
from rllm_gym.parsing.boxed import strip_thinking
from rllm_gym.parsing.tool_calls import parse_tool_calls

SPECIAL = ["<|start|>", "<|end|>", "<|return|>", "<|call|>", "<|channel|>", "<|message|>", "<|constrain|>"]
# As in gpt-oss: the last reply ends with another token than earlier ones, and a reply begins with its channel.
CHANNELS = (
    "{%- for message in messages -%}<|start|>{{ message['role'] }}"
    "{%- if message['role'] == 'assistant' -%}<|channel|>final{%- endif -%}<|message|>{{ message['content'] }}"
    "{%- if loop.last and message['role'] == 'assistant' -%}<|return|>{%- else -%}<|end|>{%- endif -%}"
    "{%- endfor -%}{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}"
)


def byte_level(special: list[str], **options: str) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        ["user assistant analysis final the answer is"] * 3,
        trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return PreTrainedTokenizerFast(tokenizer_object=backend, **options)


@pytest.fixture(scope="module")
def gpt_oss() -> PreTrainedTokenizerFast:
    return byte_level(SPECIAL, eos_token="<|return|>", chat_template=CHANNELS)


def test_a_turn_ends_after_the_answer_and_not_after_the_analysis(gpt_oss: PreTrainedTokenizerFast) -> None:
    renderer = ChatRenderer(gpt_oss)
    assert renderer.end_of_turn_id == gpt_oss.convert_tokens_to_ids("<|return|>")
    prompt = renderer.extend(None, [{"role": "user", "content": "hi"}])
    reply = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes<|return|>"
    sampled = renderer.append_sampled(prompt, gpt_oss.encode(reply, add_special_tokens=False), "yes")
    longer = renderer.extend(sampled, [*sampled.messages, {"role": "user", "content": "and?"}])
    text = gpt_oss.decode(longer.ids)
    assert text == f"<|start|>user<|message|>hi<|end|><|start|>assistant{reply}" + (
        "<|start|>user<|message|>and?<|end|><|start|>assistant"
    )
    written = renderer.append_written(prompt, Message("assistant", "yes"))
    assert gpt_oss.decode(written.ids).endswith("assistant<|channel|>final<|message|>yes<|return|>")


def test_channels_become_thoughts_calls_and_an_answer(gpt_oss: PreTrainedTokenizerFast) -> None:
    decode = reply_decoder(gpt_oss)

    def text(reply: str) -> str:
        return decode(gpt_oss.encode(reply, add_special_tokens=False))

    final = "<|start|>assistant<|channel|>final<|message|>It is 6.<|return|>"
    analysis = "<|channel|>analysis<|message|>2 * 3"
    assert text(f"{analysis}<|end|>{final}") == "<think>2 * 3</think>It is 6."
    assert text(analysis) == "<think>2 * 3"
    assert strip_thinking(text(analysis)) is None
    assert text("It is 6.<|return|>") == "It is 6."
    call = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>'
    calls = parse_tool_calls(text(f"{analysis}<|end|><|start|>assistant{call}"))
    assert [(found.name, found.arguments) for found in calls.calls] == [("add", {"a": 1})]
    assert text("<|channel|>commentary to=functions.add<|message|>{no json<|call|>") == (
        '<tool_call>{"name": "add", "arguments": "{no json"}</tool_call>'
    )
    for header in (
        " to=functions.add<|channel|>commentary json",
        "<|channel|>commentary to=functions.add<|constrain|>json",
    ):
        for before in ("", f"{analysis}<|end|><|start|>assistant"):
            assert text(f'{before}{header}<|message|>{{"a":1}}<|call|>').endswith(
                '<tool_call>{"name": "add", "arguments": {"a":1}}</tool_call>'
            )
    deep = text(f"<|channel|>commentary to=f<|message|>{'[' * 100_000}<|call|>")
    assert deep.startswith('<tool_call>{"name": "f", "arguments": "[[')
    text('<|channel|>commentary to=f<|message|>{"a": "\\ud800"}<|call|>').encode()
    # Text that only spells the tokens is text.
    ids = [index for part in ("<|chan", "nel|>final<|mess", "age|>7") for index in gpt_oss.encode(part)]
    assert decode(ids) == "<|channel|>final<|message|>7"
    for odd in ("<|channel|>", "<|message|>", "<|channel|><|message|>", "<|end|><|end|>", "<|channel|>final", ""):
        assert isinstance(text(odd), str)


def test_other_replies_are_decoded_without_special_tokens() -> None:
    tokenizer = byte_level(["<|end|>"])
    assert reply_decoder(tokenizer)(tokenizer.encode("the answer is 6<|end|>")) == "the answer is 6"


def test_a_tokenizer_that_loses_spaces_is_loaded_from_its_file_or_refused(tmp_path: Path) -> None:
    """LlamaTokenizer replaces the parts of a byte-level tokenizer.json by sentencepiece's, as with DeepSeek's."""
    good = byte_level(["<|end|>"], eos_token="<|end|>")
    good.save_pretrained(tmp_path)
    config = (tmp_path / "tokenizer_config.json").read_text()
    changed = config.replace('"TokenizersBackend"', '"LlamaTokenizerFast"').replace(
        '"PreTrainedTokenizerFast"', '"LlamaTokenizerFast"'
    )
    assert changed != config
    (tmp_path / "tokenizer_config.json").write_text(changed)
    loaded = load_tokenizer(tmp_path)
    text = "def f(x):\n    return  x  # two"
    assert loaded.decode(loaded.encode(text, add_special_tokens=False)) == text

    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "words")
    with pytest.raises(ValueError, match=r"words' .* does not keep text: .* becomes '\[UNK\]"):
        load_tokenizer(tmp_path / "words")


def test_a_call_ends_with_its_own_token(gpt_oss: PreTrainedTokenizerFast) -> None:
    template = CHANNELS.replace(
        "<|channel|>final",
        "{% if message['tool_calls'] %} to=functions.{{ message['tool_calls'][0]['function']['name'] }}"
        "<|channel|>commentary json<|message|>{{ message['tool_calls'][0]['function']['arguments'] | tojson }}<|call|>"
        "{% else %}<|channel|>final",
    )
    template = template.replace(
        "{%- endif -%}<|message|>{{ message['content'] }}{%- if loop.last",
        "{% endif %}{%- endif -%}{% if not message['tool_calls'] %}<|message|>{{ message['content'] }}{% endif %}"
        "{%- if message['tool_calls'] -%}{%- elif loop.last",
    )
    renderer = ChatRenderer(gpt_oss, chat_template=template)
    prompt = renderer.extend(None, [{"role": "user", "content": "hi"}])
    written = renderer.append_written(prompt, Message("assistant", "", tool_calls=(ToolCall("add", '{"a": 1}', "1"),)))
    reply = written.ids[len(prompt.ids) :]
    assert gpt_oss.decode(reply).endswith("<|call|>")
    assert reply_decoder(gpt_oss)(reply) == '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def test_text_that_a_normalizer_turns_into_a_control_token_stays_text() -> None:
    backend = byte_level([]).backend_tokenizer
    backend.normalizer = normalizers.Lowercase()
    backend.add_tokens([AddedToken("<think>", normalized=True)])
    backend.add_special_tokens([AddedToken("<|end|>", normalized=False)])
    template = "{% for message in messages %}{{ message['content'] }}<|end|>{% endfor %}"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", chat_template=template)
    think = tokenizer.convert_tokens_to_ids("<think>")
    renderer = ChatRenderer(tokenizer)
    for content in ("<THINK>", "<think>", "a <Think> b"):
        assert think not in renderer.extend(None, [{"role": "user", "content": content}]).ids
    assert renderer.extend(None, [{"role": "user", "content": "the answer"}]).ids == tuple(
        tokenizer.encode("the answer<|end|>")
    )


def test_code_in_a_models_files_is_neither_run_nor_asked_about(
    tmp_path: Path, gpt_oss: PreTrainedTokenizerFast
) -> None:
    """transformers asks on the terminal, so that a training run would wait for an answer."""
    gpt_oss.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {
        "tokenizer_class": "OwnTokenizer",
        "auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]},
    }
    path.write_text(json.dumps(settings))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass OwnTokenizer: pass\n")
    with pytest.raises(ValueError, match="is code in the model's own files, which is not run"):
        load_tokenizer(tmp_path)
    assert not (tmp_path / "ran").exists()
