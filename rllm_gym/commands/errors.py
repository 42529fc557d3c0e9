"""The error of a command: one line, exit status 2, no traceback."""

from __future__ import annotations


class CommandError(Exception):
    """The command cannot continue. The message is one line: the argument, its value, and what to do next."""
