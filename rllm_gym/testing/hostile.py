"""Replies that no model was asked for: what an environment has to survive."""

from __future__ import annotations

import random

# What a fuzzer has to try once; the rest is drawn.
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
    """Arbitrary text, mostly short: letters, digits, marks, and any code point, surrogates included."""
    alphabet = "abcdefghijklmnopqrstuvwxyz0123456789 \n\t.,:;'\"`<>/\\{}[]()$#%&*+-=_^|~"
    length = min(int(source.expovariate(1 / 12)), 200)
    return "".join(
        source.choice(alphabet) if source.random() < 0.7 else chr(source.randrange(0x110000)) for _ in range(length)
    )
