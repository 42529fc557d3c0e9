"""Write tool calls as a model does."""

from __future__ import annotations

import json
from typing import Any


def call(tool: str, /, **arguments: Any) -> str:
    """Return a reply that calls a tool."""
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"
