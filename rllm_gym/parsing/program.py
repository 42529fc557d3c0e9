"""The program of a reply: its last fenced Python block. Linear in the length of the text; nothing is compiled here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rllm_gym.core import InvalidAction
from rllm_gym.parsing.boxed import strip_thinking

MAX_PROGRAM_CHARS = 200_000

_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})(.*)", re.DOTALL)
# The language is the first word of what follows the fence: python, {.python}, python3.11, Python title="a.py".
_PYTHON = re.compile(r"[{.\s]*(?:python|py)(?:3(?:\.\d+)?)?(?![\w+#-])", re.IGNORECASE)
_INDENT_OF_A_CLOSING_FENCE = 3  # more than the opening fence's: deeper is text, such as a fence in a docstring


def program_of(reply: str) -> str:
    r"""The program a reply hands in.

    Read is what stands after the last ``</think>``. The program is the last fenced block that is labelled
    ``python``, ``py`` or ``python3`` (in any case of letters); where none is, the only block, whatever its label.
    Fences are those of CommonMark, of three or more backticks or tildes on a line of their own; an indented block
    loses the indentation of its fence. Besides, a labelled fence inside a block of another language begins a block
    of its own, and a closing fence may stand at the end of the last line of the program.

    Raises:
        InvalidAction: There is no such block, it is never closed (the reply was cut: an earlier block is not what it
            came to), it is empty, longer than 200,000 characters, or no text that can be encoded. The message tells
            the model which.

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
class _Block:
    """A fenced block, by its lines."""

    lines: list[str]
    start: int
    indent: int
    mark: str
    python: bool
    end: int = -1
    tail: str | None = None  # the last line, where the closing fence stands at its end

    @property
    def closed(self) -> bool:
        return self.end >= 0

    def text(self) -> str:
        inside = self.lines[self.start : self.end]
        if self.tail is not None:
            inside.append(self.tail)
        return "".join(f"{_dedented(line, self.indent)}\n" for line in inside)


def _chosen(blocks: list[_Block]) -> _Block:
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


def _blocks(lines: list[str]) -> list[_Block]:
    """All blocks in the order in which they open."""
    found: list[_Block] = []
    still_open: list[_Block] = []
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        indent, mark, info = len(fence[1].expandtabs(4)), fence[2], fence[3].strip()
        if mark[0] == "`" and "`" in info:
            continue  # a line of code in the text: ```x = 1```
        block = still_open[-1] if still_open else None
        if block is not None:
            if indent > block.indent + _INDENT_OF_A_CLOSING_FENCE:
                continue
            if not info and mark[0] == block.mark[0] and len(mark) >= len(block.mark):
                still_open.pop().end = number
                continue
            if not info or not _begins_another(block, mark, info):
                continue
        opened = _Block(lines, number + 1, indent, mark, _PYTHON.match(info) is not None)
        still_open.append(opened)
        found.append(opened)
    if found and not found[-1].closed:
        _close_at_the_end_of_a_line(found[-1])
    # A stray fence at the end of the reply holds nothing.
    last = max((number for number, line in enumerate(lines) if line.strip()), default=-1)
    return [block for block in found if block.closed or block.python or block.start <= last]


def _begins_another(block: _Block, mark: str, info: str) -> bool:
    """Whether a labelled fence inside ``block`` is the beginning of a block and not a line of its text."""
    if block.python:
        return mark[0] == block.mark[0] and len(mark) >= len(block.mark) and _is_label(info)
    return _is_label(info)


def _is_label(info: str) -> bool:
    return _PYTHON.match(info) is not None or len(info.split()) == 1


def _close_at_the_end_of_a_line(block: _Block) -> None:
    for number in range(block.start, len(block.lines)):
        line = block.lines[number].rstrip()
        bare = line.rstrip(block.mark[0])
        if len(line) - len(bare) >= len(block.mark):
            block.end, block.tail = number, bare
            return


def _dedented(line: str, indent: int) -> str:
    """``line`` without up to ``indent`` columns of its indentation."""
    if not indent:
        return line
    width = 0
    for at, character in enumerate(line):
        if width >= indent or character not in " \t":
            return line[at:]
        width += 4 - width % 4 if character == "\t" else 1
    return ""
