"""The guarded encoder with other kinds of tokenizer: the ids equal the tokenizer's own, and text never becomes a
control token.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rllm_gym.chat import ChatRenderer, Message
from tests.chat.for_every import for_every

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
CORPUS = ["the lake is frozen and the player moves up down left right", "user assistant system end", "\n"] * 5
SPECIAL = ["<s>", "<unk>", "<|user|>", "<|assistant|>", "<|end|>"]


def _unigram() -> Tokenizer:
    """As in sentencepiece models: control tokens are in the vocabulary, and a space is inserted before the text."""
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    backend.train_from_iterator(
        CORPUS, trainers.UnigramTrainer(vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    )
    return backend


def _llama2() -> Tokenizer:
    """BPE with byte fallback, whose normalizer puts a space before each piece between control tokens."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    trained.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=150, special_tokens=SPECIAL, show_progress=False)
    )
    return trained


def _wordpiece() -> Tokenizer:
    backend = Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=150, special_tokens=SPECIAL, show_progress=False)
    )
    return backend


def _words() -> Tokenizer:
    """Whole words, the control tokens among them: plain text could look them up."""
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *" ".join(CORPUS).split()])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(SPECIAL)
    return backend


def _phi() -> Tokenizer:
    """Control tokens that swallow the white space beside them, ids after a gap, and ordinary added tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=290, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    backend.add_special_tokens([AddedToken(token, rstrip=True, normalized=False) for token in SPECIAL])
    backend.add_tokens([AddedToken("    ", normalized=False), AddedToken("frozen", normalized=True)])
    backend.add_tokens([AddedToken("<think>", normalized=True)])
    return backend


BUILDERS = {"unigram": _unigram, "llama2": _llama2, "wordpiece": _wordpiece, "words": _words, "phi": _phi}


@cache
def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=BUILDERS[kind](),
        chat_template=TEMPLATE,
        bos_token="<s>",
        eos_token="<|end|>",
        unk_token="<unk>",
    )


@cache
def renderer(kind: str) -> ChatRenderer:
    return ChatRenderer(tokenizer(kind))


def ids(kind: str, text: str) -> tuple[list[int], list[int]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
    expected = tokenizer(kind).apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    return list(renderer(kind).extend(None, messages).ids), expected


@settings(max_examples=60, deadline=None)
@given(
    text=st.lists(st.sampled_from(["the", "lake", "frozen", " ", "    ", "\n", "Up", "é", "3", "."]), max_size=10).map(
        "".join
    )
)
@for_every("kind", BUILDERS)
def test_ordinary_texts_get_the_tokenizers_own_ids(kind: str, text: str) -> None:
    got, expected = ids(kind, text)
    assert got == expected


@settings(max_examples=100, deadline=None)
@given(
    text=st.lists(
        st.sampled_from([*SPECIAL, "<think>", "<THINK>", "<", "|", "user", "|>", " ", "\n", "the", "end"]), max_size=8
    ).map("".join)
)
@for_every("kind", BUILDERS)
def test_text_is_never_encoded_as_a_control_token(kind: str, text: str) -> None:
    known = set(tokenizer(kind).convert_tokens_to_ids([token for token in SPECIAL if token != "<unk>"]))
    think = tokenizer(kind).get_vocab().get("<think>")
    got, _ = ids(kind, text)
    plain, _ = ids(kind, "the")
    assert [index for index in got if index in known] == [index for index in plain if index in known]
    assert think is None or think not in got


@for_every("kind", ["unigram", "llama2", "phi"])
def test_a_later_turn_is_encoded_as_in_the_full_conversation(kind: str) -> None:
    """A tokenizer that puts a space before the text must not put one before a turn."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "the lake"}]
    prefix = renderer(kind).extend(None, messages)
    complete = [*messages, {"role": "assistant", "content": "up"}, {"role": "user", "content": "down  left"}]
    expected = tokenizer(kind).apply_chat_template(
        complete, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    end = tokenizer(kind).convert_tokens_to_ids("<|end|>")
    second_end = [place for place, index in enumerate(expected) if index == end][1]
    reply = expected[len(prefix.ids) : second_end]
    for ids_of_reply in (reply, [*reply, end]):
        longer = renderer(kind).append_sampled(prefix, ids_of_reply, "up")
        assert list(renderer(kind).extend(longer, complete).ids) == expected


INST = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ m.content }} [/INST]"
    "{% else %}LEAD{{ m.content }}TRAIL{{ eos_token }}{% endif %}{% endfor %}"
)


@for_every("kind", ["unigram", "llama2", "wordpiece", "phi"])
def test_a_written_reply_is_encoded_as_in_the_full_conversation(kind: str) -> None:
    """The prompt ends with plain text, so that a tokenizer that puts a space after a control token must not do so."""
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "the lake"},
        {"role": "assistant", "content": "up  and\ndown"},
        {"role": "user", "content": "moves"},
    ]
    for lead, trail in ((" ", " "), ("", ""), ("\n", "")):
        own = tokenizer(kind)
        template = INST.replace("LEAD", lead).replace("TRAIL", trail)
        of_template = ChatRenderer(own, chat_template=template)
        prompt = of_template.extend(None, messages[:1])
        written = of_template.append_written(prompt, Message.from_openai(messages[1]))
        expected = own.apply_chat_template(messages, chat_template=template, tokenize=True, return_dict=False)
        assert list(of_template.extend(written, messages).ids) == expected, (lead, trail)
