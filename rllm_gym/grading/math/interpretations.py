"""Possible meanings of an answer: trees, the most likely first. ``1,234`` is a number, and may be a list."""

from __future__ import annotations

import re
from functools import lru_cache

from rllm_gym.grading.math.normalize import normalize_spelling
from rllm_gym.grading.math.parser import parse
from rllm_gym.grading.math.syntax import FUNCTIONS, MathNode, MathSyntaxError, is_word, number

NUMBER_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip
_GROUPED = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_DECIMAL_COMMA = re.compile(r"([-+]?)([0-9]+),([0-9]+)")
_LETTERS = re.compile(r"[^\W\d_]+")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_NO_WORDS = re.compile(r"[0-9=+*/^<>\\{}|$%]")
_CHOICE = re.compile(r"(?:\\text\{)?\s*\(?([A-Ha-h])\s*(?:\)\s*[.:]?|[.:])\s*\}?\s+\S.*", re.DOTALL)
_OPTION = re.compile(r"(?:(?i:option|choice)\s+)?\(?([A-Ha-h])\)?[.:]?")
_DEGREES = re.compile(
    r"(?<=[0-9)}])\s*(?:\^\s*(?:\{\s*\\(?:circ|degree)\s*\}|\\(?:circ|degree)(?![a-z]))|\\degree(?![a-z])"
    r"|\\text\{\s*degrees?\s*\}|degrees?(?![a-z]))"
)
_TO_RADIANS = r" \\cdot \\frac{\\pi}{180} "
_IS_TEXT = re.compile(r"\\text\{[^{}]*(?:\bis|\bare|=|:)\s*\}\s*", re.IGNORECASE)
_CHOICE_TEXT = re.compile(r"\\text\{\s*(?:option|choice)?\s*\(?([A-Ha-h])[).:]\s*[^{}]*\}.*", re.DOTALL | re.IGNORECASE)
_OTHER_OPTION = re.compile(
    r"(?<![A-Za-z0-9)])\(\s*[A-Ha-h]\s*\)|(?<=[\s,;{])[A-H][).:]\s+\S"
    r"|(?:,|;|\band|\bor)[^A-Za-z0-9(]*[A-Ha-h][).:](?!\()"
    r"|^[\s).:}]*(?:\\text\{)?\s*(?:[,;/&]|and\b|or\b|[A-Ha-h](?![A-Za-z0-9(_^'])[\s})]*$)"
)
"""In what follows the letter of an option: another letter, or a word that joins another answer."""
_TUPLE = re.compile(r"\(\s*(?:[a-z]|-?[0-9]+)(?:\s*,\s*(?:[a-z]|-?[0-9]+))+\s*\)")
"""``(a, b)`` in the text of an option: ``b)`` is no option."""
_UNIONS = re.compile(r"(?<=[)\]}])\s*U\s*(?=[(\[\\{])")
_ANY_INTEGER = re.compile(
    r"(?<=[^ ,])(?:\s|,|\\text\{\s*(?:(?:where|for|with)\s*)?\})*[(\s][klmnp]\s*\\in\s*\\mathbb\s*\{?Z\}?\)?$"
)
"""``, k \\in \\mathbb{Z}`` at the end of a periodic solution, which answers and gold answers often leave out."""
_IS = re.compile(
    r"(?:the\s+)?(?:final\s+|correct\s+)?(?:answer|result|value|solution)s?(?:\s+(?:is|are)|\s*[:=])\s*", re.IGNORECASE
)
_SAME = {
    "nosolution": MathNode("empty"), "nosolutions": MathNode("empty"), "nosolutionexists": MathNode("empty"),
    "nosolutionsexist": MathNode("empty"), "emptyset": MathNode("empty"), "theemptyset": MathNode("empty"),
    "nosuchvalue": MathNode("empty"), "norealsolution": MathNode("empty"),
    "norealsolutions": MathNode("empty"), "none": MathNode("empty"), "allrealnumbers": MathNode("reals"),
    "allreals": MathNode("reals"),
    "allrealx": MathNode("reals"), "realnumbers": MathNode("reals"), "undefined": MathNode("text", ("undefined",)),
    "dne": MathNode("text", ("undefined",)), "doesnotexist": MathNode("text", ("undefined",)),
    "notdefined": MathNode("text", ("undefined",)), "infinity": MathNode("inf"), "infinite": MathNode("inf"),
    "positiveinfinity": MathNode("inf"), "negativeinfinity": MathNode("neg", (MathNode("inf"),)),
    **{word: number(str(value)) for value, word in enumerate(NUMBER_WORDS)},
}  # fmt: skip
_NEGATIVE = re.compile(r"(?:\\text\{\s*)?(?:negative|minus)\s*\}?\s*(?=[0-9\\.])", re.IGNORECASE)


@lru_cache(maxsize=2048)
def interpretations(normalized: str) -> tuple[MathNode, ...]:
    """Return the readings of a normalized answer, most likely first; none if it is unreadable."""
    words = _words(normalized)
    if words is not None:
        return (words,)
    text = _UNIONS.sub(r"\\cup ", normalized)
    for opening in (_IS, _IS_TEXT):
        if match := opening.match(text):
            text = text[match.end() :]
    text = _ANY_INTEGER.sub("", text)
    if match := _NEGATIVE.match(text):
        text = "-" + text[match.end() :]
    joined = _join_groups(text)
    found: list[MathNode] = []
    for spelling in dict.fromkeys([joined, text]):
        try:
            found.append(parse(spelling))
        except MathSyntaxError:
            continue
    return tuple(found)


def choice(normalized: str) -> str | None:
    """Return the letter of an option given with its text: ``(C) 12``, ``B. seven``; ``None`` for ``(C) or (D)``."""
    match = _CHOICE.fullmatch(normalized) or _CHOICE_TEXT.fullmatch(normalized)
    return match[1].upper() if match and not _OTHER_OPTION.search(_TUPLE.sub(" ", normalized[match.end(1) :])) else None


def option_letter(normalized: str) -> str | None:
    """Return the letter of an answer that is only an option's letter: ``C``, ``(c)``, ``c.``, ``\\text{(C)}``."""
    match = _OPTION.fullmatch(_TEXT.sub(r"\1", normalized).strip())
    return match[1] if match else None


def in_radians(gold: str, answer: str) -> tuple[str, str]:
    """Return both normalized answers in radians if one has degree marks, and the other pi and none."""
    marked, other = ((_DEGREES.search(text) is not None) for text in (gold, answer))
    if marked and not other and "\\pi" in answer:
        return _DEGREES.sub(_TO_RADIANS, gold), answer
    if other and not marked and "\\pi" in gold:
        return gold, _DEGREES.sub(_TO_RADIANS, answer)
    return gold, answer


def decimal_comma(normalized: str) -> MathNode | None:
    """Return ``2,74`` read as 2.74. It may also be a list of two numbers."""
    match = _DECIMAL_COMMA.fullmatch(normalized)
    if match is None or (len(match[3]) == 3 and match[2] != "0" and len(match[2]) <= 3):
        return None  # a group of three digits
    node = number(f"{match[2]}.{match[3]}")
    return MathNode("neg", (node,)) if match[1] == "-" else node


def looks_decimal(normalized: str) -> bool:
    """Return whether ``a,b`` is more likely a decimal than a list: at least two decimals, and not a group of three."""
    match = _DECIMAL_COMMA.fullmatch(normalized)
    return match is not None and (match[2] == "0" or len(match[3]) == 2 or len(match[3]) > 3) and not match[1]


def _join_groups(text: str) -> str:
    """Remove the commas that group digits, outside brackets (inside they separate)."""
    if not _GROUPED.search(text):
        return text
    depth, start, pieces = 0, 0, []
    for match in _GROUPED.finditer(text):
        for character in text[start : match.start()]:
            depth += (character in "([{") - (character in ")]}")
        pieces.append(text[start : match.start()])
        pieces.append(match[0] if depth > 0 else match[0].replace(",", ""))
        start = match.end()
    return "".join(pieces) + text[start:]


def _words(normalized: str) -> MathNode | None:
    """Return an answer of one or several words; ``None`` if it is mathematics."""
    plain = _TEXT.sub(r" \1 ", normalized).strip()
    special = _SAME.get("".join(_LETTERS.findall(plain)).lower())
    if special is not None and not _NO_WORDS.search(plain):
        return special
    if _NO_WORDS.search(plain):
        return None
    runs = _LETTERS.findall(plain)
    wrapped = any(len(run) > 1 for match in _TEXT.finditer(normalized) for run in _LETTERS.findall(match[1]))
    if not wrapped and not any(is_word(run) for run in runs):
        return None
    if any(run.lower() in FUNCTIONS for run in runs) and len(runs) < 4:
        return None
    parts = [part.strip() for part in re.split(r",|;|\band\b|\bor\b", plain) if part.strip(" .")]
    if 1 < len(parts) <= 8 and all(len(part.split()) <= 3 for part in parts):
        return MathNode("list", tuple(MathNode("text", (part,)) for part in parts))
    return MathNode("text", (plain,))


def same_spelling(gold: str, answer: str) -> bool:
    """Return whether two normalized answers differ in spacing and wrappers only."""
    return normalize_spelling(gold) == normalize_spelling(answer) != ""
