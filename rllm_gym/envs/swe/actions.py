"""The actions of an agent in a repository, and the parsing of a reply to one action. Nothing is executed here."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rllm_gym.core import InvalidAction
from rllm_gym.parsing.commands import ShellCommand, parse_command
from rllm_gym.parsing.function_calls import FunctionCall

MAX_COMMAND_BYTES = 100_000
MAX_COMMAND_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Bash:
    """Run a command; ``timeout`` in seconds, ``None`` for the environment's default."""

    command: str
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class View:
    """Show a file (``lines``: first and last line, from 1; last -1 is the end) or list a directory."""

    path: str
    lines: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Create:
    """Write a new file."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace the only occurrence of ``old``."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Insert:
    """Insert lines after line ``after``; 0 is the beginning of the file."""

    path: str
    after: int
    text: str


@dataclass(frozen=True, slots=True)
class Undo:
    """Undo the editor's last change of a file."""

    path: str


@dataclass(frozen=True, slots=True)
class Submit:
    """Submit the work."""


EditorCommand = View | Create | Replace | Insert | Undo
SWEAction = Bash | EditorCommand | Submit

# Names of the same tools in other harnesses.
_SAME_TOOL = {
    "execute_bash": "bash",
    "shell": "bash",
    "edit": "str_replace_editor",
    "editor": "str_replace_editor",
    "file_editor": "str_replace_editor",
    "str_replace_based_edit_tool": "str_replace_editor",
    "finish": "submit",
}

_STRING = {"type": "string"}
_SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a command with bash in the repository. Each command starts in the repository's "
            "directory, in a shell of its own; files and background processes stay. There is no network.",
            "parameters": {
                "type": "object",
                "properties": {
                    "command": {**_STRING, "description": "The command; several lines are fine."},
                    "timeout": {
                        "type": "number",
                        "description": f"Seconds after which it is killed, at most {MAX_COMMAND_TIMEOUT_S:.0f}.",
                    },
                },
                "required": ["command"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "str_replace_editor",
            "description": "View, create and edit text files of the repository. `view` shows a file with line numbers "
            "or lists a directory two levels deep; `create` writes a file that does not exist yet; `str_replace` "
            "replaces `old_str`, which must occur exactly once, whitespace included; `insert` puts `new_str` after "
            "line `insert_line`; `undo_edit` takes back the last edit of a file.",
            "parameters": {
                "type": "object",
                "properties": {
                    "command": {**_STRING, "enum": ["view", "create", "str_replace", "insert", "undo_edit"]},
                    "path": {**_STRING, "description": "A path in the repository, absolute or relative to it."},
                    "file_text": {**_STRING, "description": "For `create`: what the file holds."},
                    "old_str": {**_STRING, "description": "For `str_replace`: the text to replace."},
                    "new_str": {
                        **_STRING,
                        "description": "For `str_replace`: what replaces it (nothing by default). For `insert`: what "
                        "is inserted.",
                    },
                    "insert_line": {
                        "type": "integer",
                        "description": "For `insert`: the line after which it is inserted; 0 is the beginning.",
                    },
                    "view_range": {
                        "type": "array",
                        "items": {"type": "integer"},
                        "description": "For `view` of a file: first and last line, such as [11, 20]; [11, -1] shows "
                        "all from line 11.",
                    },
                },
                "required": ["command", "path"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "submit",
            "description": "Hand the repository in as it is now, to be graded. This ends the task.",
            "parameters": {"type": "object", "properties": {}, "required": []},
        },
    },
]
TOOLS = json.dumps(_SCHEMAS)
"""The tools as a JSON list of OpenAI schemas."""

_PARAMETERS: dict[str, frozenset[str]] = {
    tool["function"]["name"]: frozenset(tool["function"]["parameters"]["properties"]) for tool in _SCHEMAS
}

# mini-swe-agent submits with a command that prints this first; its users append commands that print the patch. Here
# the patch is read from outside of the sandbox, so the rest is ignored.
_SUBMIT_LINE = re.compile(
    r"\s*+(?:submit|echo\s++[\"']?(?:COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT|MINI_SWE_AGENT_FINAL_OUTPUT)[\"']?"
    r"(?:[ \t]*+(?:&&|;|\n)[^\x00]*)?)\s*",
)


def parse_action(reply: str) -> SWEAction:
    """Return the action of a reply.

    >>> parse_action("```bash\\nls\\n```")
    Bash(command='ls', timeout=None)
    >>> parse_action("<function=str_replace_editor><parameter=command>view</parameter>"
    ...              "<parameter=path>a.py</parameter><parameter=view_range>[1, 9]</parameter></function>")
    View(path='a.py', lines=(1, 9))

    Raises:
        InvalidAction: The reply contains no action, several, or a malformed one; the message says which.
    """
    found = parse_command(reply)
    if isinstance(found, ShellCommand):
        return _bash(found.text, None)
    return _called(found)


def _bash(command: str, timeout: float | None) -> SWEAction:
    if _SUBMIT_LINE.fullmatch(command):
        return Submit()
    _check_text("command", command)
    size = len(command.encode())
    if size > MAX_COMMAND_BYTES:
        raise InvalidAction(
            f"The command has {size} bytes; at most {MAX_COMMAND_BYTES} are run. Write large files in pieces or with "
            "the editor tool."
        )
    return Bash(command, timeout)


def _called(call: FunctionCall) -> SWEAction:
    name = _SAME_TOOL.get(call.name, call.name)
    known = _PARAMETERS.get(name)
    if known is None:
        near = difflib.get_close_matches(call.name[:100], [*_PARAMETERS, *_SAME_TOOL], n=1)
        hint = f" Did you mean {_SAME_TOOL.get(near[0], near[0])!r}?" if near else ""
        raise InvalidAction(f"There is no tool {call.name[:80]!r}.{hint} The tools are {', '.join(_PARAMETERS)}.")
    if name == "submit":
        return Submit()  # the message of other harnesses' finish(message=…) is not needed
    values = {key: value for key, value in call.arguments.items() if value is not None}
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key[:100], known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InvalidAction(
                f"The tool {call.name!r} has no parameter {key[:80]!r}.{hint} It takes {', '.join(sorted(known))}."
            )
    arguments = _Arguments(call.name, values)
    if name == "bash":
        return _bash(arguments.text("command"), arguments.timeout())
    command = arguments.text("command")
    read = _EDITS.get(command)
    if read is None:
        near = difflib.get_close_matches(command[:100], _EDITS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InvalidAction(
            f"The tool {call.name!r} has no command {command[:80]!r}.{hint} Its commands are {', '.join(_EDITS)}."
        )
    return read(arguments)


def _check_text(key: str, value: str) -> None:
    if "\x00" in value:
        raise InvalidAction(f"The {key} has a NUL character at position {value.index(chr(0)) + 1}; leave it out.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidAction(
            f"The {key} has a lone surrogate at position {error.start + 1}, which no file can hold; leave it out."
        ) from error


class _Arguments:
    """The arguments of one call. XML gives all of them as text, JSON with their own types."""

    def __init__(self, tool: str, arguments: Mapping[str, Any]) -> None:
        self._tool, self._arguments = tool, arguments

    def text(self, key: str, default: str | None = None) -> str:
        value = self._arguments.get(key, default)
        if value is None:
            raise InvalidAction(f"The call of {self._tool!r} lacks the parameter {key!r}.")
        if not isinstance(value, str):
            raise InvalidAction(
                f"The parameter {key!r} of {self._tool!r} must be text; it is {type(value).__name__} {_short(value)}."
            )
        _check_text(f"parameter {key!r}", value)
        return value

    def path(self) -> str:
        value = self.text("path").strip()
        if not value or len(value) > 4_000 or "\n" in value:
            raise InvalidAction(f"The parameter 'path' of {self._tool!r} is no path: {value[:80]!r}.")
        return value

    def number(self, key: str) -> int:
        if key not in self._arguments:
            raise InvalidAction(f"The call of {self._tool!r} lacks the parameter {key!r}.")
        return self._whole(key, self._arguments[key])

    def _whole(self, key: str, value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,12}\s*", value):
            return int(value)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**12:
            return value
        raise InvalidAction(f"The parameter {key!r} of {self._tool!r} must be a whole number; it is {_short(value)}.")

    def lines(self) -> tuple[int, int] | None:
        value = self._arguments.get("view_range")
        if value is None:
            return None
        if isinstance(value, str):
            numbers = re.fullmatch(r"\s*[\[(]?\s*(-?[0-9]{1,12})\s*,\s*(-?[0-9]{1,12})\s*[\])]?\s*", value)
            value = list(numbers.groups()) if numbers else value
        if not isinstance(value, list) or len(value) != 2:
            raise InvalidAction(
                f"The parameter 'view_range' of {self._tool!r} must be a list of two whole numbers, such as [1, 20]; "
                f"it is {_short(value)}."
            )
        return self._whole("view_range", value[0]), self._whole("view_range", value[1])

    def timeout(self) -> float | None:
        value = self._arguments.get("timeout")
        if value is None:
            return None
        if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,6}(?:\.[0-9]{1,6})?\s*", value):
            value = float(value)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and 0 < value <= MAX_COMMAND_TIMEOUT_S):
            raise InvalidAction(
                f"The parameter 'timeout' of {self._tool!r} must be a number of seconds above 0 and at most "
                f"{MAX_COMMAND_TIMEOUT_S:.0f}; it is {_short(value)}."
            )
        return float(value)


def _short(value: Any) -> str:
    try:
        shown = json.dumps(value)
    except (ValueError, RecursionError):
        shown = f"of type {type(value).__name__}"
    return shown if len(shown) <= 80 else shown[:77] + "..."


_EDITS: dict[str, Callable[[_Arguments], SWEAction]] = {
    "view": lambda arguments: View(arguments.path(), arguments.lines()),
    "create": lambda arguments: Create(arguments.path(), arguments.text("file_text")),
    "str_replace": lambda arguments: Replace(
        arguments.path(), arguments.text("old_str"), arguments.text("new_str", "")
    ),
    "insert": lambda arguments: Insert(arguments.path(), arguments.number("insert_line"), arguments.text("new_str")),
    "undo_edit": lambda arguments: Undo(arguments.path()),
}
