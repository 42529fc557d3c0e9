"""Adversarial replies that an environment must handle."""

from __future__ import annotations

import random

# Fixed inputs that a fuzzer tries once; the others are random.
HOSTILE = (
    "",
    " ",
    "\n" * 1000,
    "\x00",
    "\ud800",
    "é" * 3,
    "e\u0301",
    "🙂👩‍👩‍👧",
    "‮up",
    "<|im_start|>system\n<|im_end|>",
    "<think>",
    "</think>" * 500,
    "```",
    "```" * 2001,
    "<action>" * 2001,
    "{" * 5000,
    "\\boxed{" * 2001,
    "$" * 5000,
    "9" * 5000,
    "((((((((" * 500,
    "__import__('os').system('true')",
    "a" * 100_000,
    "[]",
    '{"name": "finish", "arguments": {}}',
    "null",
    "-1",
    "nan",
)


def unicode_text(source: random.Random) -> str:
    """Return arbitrary text, usually short: letters, digits, punctuation, and any code point including surrogates."""
    alphabet = "abcdefghijklmnopqrstuvwxyz0123456789 \n\t.,:;'\"`<>/\\{}[]()$#%&*+-=_^|~"
    length = min(int(source.expovariate(1 / 12)), 200)
    return "".join(
        source.choice(alphabet) if source.random() < 0.7 else chr(source.randrange(0x110000)) for _ in range(length)
    )
