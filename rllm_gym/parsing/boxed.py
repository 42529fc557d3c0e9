r"""Extract the boxed answer of a reply: the last ``\boxed{...}`` after the last closed ``</think>``.

All functions take time linear in the length of the text, for any text.
"""

from __future__ import annotations

import re

_OPEN, _CLOSE = "<think>", "</think>"
_COMMAND = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
# A brace preceded by an odd number of backslashes is a literal one.
_BRACE = re.compile(r"(?<!\\)(?:\\\\)*[{}]")
_BARE = re.compile(r"\\[A-Za-z]+(?:\s*\{[^{}]*\})*|[^\s$\\{}]+")


def strip_thinking(text: str) -> str | None:
    """Return the text after the last ``</think>``.

    A reply without reasoning is returned whole. ``None`` if the reasoning is not closed: such a reply has no answer,
    even if it contains a box.

    >>> strip_thinking("<think>5?</think> 6")
    ' 6'
    >>> strip_thinking("<think>5?") is None
    True
    """
    answer = text.rpartition(_CLOSE)[2]
    return None if _OPEN in answer else answer


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last ``\boxed`` or ``\fbox`` of the reply's answer, or ``None`` if there is none.

    Braces nest, escaped braces (``\{``) do not count, and ``\boxed 5`` boxes ``5``. Of nested boxes the innermost
    counts. Adjacent boxes are not joined: a reply has one answer. Also ``None`` if the last box is not closed: the
    reply was truncated within its answer, and an earlier box is not its final answer.

    >>> last_boxed(r"either \boxed{1} or \boxed{\frac{1}{2}}")
    '\\frac{1}{2}'
    """
    # Fast path: most replies contain one plain box.
    at = text.rfind("\\boxed{")
    if at >= 0 and "think>" not in text and "\\fbox" not in text:
        end = text.find("}", at)
        plain = text[at + 7 : end]
        if end > 0 and "{" not in plain and "\\" not in plain and text.find("\\boxed", end) < 0:
            return plain.strip()
    answer = strip_thinking(text)
    if answer is None:
        return None
    start = _after_last_command(answer)
    return None if start < 0 else _content(answer, start)


def _after_last_command(text: str) -> int:
    """Return where the argument of the last box begins, or -1. Searches from the end, because replies are long."""
    found, start = -1, -1
    for name in ("\\boxed", "\\fbox"):
        at = text.rfind(name)
        while at > found:
            command = _COMMAND.match(text, at)
            if command is not None:
                found, start = at, command.end()
            at = text.rfind(name, 0, at)
    return start


def _content(text: str, start: int) -> str | None:
    if not text.startswith("{", start):
        bare = _BARE.match(text, start)
        return (bare[0].rstrip(".,;:!?") or None) if bare else None
    depth = 0
    for brace in _BRACE.finditer(text, start):
        if brace[0][-1] == "{":
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                return text[start + 1 : brace.end() - 1].strip()
    return None
