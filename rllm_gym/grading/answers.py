"""Typed short answers: what a task asks for, and whether a reply matches it, decided by rules without an LLM judge.

An answer is parsed the way its type is usually written and compared exactly. It must be the answer and nothing else: a
sentence around it, or two values where one is expected, does not match, so listing several guesses gains nothing. The
words after a number are its unit; a word there that changes the value (``5 minus five``, ``5 and a half``, ``5 pi``)
makes it no number, and ``thousand`` multiplies it, unless the task names that word as its unit.

========== ============================================ ==========================================================
Type       ``value``                                    Read as equal
========== ============================================ ==========================================================
number     ``12.5`` or ``"12.50"``                      ``12.50``, ``$12.50``, ``12,50 €``, ``12.5 kg``, ``twelve``
number     ``5000``                                     ``5 thousand``, ``5k``
date       ``"2025-03-04"``                             ``4 March 2025``, ``Mar 4th, 2025``, ``Tue, 2025/3/4``
time       ``"14:30"`` or ``"14:30:05"``                ``2:30 pm``, ``14.30``, ``14h30``
boolean    ``True``                                     ``yes``, ``True``
string     ``"Tea kettle"``                             ``tea  kettle.``, ``"Tea Kettle"``
set, list  ``["Tea", "Cups"]``, of strings or numbers   ``tea, cups``, ``- Tea`` on lines, ``["Tea", "Cups"]``
========== ============================================ ==========================================================
"""

from __future__ import annotations

import csv
import json
import re
import unicodedata
from collections.abc import Callable, Hashable, Iterator, Mapping
from datetime import date, time
from fractions import Fraction
from typing import Any

_LONGEST = 10_000
"""Maximum length of an answer in characters. A longer one does not match."""

_MAX_ITEMS = 1_000


def check_answer_spec(spec: Mapping[str, Any]) -> None:
    """Raise if a task's answer spec cannot be matched by any answer, or is ambiguous.

    Args:
        spec: ``{"type": …, "value": …}`` and optionally: ``"tolerance"`` of a number (maximum absolute error, 0 by
            default), ``"unit"`` of a number (a word or a list of words: if the answer names a unit it must be one of
            these; by default any unit is accepted), ``"aliases"`` of a string (a list), and ``"of"`` of a set or list
            (the type of its items, if they are not strings or numbers).

    Raises:
        ValueError: The spec is invalid; the message gives the reason.
    """
    kind = spec.get("type")
    if kind not in _KEYS:
        raise ValueError(f"answer type {kind!r} is not one of {', '.join(sorted(_KEYS))}")
    unknown = sorted(set(spec) - {"type", "value"} - _KEYS[kind])
    if unknown:
        raise ValueError(f"an answer of type {kind!r} does not accept {', '.join(map(repr, unknown))}")
    if "value" not in spec:
        raise ValueError(f"the answer spec {dict(spec)!r} has no 'value'")
    value = spec["value"]
    if kind in ("set", "list"):
        if not isinstance(value, list | tuple) or len(value) > _MAX_ITEMS:
            raise ValueError(f"the value of a {kind} must be a list of at most {_MAX_ITEMS} items; got {value!r}")
        if spec.get("of", "string") not in _READERS:
            raise ValueError(f"the item type of a {kind} must be one of {', '.join(_READERS)}; got {spec['of']!r}")
        items = [_expected(_item_type(spec, item), item) for item in value]
        if kind == "set" and len(set(items)) != len(items):
            raise ValueError(f"the set {value!r} contains an item twice")
        return
    _expected(kind, value)
    tolerance = spec.get("tolerance", 0)
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < float("inf"):
        raise ValueError(f"tolerance={tolerance!r} must be a number >= 0")
    for name in ("unit", "aliases"):
        words = spec.get(name, [])
        if not isinstance(words, str) and not all(isinstance(word, str) for word in words):
            raise ValueError(f"{name}={words!r} must be a string or a list of strings")


def matches(spec: Mapping[str, Any], answer: str) -> bool:
    """Return whether ``answer`` matches ``spec``. Takes bounded time for any text, and no answer raises an exception.

    Raises:
        ValueError: The spec itself is invalid; see :func:`check_answer_spec`.

    >>> matches({"type": "number", "value": 1234.5}, "$1,234.50")
    True
    >>> matches({"type": "number", "value": 5}, "4 or 5")
    False
    >>> matches({"type": "date", "value": "2025-03-04"}, "Tuesday, March 4th, 2025")
    True
    >>> matches({"type": "set", "value": ["Tea", "Cups"]}, "cups and tea")
    True
    """
    check_answer_spec(spec)
    if len(answer) > _LONGEST:
        return False
    kind, value = spec["type"], spec["value"]
    if kind in ("set", "list"):
        return _matches_items(spec, answer)
    if kind == "number":
        return _matches_number(spec, answer)
    values = _READERS[kind](answer)
    aliases = spec.get("aliases", ())
    right = [value, *([aliases] if isinstance(aliases, str) else aliases)]
    return values is not None and any(values == _expected(kind, one) for one in right)


def _matches_number(spec: Mapping[str, Any], answer: str) -> bool:
    units = spec.get("unit", ())
    allowed = frozenset(_plain(one) for one in ([units] if isinstance(units, str) else units))
    read = _quantity(answer, allowed)
    if read is None:
        return False
    number, unit = read
    if "unit" in spec and unit and unit not in allowed:
        return False
    off: Fraction = abs(number - _expected("number", spec["value"]))
    return off <= Fraction(str(spec.get("tolerance", 0)))


def _matches_items(spec: Mapping[str, Any], answer: str) -> bool:
    types = [_item_type(spec, item) for item in spec["value"]]
    expected = [_expected(kind, item) for kind, item in zip(types, spec["value"], strict=True)]
    for items in _splittings(answer):
        if spec["type"] == "list":
            if len(items) == len(types) and all(
                _READERS[kind](item) == right for kind, item, right in zip(types, items, expected, strict=True)
            ):
                return True
        else:
            readings = [{_READERS[kind](item) for kind in dict.fromkeys(types)} - {None} for item in items]
            values = set().union(*readings)
            if set(expected) <= values and all(reading & set(expected) for reading in readings):
                return True
    return False


def _item_type(spec: Mapping[str, Any], item: Any) -> str:
    default = "number" if isinstance(item, int | float) and not isinstance(item, bool) else "string"
    return str(spec.get("of", default))


def _expected(kind: str, value: Any) -> Any:
    """Return the value of a spec, parsed like an answer."""
    if kind == "boolean":
        fits = isinstance(value, bool | str)
    elif kind == "number":
        fits = isinstance(value, int | float | str) and not isinstance(value, bool)
    else:
        fits = isinstance(value, str)
    read = _READERS[kind](str(value)) if fits else None
    strict = {"date": r"\d{4}-\d\d-\d\d", "time": r"\d\d:\d\d(:\d\d)?"}.get(kind)
    if read is None or (strict and not re.fullmatch(strict, value)):
        forms = {"date": ' ("2025-03-04")', "time": ' ("14:30")', "boolean": " (True or False)"}
        raise ValueError(f"{value!r} is not a {kind}{forms.get(kind, '')}")
    return read


# Parsers. Each returns None for text that is not of its type.

_QUOTES = str.maketrans({"“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "‘": "'", "’": "'", "`": "'", "−": "-",
                         "–": "-", "\u00a0": " ", "\u202f": " ", "\u2009": " "})  # fmt: skip


def _plain(text: str) -> str:
    """Normalize a text: case, whitespace, kinds of quotes, surrounding quotes or emphasis, a final dot."""
    text = " ".join(unicodedata.normalize("NFKC", text.translate(_QUOTES)).casefold().split())
    while True:
        bare = text.removesuffix(".").rstrip() if not text.endswith("..") else text
        for mark in ("**", '"', "'", "*", "_"):
            if len(bare) > 2 * len(mark) and bare.startswith(mark) and bare.endswith(mark):
                bare = bare[len(mark) : -len(mark)].strip()
        if bare == text:
            return text
        text = bare


def _string(text: str) -> str | None:
    return _plain(text) or None


def _boolean(text: str) -> bool | None:
    words = {"yes": True, "true": True, "y": True, "no": False, "false": False, "n": False}
    return words.get(_plain(text).rstrip("!"))


_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
          "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty")  # fmt: skip
_CURRENCY = r"[$€£¥₹]|us\$|(?:usd|eur|gbp|chf|jpy|cny|inr)(?![a-z])"
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_MINUS = re.compile(r"^(?:minus|negative) (?=[0-9a-z])")
_SMALL = re.compile(
    rf"(?:(?P<hundreds>a|{'|'.join(_WORDS[1:20])}|) ?hundred(?: and(?= ))?(?: (?=.)|$))?"
    rf"(?:(?P<tens>{'|'.join(_TENS)})(?:[ -](?P<unit>{'|'.join(_WORDS[1:10])}))?|(?P<ones>{'|'.join(_WORDS[:20])}))?"
)
_MONEY_AFTER = re.compile(rf"(?:k|mn?|bn?|tn?)\.? ?(?:{_CURRENCY})")
_VULGAR = re.compile(r"[\u00bc-\u00be\u2150-\u215e]")
_QUANTITY = re.compile(
    rf"(?P<sign>[+-]?)\ ?(?P<money>{_CURRENCY})?\ ?(?P<inner>[+-]?)"
    rf"(?P<digits>[0-9][0-9.,'_/\ ]{{0,60}}|\.[0-9]{{1,40}})"
    rf"(?P<exponent>e[+-]?[0-9]{{1,3}})?\ ?(?P<unit>%|°[cf]?|{_CURRENCY}|[a-z]{{1,3}}\^?[23]|[^\W\d_][^\d,;:]{{0,40}})?"
)


_MAGNITUDES = {"hundred": 10**2, "thousand": 10**3, "k": 10**3, "million": 10**6, "mn": 10**6, "mln": 10**6,
               "billion": 10**9, "bn": 10**9, "trillion": 10**12, "tn": 10**12, "quadrillion": 10**15, "dozen": 12,
               "grand": 10**3, "lakh": 10**5, "crore": 10**7}  # fmt: skip
_MONEY_MAGNITUDES = {"m": 10**6, "b": 10**9, "t": 10**12}
"""Only after a currency: ``$5m``. Otherwise ``5 m`` is a length."""
_PARTS = ("four", "fif", "six", "seven", "eigh", "nin", "ten", "eleven", "twelf", "hundred", "thousand", "million",
          "billion")  # fmt: skip
_NOT_IN_UNITS = frozenset({*_WORDS, *_MAGNITUDES, *(part + end for part in _PARTS for end in ("th", "ths")),
    "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
    "or", "not", "no", "none", "nor", "minus", "plus", "divided", "wrong", "incorrect", "false", "maybe", "perhaps",
    "half", "halves", "third", "thirds", "quarter", "quarters", "isn't", "aren't", "pi", "π"})  # fmt: skip
_NOT_FIRST_IN_UNITS = _NOT_IN_UNITS | {"and", "to", "but", "over", "point", "squared", "cubed", "factorial", "i", "e",
    "doubled", "tripled", "halved", "negative", "tens", "score", "gross", "mil", "mille", "kilo", "mega", "mio", "mrd",
    "tausend", "millones", "millionen", "milliarden", "milliards", "st", "nd", "rd", "th", "ish", "twice", "thrice",
    "at", "off", "away", "above", "below", "under", "short", "raised"}  # fmt: skip
_UNIT_WORD = re.compile(r"[^\W\d_]+(?:'[a-z]+)?")
_LETTER_MAGNITUDE = re.compile(r"[0-9] ?[MBTG]\b")  # ``5M``; ``5 m`` is a length
_RAISED_DIGIT = re.compile(r"[0-9][\u00b2\u00b3\u00b9\u2070-\u209c\u00bc-\u00be\u2150-\u215f]")


def _quantity(text: str, units: frozenset[str] = frozenset()) -> tuple[Fraction, str] | None:
    """Return a number and its unit ("" without one). A word in ``units`` is a unit, whatever else it may mean."""
    text = _VULGAR.sub(lambda part: f" {unicodedata.normalize('NFKC', part[0])}".replace("\u2044", "/"), text)
    if _RAISED_DIGIT.search(text):  # 5² would become 52
        return None
    has_magnitude = _LETTER_MAGNITUDE.search(text) is not None
    text = _plain(text)
    if (worded := _in_words(text)) is not None:
        return worded, ""
    text = _MINUS.sub("-", text)
    found = _QUANTITY.fullmatch(text)
    if found is None or (found["sign"] and found["inner"]):
        return None
    if (fraction := _fraction(found["digits"].strip())) is not None:
        if found["exponent"]:
            return None
        number = fraction
    else:
        digits = _decimal(found["digits"].strip())
        if digits is None:
            return None
        number = Fraction(digits + (found["exponent"] or ""))
    unit = (found["unit"] or "").strip()
    words = _UNIT_WORD.findall(unit)
    money = found["money"] or _MONEY_AFTER.fullmatch(unit)
    if has_magnitude and not money and unit not in units:  # or mega, giga, tesla, bytes
        return None
    magnitudes = _MAGNITUDES | _MONEY_MAGNITUDES if money else _MAGNITUDES
    if words and unit not in units:
        if (factor := magnitudes.get(words[0] if len(words[0]) <= 3 else words[0].removesuffix("s"))) is not None:
            number, unit = number * factor, unit[len(words[0]) :].strip()
            words = words[1:]
        if unit not in units and words and (words[0] in _NOT_FIRST_IN_UNITS or not _NOT_IN_UNITS.isdisjoint(words)):
            return None
    return (-number if "-" in (found["sign"], found["inner"]) else number), unit or (found["money"] or "")


def _fraction(digits: str) -> Fraction | None:
    """Return ``3/4`` or ``1 3/4``."""
    found = re.fullmatch(r"(?:([0-9]{1,9}) )?([0-9]{1,9}) ?/ ?([0-9]{1,9})", digits)
    if found is None or not int(found[3]):
        return None
    part = Fraction(int(found[2]), int(found[3]))
    return part if found[1] is None else int(found[1]) + part if part < 1 else None


def _in_words(text: str) -> Fraction | None:
    """Return ``minus twenty-one``, ``two hundred and five`` or ``a dozen``, which must be the whole text."""
    rest = _MINUS.sub("", text)
    if rest in ("dozen", "a dozen"):
        rest = "twelve"
    total = 0
    for name in ("million", "thousand"):
        head, found, tail = f"{rest} ".partition(f" {name} ")
        if found:
            count = 1 if head == "a" else _below_thousand(head)
            if not count:
                return None
            total, rest = total + count * _MAGNITUDES[name], tail.strip()
    part = _below_thousand(rest) if rest or not total else 0
    return None if part is None else Fraction(-(total + part) if _MINUS.match(text) else total + part)


def _below_thousand(text: str) -> int | None:
    found = _SMALL.fullmatch(text)
    if found is None or not text:
        return None
    hundreds = {None: 0, "": 1, "a": 1}.get(found["hundreds"])
    hundreds = _WORDS.index(found["hundreds"]) if hundreds is None else hundreds
    tens = _TENS.index(found["tens"]) * 10 + 20 if found["tens"] else 0
    return hundreds * 100 + tens + (_WORDS.index(ones) if (ones := found["ones"] or found["unit"]) else 0)


def _number(text: str) -> Fraction | None:
    read = _quantity(text)
    return None if read is None else read[0]


def _decimal(digits: str) -> str | None:
    """Return ``1,234.50``, ``1.234,50``, ``1 234`` or ``12,5`` in Python notation."""
    for group, mark in (("[,'_ ]", "[.]"), ("[.'_ ]", ",")):
        pattern = f"[0-9]+|[0-9]{{1,3}}(?P<group>{group})[0-9]{{3}}(?:(?P=group)[0-9]{{3}})*"
        found = re.fullmatch(f"(?P<whole>{pattern})?(?:{mark}(?P<part>[0-9]*))?", digits)
        if found and (found["whole"] or found["part"]):
            return f"{re.sub('[^0-9]', '', found['whole'] or '0')}.{found['part'] or '0'}"
    return None


_MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
           "november", "december")  # fmt: skip
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_ORDINAL = r"(?P<day>[0-9]{1,2})(?:st|nd|rd|th)?"
_DATES = (
    re.compile(r"(?P<year>[0-9]{4})([-/.])(?P<month>[0-9]{1,2})\2(?P<day>[0-9]{1,2})"),
    re.compile(r"(?P<year>[0-9]{4})(?P<month>[0-9]{2})(?P<day>[0-9]{2})"),
    re.compile(rf"(?:the )?{_ORDINAL}[- ](?:of )?(?P<month>[a-z]{{3,9}})\.?,?[- ](?P<year>[0-9]{{4}})"),
    re.compile(rf"(?P<month>[a-z]{{3,9}})\.? (?:the )?{_ORDINAL},? (?P<year>[0-9]{{4}})"),
    re.compile(r"(?P<day>[0-9]{1,2})\.(?P<month>[0-9]{1,2})\.(?P<year>[0-9]{4})"),
)
_SLASHES = re.compile(r"([0-9]{1,2})[/-]([0-9]{1,2})[/-]([0-9]{4})")


def _date(text: str) -> date | None:
    """Return a complete date. 03/04/2025 is rejected, because its meaning depends on the country."""
    text = _plain(text)
    weekday = None
    if found := re.match(r"([a-z]{3,9})\.?,? (?=.*[0-9])", text):
        weekday = _named(found[1], _DAYS)
        text = text[found.end() :] if weekday is not None else text
    readings = set(_dates(text))
    if len(readings) != 1:
        return None
    (day,) = readings
    return day if weekday in (None, day.weekday()) else None


def _dates(text: str) -> Iterator[date]:
    for form in _DATES:
        if found := form.fullmatch(text):
            named = None if found["month"].isdecimal() else _named(found["month"], _MONTHS)
            month = int(found["month"]) if found["month"].isdecimal() else 0 if named is None else named + 1
            yield from _day(int(found["year"]), month, int(found["day"]))
    if found := _SLASHES.fullmatch(text):
        first, second, year = map(int, found.groups())
        yield from _day(year, first, second)
        yield from _day(year, second, first)


def _day(year: int, month: int, day: int) -> Iterator[date]:
    try:
        yield date(year, month, day)
    except ValueError:
        return


def _named(word: str, names: tuple[str, ...]) -> int | None:
    """Return the index of the name that ``word`` equals or abbreviates, or None. Three letters are unambiguous."""
    return next((number for number, name in enumerate(names) if len(word) >= 3 and name.startswith(word)), None)


_TIME = re.compile(r"([0-9]{1,2})(?:[:.h]([0-9]{2}))?(?:[:.]([0-9]{2}))? ?(am|pm|a\.m|p\.m|h|hrs|uhr|o'clock)?")


def _time(text: str) -> time | None:
    text = _plain(text)
    if text in ("noon", "midday", "midnight"):
        return time(0 if text == "midnight" else 12)
    found = _TIME.fullmatch(text)
    if found is None or (found[2] is None and found[4] is None):  # a bare number is not a time
        return None
    hour, minute, second = int(found[1]), int(found[2] or 0), int(found[3] or 0)
    half = (found[4] or "").replace(".", "")
    if half in ("am", "pm"):
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half == "pm" else 0)
    return time(hour, minute, second) if hour < 24 and minute < 60 and second < 60 else None


_READERS: dict[str, Callable[[str], Hashable | None]] = {
    "number": _number,
    "date": _date,
    "time": _time,
    "boolean": _boolean,
    "string": _string,
}
_KEYS: dict[str, set[str]] = {
    "number": {"tolerance", "unit"},
    "date": set(),
    "time": set(),
    "boolean": set(),
    "string": {"aliases"},
    "set": {"of"},
    "list": {"of"},
}


_FENCE = re.compile(r"^\s*```[a-z]*\n(.*?)\n?```\s*$", re.DOTALL)


def _splittings(answer: str) -> Iterator[list[str]]:
    """Yield the ways to split an enumeration: JSON, else lines, semicolons, commas. Each uses the whole text."""
    answer = _FENCE.sub(r"\1", answer).strip()
    listed = _json_list(answer)
    if listed is not None:
        yield listed
        return
    if _plain(answer) in ("", "none", "nothing", "[]", "{}", "empty", "no items"):
        yield []
    if answer[:1] + answer[-1:] in ("[]", "()", "{}"):  # as in Python or mathematics
        answer = answer[1:-1]
    bullet = re.compile(r"\s*(?:[-*•]|[0-9]{1,4}[.)])\s+")
    splits = [
        [bullet.sub("", line, count=1) for line in answer.splitlines()],
        answer.splitlines(),
        answer.split(";"),
        [answer],
    ]
    flat = " ".join(answer.split())
    splits.append(_by_commas(flat))
    splits.append(_by_commas(re.sub(r",? (?:and|&) (?=[^,;]*$)", ", ", flat)))
    splits += [re.split(r", ", flat), re.split(r",? and |, ", flat)]  # 1,200, 3,400
    for split in splits:
        items = [item.strip() for item in split if item.strip()]
        if 0 < len(items) <= _MAX_ITEMS:
            yield items


def _by_commas(text: str) -> list[str]:
    try:
        return next(csv.reader([text], skipinitialspace=True), [])
    except csv.Error:
        return []


def _json_list(answer: str) -> list[str] | None:
    if not (answer.startswith("[") and answer.endswith("]")):
        return None
    try:
        items = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    if not all(isinstance(item, str | int | float) for item in items):
        return None
    return [str(item) for item in items]
