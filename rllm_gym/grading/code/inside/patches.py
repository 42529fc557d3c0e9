"""Applies a test's replacements of standard library objects to the program's side as well."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

from .guard import GuardedPeer

_ROUTED = frozenset({("sys", "stdout"), ("sys", "stderr"), ("sys", "stdin")})
"""Handled elsewhere: the program's output is written on this side, and its input follows :data:`sys.stdin`."""


class Patches:
    """Reports to the program's side what a test replaces with ``unittest.mock.patch`` or ``monkeypatch``."""

    def __init__(self, peer: GuardedPeer) -> None:
        self._peer = peer
        self._start = dict(os.environ)
        self._sent: dict[str, str | None] = {}

    def environment(self) -> dict[str, Any]:
        """Return the changed environment variables for a message, if there are new changes."""
        now = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        changed: dict[str, str | None] = {
            name: now.get(name) for name in now.keys() | self._start.keys() if now.get(name) != self._start.get(name)
        }
        if changed == self._sent:
            return {}
        self._sent = changed
        return {"environment": changed}

    def of_mock(self) -> None:
        from unittest import mock

        kind: Any = type(mock.patch("a.b"))  # its target is resolved when it is entered
        enter, leave = kind.__enter__, kind.__exit__

        def entered(patch: Any) -> Any:
            value = enter(patch)
            self._replaced(patch.target, patch.attribute)
            return value

        def left(patch: Any, *error: Any) -> Any:
            target = patch.target
            answer = leave(patch, *error)
            self._restored(target, patch.attribute)
            return answer

        kind.__enter__, kind.__exit__ = entered, left

    def of_pytest(self) -> None:
        import pytest

        kind: Any = pytest.MonkeyPatch
        setting, undoing = kind.setattr, kind.undo

        def set_(patch: Any, *args: Any, **kwargs: Any) -> None:
            before = len(patch._setattr)
            setting(patch, *args, **kwargs)
            for target, name, _ in patch._setattr[before:]:
                self._replaced(target, name)

        def undo(patch: Any) -> None:
            replaced = [(target, name) for target, name, _ in patch._setattr]
            undoing(patch)
            for target, name in dict.fromkeys((id(target), name) for target, name in replaced):
                self._restored(next(item for item, _ in replaced if id(item) == target), name)

        kind.setattr, kind.undo = set_, undo

    def _replaced(self, target: Any, name: str) -> None:
        where = _where(target, name)
        if where is not None:
            self._peer.ask("patch", *where, name, getattr(target, name))

    def _restored(self, target: Any, name: str) -> None:
        where = _where(target, name)
        if where is not None:
            self._peer.ask("unpatch", *where, name)


def _where(target: Any, name: str) -> tuple[str, list[str]] | None:
    """Return the module and the path in it, for objects that both sides have."""
    if type(target) is types.ModuleType:
        module, path = target.__name__, []
    elif type(target) is type:
        module, path = target.__module__, target.__qualname__.split(".")
    else:
        return None
    known = module.split(".")[0] in sys.stdlib_module_names | {"numpy"} and module in sys.modules
    if not known or module in ("builtins", "__main__") or (module, name) in _ROUTED:
        return None
    return module, path
