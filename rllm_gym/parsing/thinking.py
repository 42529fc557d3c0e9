"""Find the end of a model's reasoning (``<think>``) and the special tokens at the end of a reply."""

from __future__ import annotations

from rllm_gym.core import InvalidAction

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
# Tokens that samplers leave at the end of a reply if special tokens are not removed.
_END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<｜end▁of▁sentence｜>", "</s>")


def before_end_tokens(text: str) -> int:
    """Return where the text ends, without white space and end tokens."""
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


def think_end(text: str, start: int) -> int:
    """Return where the reasoning that is open at ``start`` ends.

    Raises:
        InvalidAction: It is not closed.
    """
    end = text.find(THINK_CLOSE, start)
    if end < 0:
        raise InvalidAction("The reply ends inside <think>, so it holds no action. Close it with </think>.")
    return end + len(THINK_CLOSE)
