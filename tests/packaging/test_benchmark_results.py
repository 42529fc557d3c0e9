"""The committed benchmark results have the words that their scripts write today."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

from rllm_gym.grading.python_source import parse_python

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
FILLED = "\0"
"""Stands for a value in an f-string."""


def script_of(result: Path) -> Path:
    scripts = [script for script in BENCHMARKS.glob("*.py") if result.stem.startswith(script.stem)]
    return max(scripts, key=lambda script: len(script.stem))


def written_by(script: Path) -> re.Pattern[str]:
    """Return a pattern of the headings and table cells in the script's strings."""
    literals = []
    for node in ast.walk(parse_python(script.read_text())):
        if isinstance(node, ast.JoinedStr):
            values = (part.value if isinstance(part, ast.Constant) else FILLED for part in node.values)
            literals.append("".join(map(str, values)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            literals.append(node.value)
    pieces = {piece.strip("# ") for text in literals for piece in re.split(r"[|\n]", text)}
    known = [piece for piece in pieces if FILLED not in piece or len(re.findall("[a-z]", piece)) > 2]
    return re.compile("|".join(re.escape(piece).replace(re.escape(FILLED), ".+") for piece in known))


@pytest.mark.parametrize("result", sorted((BENCHMARKS / "results").glob("*.md")), ids=lambda path: path.stem)
def test_headings_and_table_headers_are_those_of_the_script(result: Path) -> None:
    lines = result.read_text().splitlines()
    headings = [line.strip("# ") for line in lines if line.startswith("#")]
    headers = [line for line, below in pairwise(lines) if re.match(r"\|[|:-]+\|$", below)]
    cells = [cell.strip() for line in headers for cell in line.split("|")]
    words = [*headings, *(cell for cell in cells if re.search("[a-z]", cell))]
    written = written_by(script_of(result))
    stale = [text for text in words if not written.fullmatch(text)]
    assert headings
    assert not stale, f"{result.name} has words that {script_of(result).name} no longer writes: {stale}"
