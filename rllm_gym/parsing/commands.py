"""Parse the action of a reply for a computer: one shell command in a fenced block, or one function call.

All functions take time linear in the length of the reply. The only error is :class:`~rllm_gym.core.InvalidAction`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rllm_gym.core import InvalidAction
from rllm_gym.parsing.function_calls import (
    FUNCTION_OPEN,
    TOOL_CALL_OPEN,
    FunctionCall,
    bare_call,
    tagged_call,
)
from rllm_gym.parsing.thinking import THINK_CLOSE, THINK_OPEN, before_end_tokens, think_end

SHELL_LABELS = frozenset({"bash", "sh", "shell", "mswea_bash_command"})
"""Labels of an opening fence that mark a command; the last one is mini-swe-agent's."""

HOW_TO = "Write one command in a fenced block:\n```bash\nls\n```\nor make one function call."

_FENCE = r"^(?P<indent>[ \t]*+)(?P<fence>`{3,}+|~{3,}+)(?P<info>[^`\n]*+)$"
_MARK = re.compile(rf"{_FENCE}|(?P<tag>{TOOL_CALL_OPEN}|{FUNCTION_OPEN}|{THINK_OPEN})", re.MULTILINE)
_FENCE_LINE = re.compile(_FENCE, re.MULTILINE)
# Text that can only begin an action: if it follows a </think>, the reasoning really ended there.
_ACTION = re.compile(rf"^[ \t]*+(?:```|~~~)[`~]*+[ \t]*+\w|{TOOL_CALL_OPEN}|{FUNCTION_OPEN}", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A shell command, as written in its block."""

    text: str


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A part of a reply that may be its action."""

    start: int
    end: int
    action: ShellCommand | FunctionCall | None  # None: a fence without a label, or with another language's
    label: str = ""
    content: str = ""


def parse_command(reply: str) -> ShellCommand | FunctionCall:
    r"""Return the one action of a reply. Linear time in its length.

    A command is in one fenced block labelled ``bash`` or ``sh`` (or without a label, if it is the only block). A fence
    is closed by one at least as long, so a command that contains fences needs a longer one. A function call can have
    any notation of :mod:`rllm_gym.parsing.function_calls`. Reasoning (``<think>`` to ``</think>``), text around the
    action and blocks of other languages are ignored.

    >>> parse_command("Let me look.\n```bash\nls -la\n```")
    ShellCommand(text='ls -la')
    >>> parse_command('<tool_call>{"name": "submit"}</tool_call>')
    FunctionCall(name='submit', arguments={})
    >>> parse_command("submit")
    ShellCommand(text='submit')

    Raises:
        InvalidAction: There is no action, more than one, or a malformed one. The message says which and where.
    """
    text = reply[: before_end_tokens(reply)]
    begin = _after_thought(text)
    # Text right after </think> counts as the start of a line. Padding keeps the positions of the reply.
    text = "\n" * begin + text[begin:]
    found = _scan(text, begin)
    actions = [item for item in found if item.action is not None]
    if not actions:
        actions = _unlabelled(text, begin, found)
    if len(actions) > 1:
        positions = ", ".join(str(item.start + 1) for item in actions[:8])
        raise InvalidAction(
            f"The reply holds {len(actions)} actions, at positions {positions}; nothing was run. Take one a turn: join "
            "commands with && or newlines in one block, or wait for the first answer."
        )
    (chosen,) = actions
    if any(item.action is None and not item.label and item.start >= chosen.end for item in found):
        raise InvalidAction(
            "After the command there is another block without a label; nothing was run. If it belongs to the command, "
            "open and close the command's block with four backticks (````bash); if not, leave it out."
        )
    action = chosen.action
    assert action is not None
    if isinstance(action, ShellCommand) and not action.text.strip():
        raise InvalidAction(f"The command at position {chosen.start + 1} is empty. {HOW_TO}")
    return action


# Reasoning


def _after_thought(text: str) -> int:
    """Return where the reply after the reasoning begins. A command may contain ``<think>`` or ``</think>`` as well.

    Raises:
        InvalidAction: The reasoning is not closed.
    """
    start = len(text) - len(text.lstrip())
    if text.startswith(THINK_OPEN, start):
        return think_end(text, start)
    last = text.rfind(THINK_CLOSE)
    if last < 0:
        return 0
    # Many templates open <think> in the prompt, so that a reply contains only </think>.
    if not _ACTION.search(text[last + len(THINK_CLOSE) :]) and _holds(text, last):
        return 0
    return last + len(THINK_CLOSE)


def _holds(text: str, position: int) -> bool:
    """Return whether the position is within a command or a call."""
    try:
        return any(item.action is not None and item.start < position < item.end for item in _scan(text, 0))
    except InvalidAction:
        return False


# Blocks and tags


def _scan(text: str, begin: int) -> list[_Candidate]:
    """Return all blocks and tagged calls, in order. Blocks within another one belong to it."""
    found: list[_Candidate] = []
    at = begin
    while (mark := _MARK.search(text, at)) is not None:
        tag = mark["tag"]
        if tag is None:
            item = _block(text, mark)
        elif tag == THINK_OPEN:
            at = think_end(text, mark.start())
            continue
        else:
            call, end = tagged_call(text, mark.start())
            item = _Candidate(mark.start(), end, call, "call")
        found.append(item)
        at = item.end
    return found


def _block(text: str, opening: re.Match[str]) -> _Candidate:
    label = opening["info"].strip().partition(" ")[0].lower()
    fence, indent = opening["fence"], len(opening["indent"])
    for closing in _FENCE_LINE.finditer(text, opening.end()):
        same = closing["fence"][0] == fence[0] and len(closing["fence"]) >= len(fence)
        if same and not closing["info"].strip() and len(closing["indent"]) <= indent:
            content = text[opening.end() + 1 : max(opening.end() + 1, closing.start() - 1)]
            action = ShellCommand(content.replace("\r\n", "\n").removesuffix("\r")) if label in SHELL_LABELS else None
            return _Candidate(opening.start(), closing.end(), action, label, content)
    raise InvalidAction(
        f"The block that opens at position {opening.start() + 1} is never closed; nothing was run. Close it with a "
        f"line {fence[:8]} alone. A command that holds such lines needs a longer fence around it (````bash … ````)."
    )


def _unlabelled(text: str, begin: int, found: list[_Candidate]) -> list[_Candidate]:
    """Return the action of a reply without a labelled command and without tags.

    Raises:
        InvalidAction: There is none either.
    """
    if not found:
        if text[begin:].strip().strip("`").strip() == "submit":
            return [_Candidate(begin, len(text), ShellCommand("submit"))]
        calls, at = [], begin
        while (bare := bare_call(text, at)) is not None:
            calls.append(_Candidate(at, bare[1], bare[0]))
            at = bare[1]
        if calls:
            return calls
        raise InvalidAction(f"The reply holds no action: no command in a fenced block and no function call. {HOW_TO}")
    in_json = [item for item in found if item.label in ("json", "") and (bare := bare_call(item.content)) is not None]
    if in_json:
        return [
            _Candidate(item.start, item.end, bare[0], "call")
            for item in in_json
            if (bare := bare_call(item.content)) is not None
        ]
    if len(found) == 1 and not found[0].label:
        return [_Candidate(found[0].start, found[0].end, ShellCommand(found[0].content))]
    labels = ", ".join(repr(item.label[:20]) if item.label else "none" for item in found[:8])
    raise InvalidAction(
        f"The reply holds {len(found)} fenced block{'s' * (len(found) > 1)} (label: {labels}), but no command: label "
        f"the one to run 'bash'. {HOW_TO}"
    )
