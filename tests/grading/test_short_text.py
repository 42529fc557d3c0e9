"""Exact match and F1 are those of SQuAD and HotpotQA, and cannot be raised by listing candidates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm_gym.grading.short_text import MAX_CHARS, exact_match, f1_score, normalize_answer

# answer, gold answers, exact match, F1 (counted by hand)
SCORES = [
    ("Eiffel Tower", ["the Eiffel tower."], 1, 1),
    ("An Eiffel-Tower!", ["eiffeltower"], 1, 1),
    ("23,417", ["23417"], 1, 1),
    ("Paris, France", ["Paris"], 0, 2 / 3),
    ("Paris or London", ["Paris"], 0, 1 / 2),
    ("Paris Paris", ["Paris"], 0, 2 / 3),
    ("the capital of France is Paris", ["Paris", "capital France"], 0, 2 * 2 / (5 + 2)),
    ("NYC", ["New York", "NYC"], 1, 1),
    ("yes", ["no"], 0, 0),
    ("yes, it is", ["yes"], 0, 0),
    ("no", ["no"], 1, 1),
    ("Anna", ["a nna"], 0, 0),
    ("", ["Paris"], 0, 0),
    # Of these nothing is left in SQuAD's normalization, so that every one would equal every other.
    ("the", ["A"], 0, 0),
    ("A", ["a"], 1, 1),
    ("!", ["?"], 0, 0),
    ("?", ["?"], 1, 1),
    ("x" * (MAX_CHARS + 1), ["x" * (MAX_CHARS + 1)], 0, 0),
]


@pytest.mark.parametrize(
    ("answer", "gold", "exact", "f1"), SCORES, ids=[f"{row[0][:20]}-{row[1][0][:20]}" for row in SCORES]
)
def test_scores(answer, gold, exact, f1):
    assert exact_match(answer, gold) == exact
    assert f1_score(answer, gold) == pytest.approx(f1)


@given(st.text(max_size=20), st.text(max_size=20))
def test_scores_are_bounded_symmetric_and_one_for_the_answer_itself(answer, gold):
    assert 0 <= f1_score(answer, [gold]) <= 1
    assert f1_score(answer, [gold]) == f1_score(gold, [answer])
    assert exact_match(answer, [gold]) <= f1_score(answer, [gold]) or not normalize_answer(gold)
    assert exact_match(gold, [gold]) == 1
