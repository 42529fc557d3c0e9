"""Which programs may do something else in another run with the same tests."""

from __future__ import annotations

import pytest

from rllm_gym.grading.code.determinism import may_vary

HASHED = "class A:\n    def __hash__(self): return hash((self.x, 1))\n"


@pytest.mark.parametrize(
    ("program", "varies"),
    [
        (HASHED, False),
        ("class A:\n    __hash__ = None\n", False),
        # Its result is random for texts, and reaches the program by another name of it.
        ("x = hash('a')\n", True),
        (HASHED + "A().__hash__()\n", True),
        (HASHED + "    r = __hash__('a')\n", True),
        ("class A:\n    def __hash__(self): return hash(self.keep(hash('a')))\n", True),
        ("class A:\n    def __hash__(self):\n        self.r = hash('a')\n        return 1\n", True),
        ("def __hash__(): return hash('a')\n", True),
    ],
)
def test_a_hash_is_no_random_number_if_nothing_but_containers_asks_for_it(program: str, varies: bool) -> None:
    assert may_vary(program) is varies
