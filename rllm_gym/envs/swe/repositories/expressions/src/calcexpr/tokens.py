"""Cuts the text of an expression into tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

from calcexpr.errors import ParseError

KEYWORDS = frozenset({"if", "then", "else", "and", "or", "not", "in", "true", "false"})

_SPACE = re.compile(r"(?:\s|#[^\n]*)+")
_NUMBER = re.compile(r"(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_NAME = re.compile(r"[^\W\d]\w*")
_OPERATOR = re.compile(r"==|!=|<=|>=|//|[-+*/%^()\[\],<>=]")
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", '"': '"', "'": "'"}


@dataclass(frozen=True)
class Token:
    """``kind`` is ``number``, ``text``, ``name``, ``end``, or the keyword or operator itself."""

    kind: str
    value: object
    place: int


def tokenize(source: str) -> list[Token]:
    """The tokens of an expression; the last one is of the kind ``end``."""
    tokens: list[Token] = []
    place = 0
    while True:
        if match := _SPACE.match(source, place):
            place = match.end()
        if place == len(source):
            tokens.append(Token("end", None, place))
            return tokens
        token, place = _next_token(source, place)
        tokens.append(token)


def _next_token(source: str, place: int) -> tuple[Token, int]:
    if source[place] in "\"'":
        return _text(source, place)
    if match := _NUMBER.match(source, place):
        return Token("number", _number(match[0]), place), match.end()
    if match := _NAME.match(source, place):
        word = match[0]
        return Token(word if word in KEYWORDS else "name", word, place), match.end()
    if match := _OPERATOR.match(source, place):
        kind = "==" if match[0] == "=" else match[0]
        return Token(kind, kind, place), match.end()
    raise ParseError(f"unexpected {source[place]!r}", place)


def _number(text: str) -> int | float:
    text = text.replace("_", "")
    return int(text) if text.isdigit() else float(text)


def _text(source: str, start: int) -> tuple[Token, int]:
    quote, out, place = source[start], [], start + 1
    while place < len(source) and source[place] != quote:
        if source[place] == "\\":
            escape = source[place + 1 : place + 2]
            if escape not in _ESCAPES or not escape:
                raise ParseError(f"unknown escape \\{escape}", place)
            out.append(_ESCAPES[escape])
            place += 2
        else:
            out.append(source[place])
            place += 1
    if place >= len(source):
        raise ParseError("the text is not closed", start)
    return Token("text", "".join(out), start), place + 1
