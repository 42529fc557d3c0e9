"""Tells from a test whether it can be graded without trusting the program."""

from __future__ import annotations

import ast
import re

from rllm_gym.grading.code.verdict import FunctionTests
from rllm_gym.grading.python_source import parse_python

_LOOKED_AT = frozenset(
    {"__closure__", "__code__", "__globals__", "cell_contents", "get_referents", "get_referrers", "getrefcount"}
)
"""Names with which a test looks into the program's own process: there is nothing of it in that of the test."""

_MENTION = re.compile(rf"\bdis\b|\bco_\w+|{'|'.join(sorted(_LOOKED_AT))}")


def ungradable_reason(tests: FunctionTests) -> str:
    """Return why no program can be graded by these tests, or an empty string. It does not depend on the program."""
    for text in (tests.setup, tests.test):
        # A test may hold megabytes of literals, so it is parsed only where it is needed.
        if not _MENTION.search(text):
            continue
        try:
            tree = parse_python(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # reported where it is run
        for node in ast.walk(tree):
            found = _looked_at(node)
            if found:
                return f"the test looks at the program's byte code or memory ({found}), which is in another process"
    return ""


def _looked_at(node: ast.AST) -> str:
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        return "dis" if "dis" in names else ""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name if name in _LOOKED_AT or (isinstance(node, ast.Attribute) and name.startswith("co_")) else ""
