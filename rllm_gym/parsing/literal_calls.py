"""Parse a call such as ``name(12, "text", key=3)`` to a name and literals. Nothing is executed."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from rllm_gym.core import InvalidAction


@dataclass(frozen=True, slots=True)
class WrittenNumber:
    """A number as written, so that a text field receives ``1.50`` and not 1.5."""

    written: str

    def __repr__(self) -> str:
        return self.written


Literal = str | WrittenNumber | bool | None | list["Literal"] | dict[str, "Literal"]

MAX_DEPTH = 64
"""Maximum levels of lists and dicts within an argument, where nesting is allowed."""


@dataclass(frozen=True, slots=True)
class LiteralCall:
    """A call: a name and its literal arguments.

    Attributes:
        name: The name, as written.
        positional: The positional arguments.
        keyword: The keyword arguments.
        end: Position where the call ends.
    """

    name: str
    positional: tuple[Literal, ...]
    keyword: dict[str, Literal]
    end: int


_NAME = re.compile(r"[A-Za-z_]\w{0,63}+")
_SPACE = re.compile(r"(?:\s|\\\n)*+")
_OPENING = re.compile(r"\s{0,16}\(")
_KEYWORD = re.compile(r"([^\W\d]\w{0,63})\s{0,16}=(?!=)\s{0,16}")
_NUMBER = re.compile(r"[+-]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][+-]?\d{1,3})?(?![\w.])")
_WORDS: dict[str, Literal] = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_PLAIN = {quote: re.compile(rf"[^\\{quote}]*+") for quote in "\"'"}
_ESCAPE = re.compile(r"[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^{}\n]{1,100}\}|.", re.DOTALL)
_SIMPLE = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a",
    "\n": "", "\\": "\\", "'": "'", '"': '"', "/": "/",
}  # fmt: skip
_TYPOGRAPHIC = "“”‘’«»„"
_MAX_ARGUMENTS = 64


def looks_like_call(text: str, at: int = 0) -> bool:
    """Return whether a name and an opening parenthesis begin at this position."""
    name = _NAME.match(text, at)
    return name is not None and _OPENING.match(text, name.end()) is not None


def read_call(text: str) -> LiteralCall:
    r"""Return the call with which a text begins. Linear time.

    Strings are Python's or JSON's: one or three single or double quotes, with the same escapes; ``\ud83d\ude00`` is
    read as the single character it encodes. A line break within single quotes is part of the string.

    >>> read_call('fill(3, "two\\nlines")').positional
    (3, 'two\nlines')
    >>> read_call("select(4, ['a', 'b'])").positional
    (4, ['a', 'b'])

    Raises:
        InvalidAction: There is no such call; names what was found and what was expected.
    """
    name = _NAME.match(text)
    opening = _OPENING.match(text, name.end()) if name else None
    if name is None or opening is None:
        raise InvalidAction(f"{_found(text, 0)}, where an action such as click(12) belongs.")
    return read_arguments(text, opening.end(), name[0])


def read_arguments(text: str, at: int, name: str, *, depth: int = 1) -> LiteralCall:
    """Return the call of ``name`` whose arguments begin at a position, after its opening parenthesis. Linear time.

    Args:
        text: The reply.
        at: Position of the first argument or of the closing parenthesis.
        name: Name of the call.
        depth: Maximum nesting of a value. 1 allows lists of plain values; more allows nested lists and dicts.

    Raises:
        InvalidAction: See :func:`read_call`.
    """
    positional: list[Literal] = []
    keyword: dict[str, Literal] = {}
    at = _after_space(text, at)
    while not text.startswith(")", at):
        if len(positional) + len(keyword) == _MAX_ARGUMENTS:
            raise InvalidAction(f"{name} has more than {_MAX_ARGUMENTS} arguments.")
        key = _KEYWORD.match(text, at)
        if key is not None:
            value, at = _literal(text, key.end(), depth)
            if key[1] in keyword:
                raise InvalidAction(f"{name} is given {key[1]} twice; give it once.")
            keyword[key[1]] = value
        else:
            if keyword:
                raise InvalidAction(f"{_found(text, at)}: an argument without a name cannot follow one with a name.")
            value, at = _literal(text, at, depth)
            positional.append(value)
        at = _next(text, at, ")", name)
    return LiteralCall(name, tuple(positional), keyword, at + 1)


def _next(text: str, at: int, closing: str, inside: str) -> int:
    """Return the position after the comma behind a value: the next value or the closing delimiter."""
    at = _after_space(text, at)
    if text.startswith(",", at):
        return _after_space(text, at + 1)
    if text.startswith(closing, at):
        return at
    if at >= len(text):
        raise InvalidAction(f"{inside} is never closed with {closing!r}.")
    advice = '; a quote within a text is written \\"' if text[at - 1] in "\"'" else ""
    raise InvalidAction(f"{_found(text, at)}, where ',' or {closing!r} belongs{advice}.")


def _literal(text: str, at: int, depth: int) -> tuple[Literal, int]:
    """Return the value at a position; ``depth`` levels of lists and dicts are left."""
    if text.startswith(('"', "'"), at):
        return _string(text, at)
    if text.startswith(("[", "("), at) and depth:
        return _list(text, at, depth - 1)
    if text.startswith("{", at) and depth > 1:
        return _dict(text, at, depth - 1)
    number = _NUMBER.match(text, at)
    if number is not None:
        return WrittenNumber(number[0]), number.end()
    word = _NAME.match(text, at)
    if word is not None and word[0] in _WORDS and not text.startswith("(", word.end()):
        return _WORDS[word[0]], word.end()
    if text[at : at + 1] in _TYPOGRAPHIC and at < len(text):
        raise InvalidAction(f'{_found(text, at)}: write a text in straight quotes, "…".')
    if word is not None:
        raise InvalidAction(f'{_found(text, at)}, which is no number and stands in no quotes; write a text as "…".')
    raise InvalidAction(f"{_found(text, at)}, where a number or a text in quotes belongs.")


def _list(text: str, at: int, depth: int) -> tuple[list[Literal], int]:
    closing = "]" if text[at] == "[" else ")"
    values: list[Literal] = []
    at = _after_space(text, at + 1)
    while not text.startswith(closing, at):
        if not depth and len(values) == _MAX_ARGUMENTS:
            raise InvalidAction(f"A list has more than {_MAX_ARGUMENTS} values.")
        value, at = _literal(text, at, depth)
        values.append(value)
        at = _next(text, at, closing, "A list")
    return values, at + 1


def _dict(text: str, at: int, depth: int) -> tuple[dict[str, Literal], int]:
    values: dict[str, Literal] = {}
    at = _after_space(text, at + 1)
    while not text.startswith("}", at):
        if not text.startswith(('"', "'"), at):
            raise InvalidAction(f"{_found(text, at)}, where a key in quotes or '}}' belongs.")
        key, at = _string(text, at)
        at = _after_space(text, at)
        if not text.startswith(":", at):
            raise InvalidAction(f"{_found(text, at)}, where ':' belongs.")
        if key in values:
            raise InvalidAction(f"A dict names {key[:80]!r} twice; name it once.")
        values[key], at = _literal(text, _after_space(text, at + 1), depth)
        at = _next(text, at, "}", "A dict")
    return values, at + 1


def _string(text: str, start: int) -> tuple[str, int]:
    quote = text[start]
    mark = quote * 3 if text.startswith(quote * 3, start) else quote
    at = start + len(mark)
    plain, pieces = _PLAIN[quote], []
    while True:
        run = plain.match(text, at)
        assert run is not None
        pieces.append(run[0])
        at = run.end()
        if at >= len(text):
            raise InvalidAction(f"The text that opens at position {start + 1} is never closed with {mark}.")
        if text.startswith(mark, at):
            return _joined("".join(pieces), start), at + len(mark)
        if text[at] == "\\":
            piece, at = _escape(text, at)
        else:  # a quote within a triple-quoted text
            piece, at = quote, at + 1
        pieces.append(piece)


def _escape(text: str, at: int) -> tuple[str, int]:
    match = _ESCAPE.match(text, at + 1)
    if match is None:
        raise InvalidAction(f"The reply ends after the backslash at position {at + 1}.")
    written, end = match[0], match.end()
    if written in _SIMPLE:
        return _SIMPLE[written], end
    if written[0].isdecimal() and written[0] < "8":
        return chr(int(written, 8)), end
    if len(written) > 1:
        try:
            return (unicodedata.lookup(written[2:-1]) if written[0] == "N" else chr(int(written[1:], 16))), end
        except (KeyError, ValueError) as error:
            raise InvalidAction(f"There is no character \\{written}, at position {at + 1}.") from error
    return "\\" + written, end  # as in Python


def _joined(text: str, start: int) -> str:
    """Return the text with surrogate pairs joined, since JSON writes characters beyond U+FFFF as pairs."""
    if not any("\ud800" <= char <= "\udfff" for char in text):
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise InvalidAction(
            f"The text at position {start + 1} holds half of a surrogate pair, which is no character."
        ) from error


def _found(text: str, at: int) -> str:
    if at >= len(text):
        return "The action ends"
    # repr() also escapes lone surrogates and control characters: the message stays printable text.
    return f"At position {at + 1} stands {text[at : at + 24]!r}"


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()
