"""Names of keys: the valid ones, their aliases, and those that a model may not press."""

from __future__ import annotations

import difflib

_MODIFIERS = {
    "control": "Control", "ctrl": "Control", "shift": "Shift", "alt": "Alt", "option": "Alt", "meta": "Meta",
    "cmd": "Meta", "command": "Meta", "controlormeta": "Control",
}  # fmt: skip
_NAMES = {
    name.lower(): name
    for name in (
        "Enter", "Tab", "Escape", "Backspace", "Delete", "Insert", "Home", "End", "PageUp", "PageDown", "ArrowUp",
        "ArrowDown", "ArrowLeft", "ArrowRight", "Space", "CapsLock", "ContextMenu", "Shift", "Control", "Alt", "Meta",
        *(f"F{number}" for number in range(1, 13)),
    )
}  # fmt: skip
_ALIASES = {
    "return": "Enter", "esc": "Escape", "del": "Delete", "up": "ArrowUp", "down": "ArrowDown", "left": "ArrowLeft",
    "right": "ArrowRight", "page_up": "PageUp", "page_down": "PageDown", "spacebar": "Space", "ctrl": "Control",
    **{f"key{letter}": letter for letter in "abcdefghijklmnopqrstuvwxyz"}, **{f"digit{n}": str(n) for n in range(10)},
    "backquote": "`", "minus": "-", "equal": "=", "backslash": "\\", "bracketleft": "[", "bracketright": "]",
    "semicolon": ";", "quote": "'", "comma": ",", "period": ".", "slash": "/",
}  # fmt: skip
# All contexts of a browser share one clipboard, so that one episode could paste what another copied: these keys act on
# a clipboard of the episode instead.
_CLIPBOARD = {
    "Control+c": "copy", "Control+Insert": "copy", "Control+x": "cut", "Shift+Delete": "cut", "Control+v": "paste",
    "Shift+Insert": "paste",
}  # fmt: skip


class UnknownKey(ValueError):
    """There is no such key. The message is for the model."""


def checked_key(text: str) -> str:
    """Return the browser's name of a key or combination, with the modifiers first.

    >>> checked_key("ctrl+a"), checked_key("Esc"), checked_key("+")
    ('Control+a', 'Escape', '+')

    Raises:
        UnknownKey: There is no key of that name.
    """
    *modifiers, key = _parts(text)
    held = [_MODIFIERS.get(item.strip().lower()) for item in modifiers]
    if None in held or len(held) > 3:
        raise UnknownKey(_unknown(text))
    name = _key(key)
    if name is None:
        raise UnknownKey(_unknown(text))
    plain = [item for item in held if item is not None]
    return "+".join([*dict.fromkeys(plain), name])


def clipboard_command(key: str) -> str:
    """Return ``copy``, ``cut`` or ``paste`` for a checked key that uses the clipboard, else ``""``.

    >>> clipboard_command("Control+V"), clipboard_command("v")
    ('paste', '')
    """
    *held, name = _parts(key)
    last = name.lower() if len(name) == 1 else name
    found = (_CLIPBOARD.get(f"{'Control' if item == 'Meta' else item}+{last}", "") for item in held)
    return next(filter(None, found), "")


def _parts(text: str) -> list[str]:
    """Return the names between the plus signs; a plus sign at the end is the key itself."""
    if text in ("", "+"):
        return [text]
    if text.endswith("++"):
        return [*text[:-2].split("+"), "+"]
    return text.split("+")


def _key(name: str) -> str | None:
    if len(name) == 1:
        return name if name.isprintable() else None
    name = name.strip().lower()
    return _NAMES.get(name) or _ALIASES.get(name)


def _unknown(text: str) -> str:
    near = difflib.get_close_matches(text.rpartition("+")[2].lower()[:40], [*_NAMES, *_ALIASES], n=1)
    hint = f" Did you mean {_NAMES.get(near[0]) or _ALIASES[near[0]]!r}?" if near else ""
    return (
        f"There is no key {text[:40]!r}.{hint} Keys are single characters, Enter, Tab, Escape, Backspace, Delete, "
        "Space, Home, End, PageUp, PageDown, ArrowUp, ArrowDown, ArrowLeft, ArrowRight, F1 to F12, with Control+, "
        "Shift+, Alt+ or Meta+ before them."
    )
