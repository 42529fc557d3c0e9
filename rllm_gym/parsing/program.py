"""Extract the program of a reply, its last fenced Python block. Linear time; nothing is compiled here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rllm_gym.core import InvalidAction
from rllm_gym.parsing.boxed import strip_thinking

MAX_PROGRAM_CHARS = 200_000

_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})(.*)", re.DOTALL)
# The language is the first word after the fence: python, {.python}, python3.11, Python title="a.py".
_PYTHON = re.compile(r"[{.\s]*(?:python|py)(?:3(?:\.\d+)?)?(?![\w+#-])", re.IGNORECASE)
_INDENT_OF_A_CLOSING_FENCE = 3  # columns more than the opening fence; deeper is text, such as a fence in a docstring


def program_of(reply: str) -> str:
    r"""Return the program of a reply.

    Only the text after the last ``</think>`` is read. The program is the last fenced block that is labelled
    ``python``, ``py`` or ``python3`` (in upper or lower case); if there is none, the only block, whatever its label.
    Fences are those of CommonMark, three or more backticks or tildes on their own line; the indentation of the fence
    is removed from the lines of its block. In addition, a labelled fence inside a block of another language begins a
    new block, and a closing fence may be at the end of the last line of the program.

    Raises:
        InvalidAction: There is no such block, it is not closed (the reply was truncated, so an earlier block is not
            its final answer), it is empty, longer than 200,000 characters, or cannot be encoded as UTF-8. The message
            tells the model which.

    >>> program_of("Thus:\n```python\nprint(1)\n```\nIt prints:\n```\n1\n```")
    'print(1)\n'
    """
    answer = strip_thinking(reply)
    if answer is None:
        raise InvalidAction("There is no program: the reply opens <think> and never closes it with </think>.")
    block = _chosen(_blocks(answer.split("\n")))
    what = "The last ```python block of the reply" if block.python else "The fenced block of the reply"
    if not block.closed:
        raise InvalidAction(f"{what} is never closed: end the program with a line of three backticks.")
    program = block.text()
    if not program.strip():
        raise InvalidAction(f"{what} is empty.")
    if len(program) > MAX_PROGRAM_CHARS:
        raise InvalidAction(f"{what} has {len(program)} characters; a program has at most {MAX_PROGRAM_CHARS}.")
    try:
        program.encode()
    except UnicodeEncodeError as error:
        raise InvalidAction(f"{what} holds a character that is no text (a lone surrogate at {error.start}).") from error
    return program


@dataclass(slots=True)
class _FencedBlock:
    """A fenced block of lines."""

    lines: list[str]
    start: int
    indent: int
    mark: str
    python: bool
    end: int = -1
    tail: str | None = None  # the last line, if the closing fence is at its end

    @property
    def closed(self) -> bool:
        return self.end >= 0

    def text(self) -> str:
        inside = self.lines[self.start : self.end]
        if self.tail is not None:
            inside.append(self.tail)
        return "".join(f"{_dedented(line, self.indent)}\n" for line in inside)


def _chosen(blocks: list[_FencedBlock]) -> _FencedBlock:
    labelled = [block for block in blocks if block.python]
    if labelled:
        return labelled[-1]
    if not blocks:
        raise InvalidAction("There is no program: the reply has no fenced ```python block.")
    if len(blocks) > 1:
        raise InvalidAction(
            f"There is no program: of the {len(blocks)} fenced blocks of the reply none is labelled ```python."
        )
    return blocks[0]


def _blocks(lines: list[str]) -> list[_FencedBlock]:
    """Return all blocks in the order in which they open."""
    found: list[_FencedBlock] = []
    still_open: list[_FencedBlock] = []
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        indent, mark, info = len(fence[1].expandtabs(4)), fence[2], fence[3].strip()
        if mark[0] == "`" and "`" in info:
            continue  # inline code: ```x = 1```
        block = still_open[-1] if still_open else None
        if block is not None:
            if indent > block.indent + _INDENT_OF_A_CLOSING_FENCE:
                continue
            if not info and mark[0] == block.mark[0] and len(mark) >= len(block.mark):
                still_open.pop().end = number
                continue
            if not info or not _begins_another(block, mark, info):
                continue
        opened = _FencedBlock(lines, number + 1, indent, mark, _PYTHON.match(info) is not None)
        still_open.append(opened)
        found.append(opened)
    if found and not found[-1].closed:
        _close_at_the_end_of_a_line(found[-1])
    # Ignore an empty unclosed fence at the end of the reply.
    last = max((number for number, line in enumerate(lines) if line.strip()), default=-1)
    return [block for block in found if block.closed or block.python or block.start <= last]


def _begins_another(block: _FencedBlock, mark: str, info: str) -> bool:
    """Return whether a labelled fence inside ``block`` begins a new block and is not a line of its text."""
    if block.python:
        return mark[0] == block.mark[0] and len(mark) >= len(block.mark) and _is_label(info)
    return _is_label(info)


def _is_label(info: str) -> bool:
    return _PYTHON.match(info) is not None or len(info.split()) == 1


def _close_at_the_end_of_a_line(block: _FencedBlock) -> None:
    for number in range(block.start, len(block.lines)):
        line = block.lines[number].rstrip()
        bare = line.rstrip(block.mark[0])
        if len(line) - len(bare) >= len(block.mark):
            block.end, block.tail = number, bare
            return


def _dedented(line: str, indent: int) -> str:
    """Return ``line`` without up to ``indent`` columns of its indentation."""
    if not indent:
        return line
    width = 0
    for at, character in enumerate(line):
        if width >= indent or character not in " \t":
            return line[at:]
        width += 4 - width % 4 if character == "\t" else 1
    return ""
