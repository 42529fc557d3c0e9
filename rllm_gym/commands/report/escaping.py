"""Escaping of all text that is inserted into the page."""

from __future__ import annotations

import html
from typing import Any

from rllm_gym.commands.terminal import visible

_MAX_TEXT_CHARS = 20_000


def as_text(value: Any) -> str:
    """Return any value as text for the page: of limited length, without control characters or markup.

    >>> as_text("<b>\\x00")
    '&lt;b&gt;␀'
    """
    text = str(value)
    if len(text) > _MAX_TEXT_CHARS:
        text = f"{text[:_MAX_TEXT_CHARS]} … ({len(text) - _MAX_TEXT_CHARS} more characters)"
    return html.escape(visible(text))
