"""Loads tokenizers that keep text as it is, and turns sampled ids into the text of a reply."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

_PROBE = "If x = 1,\n    print( 12 + 9 )  # a  b"
# The recipient of a call stands before or after the channel: " to=functions.add<|channel|>commentary json".
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_CHANNEL = re.compile(r"<\|channel\|>\s*analysis\b")


def load_tokenizer(path: str | os.PathLike[str]) -> Any:
    """Load the tokenizer of a folder or hub id, as ``AutoTokenizer`` does if that one keeps text as it is.

    transformers chooses a class by the name in the tokenizer's configuration. For some models (DeepSeek's V3 and its
    distilled ones, under ``LlamaTokenizer``) that class replaces parts of ``tokenizer.json``, and spaces are lost. Such
    a tokenizer is loaded from ``tokenizer.json`` alone.

    Raises:
        OSError: There is no tokenizer.
        ValueError: It loses text either way; the message names it and shows what is lost. Or its class is code in
            the model's own files, which is never run.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        # Without the argument, transformers asks on the terminal whether to run code of the folder.
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ValueError(
            f"the tokenizer of {str(path)!r} is code in the model's own files, which is not run; use a model whose "
            "tokenizer transformers knows, or save it with PreTrainedTokenizerFast and without auto_map in "
            "tokenizer_config.json, and compare its ids with the original's"
        ) from None
    if _round_trip(tokenizer) == _PROBE:
        return tokenizer
    with contextlib.suppress(OSError, ValueError):
        other = PreTrainedTokenizerFast.from_pretrained(path)
        if _round_trip(other) == _PROBE:
            return other
    raise ValueError(
        f"the tokenizer of {str(path)!r} ({type(tokenizer).__name__}) does not keep text: {_PROBE!r} becomes "
        f"{_round_trip(tokenizer)!r}; use the tokenizer files that the model was published with"
    )


def _round_trip(tokenizer: Any) -> str:
    ids = tokenizer.encode(_PROBE, add_special_tokens=False)
    return str(tokenizer.decode(ids, clean_up_tokenization_spaces=False)).strip()


def is_undecided(tokenizer: Any) -> Callable[[int], bool]:
    """Return the function that says whether the text up to an id may change with the id that follows.

    It may after a byte of SentencePiece's byte fallback (``<0xE2>``): bytes in a row are decoded together, and if one
    of them belongs to no character, none does. It also may after a special token, which is not part of the text.
    """
    undecided = {number for token, number in tokenizer.get_vocab().items() if _BYTE.fullmatch(token)}
    undecided.update(number for number, token in tokenizer.added_tokens_decoder.items() if token.special)
    return undecided.__contains__


def has_channels(tokenizer: Any) -> bool:
    """Return whether replies are in channels, so that what a token means depends on those that follow."""
    added = tokenizer.get_added_vocab()
    return all(f"<|{name}|>" in added for name in ("channel", "message", "start", "end"))


@functools.lru_cache(maxsize=4)
def reply_decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    """Return the function that gives the text of sampled ids, without special tokens.

    Replies in channels (gpt-oss's format, "harmony") get the usual notation: the analysis between ``<think>`` and
    ``</think>``, which stays open if the reply was cut there, and calls as ``<tool_call>{...}</tool_call>``.
    """
    added = tokenizer.get_added_vocab()

    def plain(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    if not has_channels(tokenizer):
        return plain
    channel, message = added["<|channel|>"], added["<|message|>"]
    ends = {added[f"<|{name}|>"] for name in ("start", "end", "return", "call") if f"<|{name}|>" in added}

    def of_channels(ids: Sequence[int]) -> str:
        parts: list[str] = []
        ids, start = list(ids), 0
        while start < len(ids):
            end = _position(ids, ends, start)
            body = _position(ids, {message}, start)
            if body < end:
                header = str(tokenizer.decode(ids[start:body], skip_special_tokens=False))
                parts.append(_of_message(header, plain(ids[body + 1 : end]), closed=end < len(ids)))
            elif start == 0:  # without a header, or cut in it
                parts.append(plain(ids[: min(end, _position(ids, {channel}, 0))]))
            start = end + 1
        return "".join(parts)

    return of_channels


def _position(ids: list[int], wanted: set[int], start: int) -> int:
    return next((index for index in range(start, len(ids)) if ids[index] in wanted), len(ids))


def _of_message(header: str, text: str, *, closed: bool) -> str:
    recipient = _RECIPIENT.search(header)
    if recipient:
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            text = json.dumps(text)
        return f'<tool_call>{{"name": {json.dumps(recipient[1])}, "arguments": {text}}}</tool_call>'
    if _CHANNEL.search(header):
        return f"<think>{text}{'</think>' if closed else ''}"
    return text
