"""The tiny model is an ordinary Hugging Face folder: equal bytes each time, equal tokens in every loader."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refused_options import not_raised
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainers.tiny_model import TURN_END, make_tiny_model


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / request.param, architecture=request.param)


def test_same_arguments_give_the_same_bytes_and_another_seed_other_weights(folder: Path, tmp_path: Path) -> None:
    architecture = json.loads((folder / "config.json").read_text())["model_type"]
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    copy = make_tiny_model(tmp_path / "copy", architecture=architecture)
    assert torch.equal(before, torch.random.get_rng_state()), "building a model disturbed the global generator"
    for file in folder.iterdir():
        assert file.read_bytes() == (copy / file.name).read_bytes(), file.name
    other = make_tiny_model(tmp_path / "other", architecture=architecture, seed=1)
    assert (other / "model.safetensors").read_bytes() != (folder / "model.safetensors").read_bytes()


def test_transformers_loads_it_and_it_is_tiny(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert sum(p.numel() for p in model.parameters()) < 300_000
    assert model.config.eos_token_id == AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(TURN_END)
    logits = model(torch.tensor([[1, 2, 3]])).logits
    assert logits.shape == (1, 3, model.config.vocab_size)
    assert torch.isfinite(logits).all()


@pytest.fixture(scope="module")
def tokenizers(folder: Path) -> tuple[Any, Tokenizer]:
    """As loaded by transformers, and as saved."""
    return AutoTokenizer.from_pretrained(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_the_loaded_tokenizer_equals_the_saved_one_and_round_trips(
    tokenizers: tuple[Any, Tokenizer], text: str
) -> None:
    loaded, saved = tokenizers
    ids = loaded.encode(text, add_special_tokens=False)
    assert ids == saved.encode(text, add_special_tokens=False).ids
    assert loaded.decode(ids) == unicodedata.normalize("NFC", text)


def test_digits_and_board_cells_are_single_tokens(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text in ("1234567890", "SFFHG", "PHOG.#_"):
        assert len(tokenizer.encode(text, add_special_tokens=False)) == len(text)
    assert tokenizer.encode("2024 + 17", add_special_tokens=False)[0:4] == [
        tokenizer.convert_tokens_to_ids(digit) for digit in "2024"
    ]


def test_chat_template_appends_turn_by_turn(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    talk = [{"role": "system", "content": "Go."}, {"role": "user", "content": "Where?"}]
    prompt = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    complete = tokenizer.apply_chat_template(
        [*talk, {"role": "assistant", "content": "Up"}, {"role": "user", "content": "And now?"}], tokenize=False
    )
    assert complete.startswith(prompt + "Up" + TURN_END)
    assert prompt.endswith("<|assistant|>")
    assert len(tokenizer.encode(prompt, add_special_tokens=False)) == len(tokenizer.encode("Go.Where?")) + 5


def test_a_corpus_makes_its_own_words_single_tokens(tmp_path: Path) -> None:
    sentence = "Zyxomorphic quibblestone at glimmerwick"
    plain = AutoTokenizer.from_pretrained(make_tiny_model(tmp_path / "plain"))
    taught = AutoTokenizer.from_pretrained(make_tiny_model(tmp_path / "taught", corpus=[sentence]))
    assert len(taught.encode(sentence)) == 4 < len(plain.encode(sentence))
    assert "Zyxomorphic" in taught.get_vocab()


def test_invalid_sizes_are_errors_that_name_them(tmp_path: Path) -> None:
    cases = [
        ({"hidden_size": 97}, "num_heads=3"),
        ({"architecture": "gpt5"}, "gpt5"),
        ({"vocab_size": 100}, "every byte"),
    ]
    assert not not_raised(cases, lambda arguments: make_tiny_model(tmp_path / "bad", **arguments), ValueError)
