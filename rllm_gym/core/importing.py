"""Objects that a user names as ``module:name``."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from typing import Any


def import_object(path: str, option: str) -> Any:
    """Import the object named ``module:name``.

    Args:
        path: The name.
        option: The option or argument that contains it, for the message.

    Raises:
        ValueError: There is no such module or name, or the module raised an error when it was imported.
    """
    module, _, name = path.partition(":")
    failed = f"{option}={path!r} cannot be imported"
    try:
        found = importlib.import_module(module)
    except Exception as error:  # the module's top level may raise anything
        is_absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        if is_absent or not module or module.startswith("."):
            raise ValueError(
                f"{failed} ({error}); write module:name, where the module is installed or in the current folder"
            ) from error
        raise ValueError(f"{failed}: {type(error).__name__}: {error}{_place(error)}") from error
    if not name or not hasattr(found, name):
        raise ValueError(f"{failed}: module {module} has no {name!r}; write module:name")
    return getattr(found, name)


def import_function(path: str, option: str) -> Callable[..., Any]:
    """Import the function named ``module:function``; as :func:`import_object`, also for the errors."""
    function = import_object(path, option)
    if not callable(function):
        raise ValueError(f"{option}={path!r} is not a function")
    return function  # type: ignore[no-any-return]


def _place(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return ""  # its text names the place
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f" ({where.filename}:{where.lineno})"
