"""Lines of a text, each with its end."""

from __future__ import annotations


def split_lines(text: str) -> list[str]:
    """The lines of a text. Only ``\\n`` ends a line, as in the tools that read patches; it stays part of the line."""
    lines = text.split("\n")
    kept = [line + "\n" for line in lines[:-1]]
    if lines[-1]:
        kept.append(lines[-1])
    return kept


def same_but_for_space(first: str, second: str) -> bool:
    """Whether two lines differ in nothing but the amount of white space; none at all is not some."""
    return first.split() == second.split() and first[:1].isspace() == second[:1].isspace()
