"""Exact match and F1 of a short answer, with the normalization of SQuAD and HotpotQA: the usual measures of question
answering."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

MAX_CHARS = 10_000
"""Maximum length of an answer in characters. A longer one scores 0."""

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_CLOSED = frozenset({"yes", "no", "noanswer"})


def normalize_answer(text: str) -> str:
    """Return the text in lower case, without ASCII punctuation and English articles, with single spaces.

    Where nothing would be left, as of ``"The"`` and ``"?"``, the articles or the punctuation stay, so that two such
    answers are not equal.

    >>> normalize_answer("The  Beatles (band)")
    'beatles band'
    >>> normalize_answer("A"), normalize_answer("?!")
    ('a', '?!')
    """
    lower = " ".join(text.lower().split())
    plain = " ".join(lower.translate(_PUNCTUATION).split())
    return " ".join(_ARTICLES.sub(" ", plain).split()) or plain or lower


def exact_match(answer: str, gold: Iterable[str]) -> float:
    """Return 1.0 if the answer equals one of the gold answers after :func:`normalize_answer`, else 0.0.

    >>> exact_match("the Eiffel Tower.", ["Eiffel tower"]), exact_match("Eiffel Tower or Louvre", ["Eiffel tower"])
    (1.0, 0.0)
    """
    if len(answer) > MAX_CHARS:
        return 0.0
    normalized = normalize_answer(answer)
    return float(any(normalized == normalize_answer(one) for one in gold))


def f1_score(answer: str, gold: Iterable[str]) -> float:
    """Return the highest F1 of the answer's words with those of a gold answer, from 0.0 to 1.0.

    As in HotpotQA, ``yes``, ``no`` and ``noanswer`` score only if the whole answer is equal.

    >>> f1_score("in the city of Paris", ["Paris"])
    0.4
    >>> f1_score("yes it is", ["yes"])
    0.0
    """
    if len(answer) > MAX_CHARS:
        return 0.0
    mine = normalize_answer(answer)
    return max((_f1(mine, normalize_answer(one)) for one in gold), default=0.0)


def _f1(answer: str, gold: str) -> float:
    if answer == gold:
        return float(answer != "")
    if answer in _CLOSED or gold in _CLOSED:
        return 0.0
    mine, right = answer.split(), gold.split()
    shared = sum((Counter(mine) & Counter(right)).values())
    return 2 * shared / (len(mine) + len(right)) if shared else 0.0
