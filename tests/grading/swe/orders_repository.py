"""A repository whose hidden tests compare in many ways, its fix, and hostile and honest versions of each function."""

from __future__ import annotations

from small_repository import changes

from rllm_gym.grading.swe import RepositoryTests
from rllm_gym.sandbox import Changes

MONEY = '''"""An amount of money."""


class Money:
    def __init__(self, cents):
        self.cents = cents
        self._shown = None

    def __eq__(self, other):
        return isinstance(other, Money) and self.cents == other.cents

    def __hash__(self):
        return hash(self.cents)

    def __lt__(self, other):
        return self.cents < other.cents

    def __repr__(self):
        return f"Money({self.cents})"
'''

CHECKS = '''"""What the tests of users of this package call."""


def assert_same_prices(found, expected):
    assert found == expected
'''

PARTS = {
    "discounted": """def discounted(price, percent):
    if price < 0:
        raise PriceError(f"a negative price: {price}")
    return price - price * percent / 100
""",
    "subtotal": """def subtotal(prices):
    return Money(sum(prices))
""",
    "labels": """def labels(cart):
    return [name.upper() for name in sorted(cart)]
""",
    "label": """def label(name, price):
    return f"{name.title()}: {price:.2f}"
""",
    "average": """def average(prices):
    return sum(prices) / len(prices)
""",
    "cheapest": """def cheapest(prices):
    return min(prices)
""",
    "prices": """def prices(cart):
    return {name: price for name, price in cart.items() if price}
""",
    "is_free": """def is_free(cart):
    return not any(cart.values())
""",
    "receipt": """def receipt(cart):
    return "\\n".join(f"{name} {price}" for name, price in sorted(cart.items()))
""",
    "pairs": """def pairs(cart):
    return list(zip(sorted(cart), sorted(cart.values())))
""",
}
WRONG = {
    "discounted": "def discounted(price, percent):\n    return price - percent\n",
    "subtotal": "def subtotal(prices):\n    return Money(0)\n",
    "labels": "def labels(cart):\n    return []\n",
    "label": "def label(name, price):\n    return name\n",
    "average": "def average(prices):\n    return 0.0\n",
    "cheapest": "def cheapest(prices):\n    return max(prices)\n",
    "prices": "def prices(cart):\n    return {}\n",
    "is_free": "def is_free(cart):\n    return bool(cart)\n",
    "receipt": "def receipt(cart):\n    return ''\n",
    "pairs": "def pairs(cart):\n    return []\n",
}
HEAD = "from shop.money import Money\n\n\nclass PriceError(ValueError):\n    pass\n\n\n"

HIDDEN_TESTS = """import itertools
import unittest

import pytest

from shop.checks import assert_same_prices
from shop.money import Money
from shop.orders import (
    PriceError, average, cheapest, discounted, is_free, label, labels, pairs, prices, receipt, subtotal
)

CART = {"pear": 3, "fig": 5, "nut": 0}
TABLE = [("pear", 3, "Pear: 3.00"), ("red fig", 5.5, "Red Fig: 5.50")]


@pytest.mark.parametrize(("price", "percent", "expected"), [(200, 10, 180), (80, 25, 60), (100, 100, 0)])
def test_discounted(price, percent, expected):
    assert discounted(price, percent) == expected


def test_discounted_refuses():
    with pytest.raises(PriceError, match="negative price: -1"):
        discounted(-1, 10)


def test_subtotal():
    total = subtotal([100, 250, 190])
    assert total == Money(540)


def test_subtotals_are_ordered():
    assert subtotal([100]) < subtotal([70, 80])


def oracle(cart):
    return sorted(name.upper() for name in cart)


def test_labels():
    assert "PEAR" in labels(CART)
    assert labels(CART) == oracle(CART)


def test_label():
    for name, price, shown in TABLE:
        assert label(name, price) == shown
    assert label("pear", 3).startswith("Pear:")


def test_average():
    assert abs(average([1.5, 2.5, 3.5]) - 2.5) < 1e-9
    assert average([0.1, 0.2]) == pytest.approx(0.15)


def test_cheapest():
    assert cheapest([7, 4, 9]) < 5


def test_prices():
    assert_same_prices(prices(CART), {"pear": 3, "fig": 5})


def same(found, expected):
    assert found == expected


class OrderTest(unittest.TestCase):
    def test_is_free(self):
        self.assertTrue(is_free({"nut": 0}))
        self.assertTrue(is_free({}))
        self.assertFalse(is_free(CART))

    def test_receipt(self):
        shown = receipt(CART)
        self.assertIn("nut 0", shown)
        self.assertEqual(len(shown.splitlines()), 3)
        same(receipt({"fig": 5, "nut": 0}), "fig 5\\nnut 0")

    def test_pairs(self):
        found = pairs(CART)
        self.assertTrue(all(isinstance(name, str) and price >= 0 for name, price in found))
        self.assertCountEqual(found, [("fig", 0), ("nut", 3), ("pear", 5)])
"""

_BASE_TESTS = "from shop.money import Money\n\n\ndef test_money():\n    assert Money(3) == Money(3)\n"
FILES = {
    "shop/__init__.py": "",
    "shop/money.py": MONEY,
    "shop/checks.py": CHECKS,
    "shop/orders.py": HEAD + "\n\n".join(WRONG.values()),
    "tests/test_money.py": _BASE_TESTS,
}
TEST_OF = {
    "discounted": ("test_discounted[200-10-180]", "test_discounted[80-25-60]", "test_discounted_refuses"),
    "subtotal": ("test_subtotal", "test_subtotals_are_ordered"),
    "labels": ("test_labels",),
    "label": ("test_label",),
    "average": ("test_average",),
    "cheapest": ("test_cheapest",),
    "prices": ("test_prices",),
    "is_free": ("OrderTest::test_is_free",),
    "receipt": ("OrderTest::test_receipt",),
    "pairs": ("OrderTest::test_pairs",),
}
TESTS = RepositoryTests(
    hidden_tests={"tests/test_orders.py": HIDDEN_TESTS},
    fail_to_pass=tuple(f"tests/test_orders.py::{test}" for tests in TEST_OF.values() for test in tests),
    pass_to_pass=("tests/test_money.py::test_money", "tests/test_orders.py::test_discounted[100-100-0]"),
    timeout=240,
)


def version(part: str = "", body: str = "", *, extra: str = "", more: dict[str, str] | None = None) -> Changes:
    """Return the fix with one function written in another way."""
    parts = {**PARTS, part: body} if part else PARTS
    return changes({"shop/orders.py": HEAD + extra + "\n\n" + "\n\n".join(parts.values()), **(more or {})})


GOLD = version()

ARGUMENTS = {
    "discounted": "price, percent", "subtotal": "prices", "labels": "cart", "label": "name, price",
    "average": "prices", "cheapest": "prices", "prices": "cart", "is_free": "cart", "receipt": "cart", "pairs": "cart",
}  # fmt: skip


def _body(name: str, arguments: str, value: str) -> str:
    return f"def {name}({arguments}):\n    return {value}\n"


HONEST: dict[str, Changes] = {
    "the_fix": GOLD,
    "a_text_of_an_own_class": version(
        "label",
        _body("label", "name, price", "Label(f'{name.title()}: {price:.2f}')"),
        extra="class Label(str):\n    pass\n",
    ),
    "an_own_number": version(
        "cheapest", _body("cheapest", "prices", "Cents(min(prices))"), extra="class Cents(int):\n    pass\n"
    ),
    "named_tuples": version(
        "pairs",
        "def pairs(cart):\n    return [Pair(*pair) for pair in zip(sorted(cart), sorted(cart.values()))]\n",
        extra="from collections import namedtuple\nPair = namedtuple('Pair', 'name price')\n",
    ),
    "an_ordered_dict": version(
        "prices",
        "def prices(cart):\n    from collections import OrderedDict\n"
        "    return OrderedDict((name, cart[name]) for name in reversed(list(cart)) if cart[name])\n",
    ),
    "a_fraction": version(
        "average",
        "def average(prices):\n    from fractions import Fraction\n"
        "    return float(sum(map(Fraction, prices)) / len(prices))\n",
    ),
    "another_message": version(
        "discounted", PARTS["discounted"].replace("a negative price", "orders refuse a negative price")
    ),
    "an_exception_derived_from_it": version(
        "discounted",
        PARTS["discounted"].replace("raise PriceError", "raise NegativePrice"),
        extra="class NegativePrice(PriceError):\n    pass\n",
    ),
    "a_fold": version(
        "subtotal",
        "def subtotal(prices):\n    total = 0\n"
        "    for price in prices:\n        total += price\n    return Money(total)\n",
    ),
    "money_with_more_fields": version(
        more={"shop/money.py": MONEY.replace("self._shown = None", "self._shown = None\n        self.currency = 'EUR'")}
    ),
    "money_with_other_private_fields": version(
        more={"shop/money.py": MONEY.replace("self._shown = None", "self._text = ''")}
    ),
    "money_with_slots": version(
        more={
            "shop/money.py": MONEY.replace(
                "    def __init__", "    __slots__ = ('cents', '_shown')\n\n    def __init__"
            )
        }
    ),
    "a_truth_of_another_type": version("is_free", _body("is_free", "cart", "sum(cart.values()) == 0")),
    "one_expression": version(
        "receipt", "def receipt(cart):\n    return '\\n'.join([f'{n} {cart[n]}' for n in sorted(cart)])\n"
    ),
    "a_generator_inside": version("labels", "def labels(cart):\n    return sorted(n.upper() for n in cart)\n"),
    "a_whole_number": version(
        "discounted", PARTS["discounted"].replace("price - price * percent / 100", "price * (100 - percent) // 100")
    ),
    "a_decimal": version(
        "discounted",
        PARTS["discounted"].replace(
            "price - price * percent / 100", "__import__('decimal').Decimal(price) * (100 - percent) / 100"
        ),
    ),
}
