"""Creation of a language model small enough to train on two CPU cores: tokenizer, weights, chat template.

The result is an ordinary Hugging Face folder that transformers, PEFT and vLLM can load. Nothing is downloaded. The
weights are random: a short supervised fine-tuning teaches an answer format.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

Architecture = Literal["qwen2", "llama"]

END_OF_TEXT, TURN_END = "<|endoftext|>", "<|end|>"
_ROLES = ("system", "user", "assistant", "tool")
SPECIAL_TOKENS = (END_OF_TEXT, TURN_END, *(f"<|{role}|>" for role in _ROLES))

# Two tokens per turn: ChatML would use six, in turns of about forty tokens. There is no default system prompt: the
# model only reads what the agent writes.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + (message['content'] or '') + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)

# Tokens are trained on words only: digits, symbols and capitals outside words stay single characters, so that each
# cell of a drawn board and each digit of a number has its own token. Models this small need that to learn them.
_LEARNED_PIECES = r" ?[A-Z]?[a-z]+| ?[^a-z0-9\s]|[^a-z]"

# The same pattern as in Qwen2's tokenizer. transformers loads every model of type qwen2 with that tokenizer and
# replaces the saved normalizer and pattern by its own: with any other pattern the loaded tokenizer would differ.
_QWEN2_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Words that instructions, answers and plain arithmetic use; the training text if no corpus is given.
_WORDS = """\
a about above across act action actions after again all an and answer any apples are around as at away back ball be
because before below between board book books boxed box but buy buys by call called can cannot cell cells center
centre change choose city click code column columns command correct cost costs could count current day days did
difference digit digits divide do does done down each east edge egg eggs empty end equation error even every exactly
example explain fall falls few final find finish finished first five following for format forward four free from
frozen full game get gets give given gives go goal going good got grid group had half has have he her here him his
hole holes hour hours how ice if in inside into invalid is it its just keep know lake last leave left legal length
less let letter letters line lines list look lose lost make makes many map mark marks may me means message minus
minute minutes modulo more move moved moves moving much multiply must my name near need needs neighbour neighbours
never new next no none north not nothing now number numbers of off old on once one only open or order other our out
outside over page path people per pick place player please plus point points position possible price prime problem
product put question reach reached read remainder reply rest result reward right row rows rule rules safe same say
says search see sell sells sent set seven she should show side simplify single six slip slippery solve solved some
south square squares start starts state step steps still stop submit sum symbol symbols system take takes tell ten
text than that the their them then there these they thing think this those three through tile tiles time times to
together token tool tools total toward towards try turn turns two under up use used user using value variable walk
wall want was water way we week weeks were west what when where which while who why will win with without word words
work write wrong year years yes yet you your zero assistant system user tool role content
Up Down Left Right North South East West You Your The This That There Move Moves Answer Reply Write Find Solve
Compute What How If Goal Hole Start Player Position Row Column Turn Turns Invalid Wrong Correct Question Give Put
Choose One Use It In At Now
"""


def make_tiny_model(
    path: str | Path,
    *,
    seed: int = 0,
    architecture: Architecture = "qwen2",
    hidden_size: int = 96,
    num_layers: int = 2,
    num_heads: int = 3,
    intermediate_size: int | None = None,
    vocab_size: int = 768,
    max_position_embeddings: int = 4096,
    init_std: float = 0.08,
    rope_theta: float = 10_000.0,
    corpus: Iterable[str] = (),
) -> Path:
    """Write a tiny model with its tokenizer to ``path`` and return the folder. The files are reproducible byte for
    byte.

    Args:
        path: The folder; created if absent.
        seed: Seed of the initial weights.
        architecture: ``"qwen2"`` or ``"llama"``.
        hidden_size: Hidden size; a multiple of ``num_heads``, with an even size per head.
        num_layers: Number of transformer blocks.
        num_heads: Number of attention heads.
        intermediate_size: Width of the feed-forward layers; twice ``hidden_size`` by default.
        vocab_size: Maximum number of tokens: 256 bytes, 6 special tokens and the tokens of byte-pair encoding.
        max_position_embeddings: Context length in tokens.
        init_std: Standard deviation of the initial weights; small models learn faster with a larger one.
        rope_theta: Base of the rotary position embedding; a small one distinguishes positions of short texts better.
        corpus: Additional texts to train the tokenizer on, besides the built-in words. Texts similar to your
            environment's observations make those observations shorter.

    Raises:
        ValueError: The sizes are inconsistent.
    """
    if architecture not in ("qwen2", "llama"):
        raise ValueError(f"architecture={architecture!r} is not supported; use 'qwen2' or 'llama'")
    if hidden_size % num_heads or (hidden_size // num_heads) % 2:
        raise ValueError(
            f"hidden_size={hidden_size} does not split into num_heads={num_heads} heads of an even size; "
            f"use for example {num_heads * 32}"
        )
    if vocab_size < 256 + len(SPECIAL_TOKENS):
        raise ValueError(
            f"vocab_size={vocab_size} must be at least {256 + len(SPECIAL_TOKENS)}: every byte needs a token"
        )

    tokenizer = _make_tokenizer(vocab_size, corpus, max_position_embeddings)
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_heads,
        "intermediate_size": intermediate_size or 2 * hidden_size,
        "max_position_embeddings": max_position_embeddings,
        "initializer_range": init_std,
        "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta},
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = (
            Qwen2ForCausalLM(Qwen2Config(**sizes))
            if architecture == "qwen2"
            else LlamaForCausalLM(LlamaConfig(**sizes, head_dim=hidden_size // num_heads))
        )
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _make_tokenizer(vocab_size: int, corpus: Iterable[str], context_length: int) -> Any:
    """Build byte-level BPE: any normalized Unicode text round-trips, common words are one token, digits are single
    tokens.
    """
    core = Tokenizer(BPE())
    core.pre_tokenizer = _cut(_LEARNED_PIECES)
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=1,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # The caller's texts have a higher weight than the built-in words.
    texts = [text for text in corpus for _ in range(8)]
    texts.append(_WORDS)
    core.train_from_iterator(texts, trainer)
    core.normalizer = normalizers.NFC()
    core.pre_tokenizer = _cut(_QWEN2_PIECES)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[f"<|{role}|>" for role in _ROLES],
        chat_template=CHAT_TEMPLATE,
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
    )


def _cut(pattern: str) -> Any:
    """Split the text by ``pattern``, as bytes."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
