"""How a command says that it cannot go on: one line, exit status 2, no traceback."""

from __future__ import annotations


class CommandError(Exception):
    """The command cannot do what was asked. The message is one line: the thing, its value, and what to do next."""
