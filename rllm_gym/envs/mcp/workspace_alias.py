"""A fixed name for the episode's directory, so that what the model reads does not depend on its real path."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rllm_gym.mcp import ToolResult

SHOWN = "/workspace"
"""What the model sees in place of the directory's path, and may write instead of it."""


class WorkspaceAlias:
    """Replaces a directory's path by :data:`SHOWN` in results, and the reverse in paths and URIs of arguments.

    >>> name = WorkspaceAlias(Path("/tmp/x1"))
    >>> name.hidden(ToolResult("read /tmp/x1/a.txt")).text
    'read /workspace/a.txt'
    >>> name.real({"path": "/workspace/a.txt", "text": "see /workspace/a.txt"})
    {'path': '/tmp/x1/a.txt', 'text': 'see /workspace/a.txt'}
    >>> name.real("file:///workspace/a.txt")
    'file:///tmp/x1/a.txt'
    """

    def __init__(self, workspace: Path) -> None:
        self._path = str(workspace)
        # A system's directory for temporary files may be a link, and servers may report the target of the link.
        self._names = sorted({self._path, os.path.realpath(workspace)}, key=len, reverse=True)

    def hidden(self, result: ToolResult) -> ToolResult:
        """Return the result with the directory's real path replaced in its text."""
        return replace(result, text=self.without_path(result.text))

    def without_path(self, text: str) -> str:
        """Return the text with the directory's real path replaced."""
        for name in self._names:
            text = text.replace(name, SHOWN)
        return text

    def real(self, value: Any) -> Any:
        """Return arguments in which each text that is a path below :data:`SHOWN` is the real path. A longer text that
        only mentions such a path is unchanged: it may be content to be written to a file."""
        if isinstance(value, str):
            scheme, path = ("file://", value[7:]) if value.startswith("file://") else ("", value)
            is_path = (path == SHOWN or path.startswith(SHOWN + "/")) and "\n" not in path
            return scheme + self._path + path[len(SHOWN) :] if is_path else value
        if isinstance(value, Mapping):
            return {key: self.real(item) for key, item in value.items()}
        return [self.real(item) for item in value] if isinstance(value, list) else value
