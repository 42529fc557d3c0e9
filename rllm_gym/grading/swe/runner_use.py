"""Detects product code that accesses the test runner in ways that no legitimate fix does.

Other attacks are detected by the runs.
"""

from __future__ import annotations

import io
import re
import tokenize

MAX_BYTES = 4_000_000

_MENTIONS = (b"pytest", b"pluggy", b"PYTEST")
_RUNNER = re.compile(r"_?pytest|pluggy")
_RUNNER_NAME = re.compile(r"(_pytest|pytest|pluggy)(\.|$)")
_LOOKUPS = frozenset({"import_module", "__import__", "modules"})


def mentions_runner(source: bytes) -> bool:
    """Return whether the source has to be examined."""
    # Not with a regular expression, which would take seconds for 64 MB and hold the interpreter's lock meanwhile.
    return any(word in source for word in _MENTIONS)


def find_runner_uses(source: bytes) -> frozenset[str]:
    """Return how Python source uses pytest's own modules, or checks whether it is being tested.

    The source is hostile: it is tokenized, never compiled. Comments and strings that only mention pytest do not count.

    >>> sorted(find_runner_uses(b"from _pytest import runner"))
    ['imports _pytest']
    >>> find_runner_uses(b'"import pytest" # import pytest')
    frozenset()
    """
    if not mentions_runner(source):
        return frozenset()
    found: set[str] = set()
    before = [""] * 4
    in_import = False
    try:
        for token in tokenize.tokenize(io.BytesIO(source[:MAX_BYTES]).readline):
            if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING):
                continue
            in_import = token.type != tokenize.NEWLINE and (in_import or token.string == "import")
            _look_at(token, before, in_import, found)
            before = [*before[1:], token.string]
    except (tokenize.TokenError, SyntaxError, LookupError, UnicodeError):
        # Invalid Python code, or one in an encoding that is not for text, cannot be imported either.
        return frozenset(found)
    return frozenset(found)


def _look_at(token: tokenize.TokenInfo, before: list[str], in_import: bool, found: set[str]) -> None:
    if token.type == tokenize.NAME and _RUNNER.fullmatch(token.string) and before[-1] in ("import", "from", ","):
        imported = before[-1] != "," or in_import
        if imported and not (before[-1] == "import" and before[-3] == "from"):
            found.add(f"imports {token.string}")
    elif token.type == tokenize.STRING:
        text = token.string.strip("rbuRBU").strip("\"'")
        if text == "PYTEST_CURRENT_TEST":
            found.add("asks whether it is being tested (PYTEST_CURRENT_TEST)")
        elif _RUNNER_NAME.match(text) and before[-1] in ("(", "[") and _LOOKUPS & {before[-2], before[-4]}:
            found.add(f"looks up the module {text[:60]}")
