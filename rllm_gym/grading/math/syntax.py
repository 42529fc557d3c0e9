"""The tree and the tokens of an answer. Nothing is evaluated here."""

# ruff: noqa: SIM905 - tables of words are read more easily as text
from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple


class MathSyntaxError(ValueError):
    """The answer uses no known notation."""


@dataclass(frozen=True, slots=True)
class MathNode:
    """One node of an answer's tree.

    Attributes:
        op: Its kind. Numbers: ``num`` (Fraction, decimal places or None), ``const`` (pi, e, i), ``sym``, ``inf``,
            ``based`` (digits, base). Arithmetic: ``add mul div pow neg fact pm mp fn app abs``. Marks: ``pct deg unit
            mod``. Collections: ``tuple`` (open, items, close), ``list``, ``set``, ``matrix``, ``ratio``, ``union inter
            minus reals empty``. Statements: ``rel`` (operators, sides). Words: ``text``.
        args: Its parts.
    """

    op: str
    args: tuple[Any, ...] = ()


def children(node: MathNode) -> Iterator[MathNode]:
    """Yield the nodes directly below, including those in tuples of arguments."""
    for argument in node.args:
        if isinstance(argument, MathNode):
            yield argument
        elif isinstance(argument, tuple):
            for inner in argument:
                if isinstance(inner, MathNode):
                    yield inner
                elif isinstance(inner, tuple):
                    yield from (item for item in inner if isinstance(item, MathNode))


class Token(NamedTuple):
    """``kind`` is num, cmd, letter, text, fn or op; ``text`` is its spelling without backslash."""

    kind: str
    text: str


FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc asin acos atan sinh cosh tanh coth log ln lg "
    "exp max min gcd lcm sgn arg Re Im floor ceil abs det deg".split()
)
_GREEK = frozenset(
    "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell".split()
)
UNITS = frozenset(
    "cm mm km nm dm meter meters metre metres kilometer kilometers kilometre centimeter centimeters centimetre "
    "millimeter millimeters inch inches foot feet ft yard yards yd mile miles mph kph kmh kmph hour hours hr hrs "
    "minute minutes min mins second seconds sec secs day days week weeks month months year years yr yrs degree degrees "
    "dollar dollars cent cents euro euros pound pounds lb lbs ounce ounces oz ton tons kg gram grams mg kilogram "
    "kilograms gallon gallons gal quart quarts pint pints cup cups liter liters litre litres ml unit units square "
    "squared sq cubic cubed per radian radians rad percentage points point people person persons student students "
    "child children boy boys girl girls man men woman women book books apple apples times way ways total each am pm "
    "usd joule joules watt watts newton newtons volt volts hz kwh mol moles kelvin celsius fahrenheit".split()
)
_JOINS = {"and": ",", "or": ",", "to": ":"}
_REFUSED_UNITS = frozenset(
    "not wrong no isn isnt incorrect false never nor neither except without but "
    "or if else otherwise unless maybe perhaps possibly least most half".split()
)
_ANOTHER_VALUE = re.compile(
    r"(?:[,;]|\b(?:and|times)\b)\s*[-+]?(?:[0-9]|(?:one|two|three|four|five|six|seven|eight|nine|ten)\b)"
)
_COMMAND_WORDS = {"infinity": "infty", "inf": "infty", "oo": "infty", "pi": "pi", "union": "cup", "degrees": "degree",
                  "degree": "degree", "sqrt": "sqrt", "cbrt": "cbrt", "percent": "%", "pct": "%", "in": "in",
                  "mod": "bmod", "choose": "choose", "cup": "cup", "approx": "approx"}  # fmt: skip

_TOKEN = re.compile(
    r"(?P<num>[0-9]*\.[0-9]*\\(?:overline|bar|dot|overline\s)\s*\{[0-9]+\}"
    r"|(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,4}(?![0-9A-Za-z^_]))?)"
    r"|\\text\{(?P<text>[^{}]*)\}"
    r"|\\mathbb\s*\{?\s*(?P<bb>[RZNQC])\s*\}?"
    r"|\\(?P<cmd>[A-Za-z]+|[{}|\\])"
    r"|(?P<word>[A-Za-z]+)"
    r"|(?P<op>\*\*|!=|<=|>=|=>|=<|==|~=|:=|[-+*/^_(){}\[\]|,;:=<>!%'&])"
    r"|(?P<space>[ \t\r\n]+)"
    r"|(?P<other>.)",
    re.DOTALL,
)
_OPERATORS = {
    "**": "^",
    "!=": "ne",
    "<=": "le",
    ">=": "ge",
    "=>": "ge",
    "=<": "le",
    "==": "=",
    "~=": "approx",
    ":=": "=",
}
_COMMAND_OPERATORS = {"le": "le", "ge": "ge", "ne": "ne", "approx": "approx", "in": "in", "equiv": "=", "cong": "=",
                      "sim": "approx", "times": "*", "cdot": "*", "div": "/", "cup": "cup", "cap": "cap",
                      "setminus": "setminus", "pm": "pm", "mp": "mp", "{": "\\{", "}": "\\}", "|": "\\|", "\\": "\\\\",
                      "degree": "degree", "%": "%", "bmod": "bmod", "choose": "choose", "lfloor": "lfloor",
                      "rfloor": "rfloor", "lceil": "lceil", "rceil": "rceil", "langle": "langle", "rangle": "rangle",
                      "prime": "'"}  # fmt: skip
MAX_TOKENS = 2000


def tokenize(normalized: str) -> list[Token]:
    """Return the tokens of a normalized answer.

    Raises:
        MathSyntaxError: There are more than ``MAX_TOKENS``, or a character of no known notation.
    """
    tokens: list[Token] = []
    for match in _TOKEN.finditer(normalized):
        kind = match.lastgroup
        text = match[kind] if kind else ""
        if kind == "space":
            continue
        if kind == "other":
            raise MathSyntaxError(f"unknown character {text!r}")
        if kind == "op":
            tokens.append(Token("op", _OPERATORS.get(text, text)))
        elif kind == "cmd":
            tokens.append(_command(text))
        elif kind == "bb":
            tokens.append(Token("cmd", "reals" if text == "R" else f"bb{text}"))
        elif kind == "word":
            _word(text, tokens)
        else:
            tokens.append(Token(str(kind), text))
        if len(tokens) > MAX_TOKENS:
            raise MathSyntaxError(f"more than {MAX_TOKENS} symbols")
    return tokens


def _command(name: str) -> Token:
    if name in _COMMAND_OPERATORS:
        return Token("op", _COMMAND_OPERATORS[name])
    if name in FUNCTIONS:
        return Token("fn", name)
    if name in _GREEK:
        return Token("letter", name)
    return Token("cmd", name)


def _word(word: str, tokens: list[Token]) -> None:
    """Add the tokens of a run of letters: a function, a unit, a join, a product of variables, or a word."""
    lower = word.lower()
    if len(word) == 1:
        tokens.append(Token("letter", word))
    elif lower in _JOINS:
        tokens.append(Token("op", _JOINS[lower]))
    elif lower in _COMMAND_WORDS:
        tokens.append(_command(_COMMAND_WORDS[lower]))
    elif word in FUNCTIONS or (lower in FUNCTIONS and word[1:].islower() and lower not in ("re", "im")):
        tokens.append(Token("fn", lower if lower in FUNCTIONS else word))
    elif word in _GREEK:
        tokens.append(Token("letter", word))
    elif is_word(word):
        tokens.append(Token("text", word))
    else:
        for name in ("sqrt", "arcsin", "arccos", "arctan", "sin", "cos", "tan", "log", "ln", "pi"):
            if word.startswith(name) and len(word) <= len(name) + 2:
                tokens.append(_command(name))
                tokens.extend(Token("letter", letter) for letter in word[len(name) :])
                return
        tokens.extend(Token("letter", letter) for letter in word)


def is_word(run: str) -> bool:
    """Return whether a run of letters is a word of prose rather than a product of variables such as ``xyz``."""
    if run.lower() in UNITS:
        return True
    if run.lower() in _SHORT_WORDS:
        return True
    if len(run) < 3:
        return run in ("no", "No", "he", "us", "we")
    if any(
        run.startswith(name) and len(run) <= len(name) + 2 for name in ("sqrt", "sin", "cos", "tan", "log", "ln", "pi")
    ):
        return False
    # Adjacent variables are usually in alphabetical order and neighbours in the alphabet: abc, xyz, mnp.
    gaps = [ord(b) - ord(a) for a, b in itertools.pairwise(run)]
    if len(run) > 3:
        return not all(0 < gap <= 3 for gap in gaps)
    return min(gaps) <= 0 and run[1:].islower() and not run.islower()


_SHORT_WORDS = frozenset("odd yes red two one six ten all any can may saw was the few son mom dad cat dog tie".split())


def refuses_as_unit(words: str) -> bool:
    """Return whether text after a number retracts or changes it ("5 is wrong", "5 or 6") instead of naming a unit."""
    first = words.lower().split()[:1]
    return (
        len(words) > 60
        or first in (["squared"], ["cubed"], ["plus"], ["minus"], ["half"])
        or any(word in _REFUSED_UNITS for word in re.findall(r"[a-z]+", words.lower()))
        or _ANOTHER_VALUE.search(words.lower()) is not None
    )


def number(spelling: str) -> MathNode:
    """Return the ``num`` node of a decimal spelling, including repeating decimals (``0.1\\overline{6}``)."""
    head, backslash, rest = spelling.partition("\\")
    if backslash:
        repeated = "".join(c for c in rest if c.isdigit())
        whole_part, _, digits = head.partition(".")
        scale = 10 ** len(digits)
        value = Fraction(int(whole_part + digits or "0"), scale)
        return MathNode("num", (value + Fraction(int(repeated), scale * (10 ** len(repeated) - 1)), None))
    if "e" in spelling.lower():
        return MathNode("num", (Fraction(spelling), None))
    if "." in spelling:
        return MathNode("num", (Fraction(spelling), len(spelling.partition(".")[2])))
    return MathNode("num", (Fraction(int(spelling)), None))
