"""Merges the agent's ``pyproject.toml`` and ``setup.cfg`` with the test configuration of the base."""

from __future__ import annotations

import re
import tomllib
from typing import Any

MAX_BYTES = 256_000
MAX_LINE = 1000
MAX_DOTS = 200
MAX_HEADER = 500

_TABLE = re.compile(r"\[{1,2}(?P<key>[^\[\]]+)\]{1,2}\s*(#.*)?")


class Unmergeable(ValueError):
    """The test configuration cannot be separated from the rest, for the given reason. The base's file is kept."""


def pytest_table(pyproject: bytes) -> dict[str, Any]:
    """Return ``[tool.pytest]`` with everything below it; empty if there is none.

    Raises:
        Unmergeable: The file is not valid TOML.
    """
    table = _parse(pyproject).get("tool", {})
    found = table.get("pytest", {}) if isinstance(table, dict) else {}
    return found if isinstance(found, dict) else {"": found}


def merge_pyproject(base: bytes, changed: bytes) -> bytes:
    """Return the changed file with its ``[tool.pytest…]`` tables replaced by those of the base.

    The changed file is returned byte for byte if its pytest tables are equivalent to the base's. An empty ``base``
    stands for a missing file.

    Raises:
        Unmergeable: The changed file is not valid TOML, or its pytest settings cannot be cut out, for example from an
            inline table.
    """
    wanted = pytest_table(base)
    if pytest_table(changed) == wanted:
        return changed
    others, _ = _split_tables(changed.decode())
    _, ours = _split_tables(base.decode())
    merged = (others.rstrip("\n") + "\n\n" + ours).encode() if ours else others.encode()
    expected = _parse(changed)
    tool = expected.get("tool", {})
    if not isinstance(tool, dict):
        raise Unmergeable("has no table named tool, so the base's file is kept")
    tool = {**tool, "pytest": wanted}
    if not wanted:
        del tool["pytest"]
    expected["tool"] = tool
    found = _parse(merged)
    found.setdefault("tool", {})
    if found != expected:
        raise Unmergeable("its test configuration cannot be distinguished from the rest, so the base's file is kept")
    return merged


def merge_setup_cfg(base: bytes, changed: bytes) -> bytes:
    """Return the changed file with its ``[tool:pytest]`` section replaced by that of the base.

    Raises:
        Unmergeable: The changed file is not text.
    """
    others, theirs = _split_sections(_text(changed))
    _, ours = _split_sections(_text(base))
    if theirs.strip() == ours.strip():
        return changed
    return (others.rstrip("\n") + "\n\n" + ours).encode() if ours else others.encode()


def _parse(data: bytes) -> dict[str, Any]:
    text = _text(data)
    # The parser's time grows with the square of the number of dots in a key.
    if any(len(line) > MAX_LINE and line.count(".") > MAX_DOTS for line in text.splitlines()):
        raise Unmergeable("has a line that may take long to read, so the base's file is kept")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a plain ValueError
        raise Unmergeable(f"is no TOML ({str(error)[:80]}), so the base's file is kept") from None


def _text(data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise Unmergeable(f"has more than {MAX_BYTES} bytes, so the base's file is kept")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Unmergeable("is not UTF-8, so the base's file is kept") from None


def _split_tables(text: str) -> tuple[str, str]:
    """Split lines into those outside and inside ``[tool.pytest…]`` tables. Heuristic; the caller parses the result."""
    others: list[str] = []
    pytests: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        header = _TABLE.fullmatch(line.strip()) if len(line) < MAX_HEADER else None
        if header:
            keys = [part.strip().strip("\"'") for part in header["key"].split(".")]
            inside = keys[:2] == ["tool", "pytest"]
        (pytests if inside else others).append(line if line.endswith("\n") else line + "\n")
    return "".join(others), "".join(pytests)


def _split_sections(text: str) -> tuple[str, str]:
    """Split lines into those outside and inside sections whose name contains pytest."""
    others: list[str] = []
    pytests: list[str] = []
    inside = False
    for line in text.lstrip("\ufeff").splitlines(keepends=True):
        if line.startswith("["):
            inside = "pytest" in line.casefold()
        (pytests if inside else others).append(line if line.endswith("\n") else line + "\n")
    return "".join(others), "".join(pytests)
