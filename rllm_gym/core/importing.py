"""Functions that a user names as ``module:function``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def import_function(name: str, option: str) -> Callable[..., Any]:
    """Return the function ``module:function``.

    Raises:
        ValueError: There is none.
    """
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{option} {name} cannot be imported: {error}; expected module:function") from error
    if not callable(function):
        raise ValueError(f"{option} {name} is not a function")
    return function  # type: ignore[no-any-return]
