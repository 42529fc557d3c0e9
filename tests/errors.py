"""Look at the errors of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def raised(call: Callable[..., object], *arguments: Any, **keywords: Any) -> Exception | None:
    """Return what the call raises; ``None`` if it raises nothing."""
    try:
        call(*arguments, **keywords)
    except Exception as error:
        return error
    return None
