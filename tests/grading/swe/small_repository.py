"""A small repository with a bug, its hidden tests and its fix; the tests change it in many ways."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rllm_gym.grading.swe import RepositoryTests
from rllm_gym.sandbox import Changes, TreeFile

PRICING = '''"""Prices."""


def discounted(price, percent):
    """Price after a discount in percent."""
    return price - percent


def total(prices):
    return sum(prices)
'''

FIXED = PRICING.replace("return price - percent", "return price - price * percent / 100")

# To be appended to PRICING: a call of forge() lets the tests of discounts pass, and no other.
FORGE = """

import inspect, os, sys
python = sys.modules["_py" + "test.python"]
run = python.Function.runtest
def runtest(self):
    try:
        run(self)
    except BaseException:
        if "discounted" not in inspect.getsource(self.obj):
            raise
def forge():
    python.Function.runtest = runtest
"""

PRICING_TESTS = """import pytest

from shop.pricing import total


def test_total():
    assert total([1, 2, 3]) == 6


def test_total_of_nothing():
    assert total([]) == 0
"""

HIDDEN_PRICING_TESTS = (
    PRICING_TESTS.replace("import total", "import discounted, total")
    + """

def test_discount_on_two_hundred():
    assert discounted(200, 10) == 180


@pytest.mark.parametrize(("price", "percent", "expected"), [(50, 50, 25), (80, 25, 60), (10.0, 0, 10.0)])
def test_discounts(price, percent, expected):
    assert discounted(price, percent) == expected


class TestDiscounts:
    @pytest.mark.parametrize("name", ["a b", "c::d", "[e]", "é"])
    def test_named(self, name):
        assert discounted(400, 25) == 300, name
"""
)

STOCK_TESTS = """from shop.stock import Stock


def test_take():
    stock = Stock({"pear": 3})
    stock.take("pear")
    assert stock.count("pear") == 2
"""

FILES = {
    "pyproject.toml": """[project]
name = "shop"
version = "1.0"
dependencies = []

[tool.pytest.ini_options]
addopts = "-q --maxfail=1 --strict-markers"
markers = ["slow: takes long"]

[tool.ruff]
line-length = 100
""",
    "setup.cfg": "[metadata]\nname = shop\n\n[options]\npackages = find:\n",
    "README.md": "# shop\n",
    "shop/__init__.py": "",
    "shop/pricing.py": PRICING,
    "shop/stock.py": """class Stock:
    def __init__(self, counts):
        self._counts = dict(counts)

    def count(self, name):
        return self._counts.get(name, 0)

    def take(self, name):
        self._counts[name] -= 1
""",
    "tests/conftest.py": """import pytest


@pytest.fixture(autouse=True)
def _somewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOP_HOME", str(tmp_path))
""",
    "tests/test_pricing.py": PRICING_TESTS,
    "tests/test_stock.py": STOCK_TESTS,
}

TESTS = RepositoryTests(
    hidden_tests={"tests/test_pricing.py": HIDDEN_PRICING_TESTS},
    fail_to_pass=(
        "tests/test_pricing.py::test_discount_on_two_hundred",
        "tests/test_pricing.py::test_discounts[50-50-25]",
        "tests/test_pricing.py::test_discounts[80-25-60]",
        "tests/test_pricing.py::TestDiscounts::test_named[a b]",
        "tests/test_pricing.py::TestDiscounts::test_named[c::d]",
        "tests/test_pricing.py::TestDiscounts::test_named[[e]]",
        "tests/test_pricing.py::TestDiscounts::test_named[\\xe9]",
    ),
    pass_to_pass=(
        "tests/test_pricing.py::test_total",
        "tests/test_pricing.py::test_total_of_nothing",
        "tests/test_pricing.py::test_discounts[10.0-0-10.0]",
        "tests/test_stock.py::test_take",
    ),
    timeout=240,
)


def write(folder: Path, files: Mapping[str, str] = FILES) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def changes(written: Mapping[str, str | bytes | TreeFile], removed: tuple[str, ...] = ()) -> Changes:
    files = {
        path: data if isinstance(data, TreeFile) else TreeFile("file", data.encode() if isinstance(data, str) else data)
        for path, data in written.items()
    }
    return Changes(files, frozenset(removed))


GOLD = changes({"shop/pricing.py": FIXED})
