"""The marks around what a reply says: those of its thoughts, and the special tokens that samplers leave at its end."""

from __future__ import annotations

from rllm_gym.core import InvalidAction

THOUGHT_OPEN, THOUGHT_CLOSE = "<think>", "</think>"
# What samplers leave at the end of a reply when they are asked to show special tokens.
_END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<｜end▁of▁sentence｜>", "</s>")


def before_end_tokens(text: str) -> int:
    """Where the text ends, white space and end tokens left out."""
    end = len(text)
    while end:
        if text[end - 1].isspace():
            end -= 1
            continue
        token = next((token for token in _END_TOKENS if text.endswith(token, 0, end)), None)
        if token is None:
            break
        end -= len(token)
    return end


def thought_end(text: str, start: int) -> int:
    """Where the thought that is open at ``start`` ends.

    Raises:
        InvalidAction: It does not.
    """
    end = text.find(THOUGHT_CLOSE, start)
    if end < 0:
        raise InvalidAction("The reply ends inside <think>, so it holds no action. Close it with </think>.")
    return end + len(THOUGHT_CLOSE)
