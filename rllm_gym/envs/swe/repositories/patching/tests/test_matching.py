import itertools

import pytest
from linepatch.matching import matching_pairs


@pytest.mark.parametrize(
    ("old", "new", "pairs"),
    [
        ("", "", []),
        ("abc", "abc", [(0, 0), (1, 1), (2, 2)]),
        ("abc", "axc", [(0, 0), (2, 2)]),
        ("abc", "c", [(2, 0)]),
        ("abcd", "bd", [(1, 0), (3, 1)]),
        ("ab", "ba", [(1, 0)]),
        ("aa", "a", [(0, 0)]),
        ("xaby", "zabw", [(1, 1), (2, 2)]),
    ],
)
def test_pairs(old, new, pairs):
    assert matching_pairs(old, new) == pairs


def longest(old, new):
    for size in range(min(len(old), len(new)), -1, -1):
        if set(itertools.combinations(old, size)) & set(itertools.combinations(new, size)):
            return size
    return 0


def test_there_are_as_many_as_there_can_be():
    texts = ["".join(letters) for size in range(5) for letters in itertools.product("ab", repeat=size)]
    assert [len(matching_pairs(*both)) for both in itertools.product(texts, texts)] == [
        longest(*both) for both in itertools.product(texts, texts)
    ]
    for old, new in itertools.product(texts, texts):
        pairs = matching_pairs(old, new)
        assert all(old[i] == new[j] for i, j in pairs)
        assert all(a < c and b < d for (a, b), (c, d) in itertools.pairwise(pairs))
