"""A US keyboard, whose keys send the same events to the browser as a real one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from rllm_gym.envs.web.browser.isolated_world import IsolatedWorlds

MODIFIERS = {"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}
"""The protocol's bits of the keys that change what others do."""


@dataclass(frozen=True, slots=True)
class _Key:
    """A key: ``code`` is its position, ``key`` its meaning, ``number`` its Windows key code."""

    code: str
    key: str
    number: int
    text: str = ""
    location: int = 0


def _layout() -> dict[str, _Key]:
    keys: dict[str, _Key] = {}

    def both(code: str, number: int, plain: str, shifted: str) -> None:
        keys[plain] = _Key(code, plain, number, plain)
        keys[shifted] = _Key(code, shifted, number, shifted)

    for letter in "abcdefghijklmnopqrstuvwxyz":
        both(f"Key{letter.upper()}", ord(letter.upper()), letter, letter.upper())
    for digit, shifted in zip("0123456789", ")!@#$%^&*(", strict=True):
        both(f"Digit{digit}", ord(digit), digit, shifted)
    for code, number, plain, shifted in (
        ("Semicolon", 186, ";", ":"), ("Equal", 187, "=", "+"), ("Comma", 188, ",", "<"), ("Minus", 189, "-", "_"),
        ("Period", 190, ".", ">"), ("Slash", 191, "/", "?"), ("Backquote", 192, "`", "~"),
        ("BracketLeft", 219, "[", "{"), ("Backslash", 220, "\\", "|"), ("BracketRight", 221, "]", "}"),
        ("Quote", 222, "'", '"'),
    ):  # fmt: skip
        both(code, number, plain, shifted)
    for name, number in (
        ("Tab", 9), ("Escape", 27), ("Backspace", 8), ("Delete", 46), ("Insert", 45), ("Home", 36), ("End", 35),
        ("PageUp", 33), ("PageDown", 34), ("ArrowLeft", 37), ("ArrowUp", 38), ("ArrowRight", 39), ("ArrowDown", 40),
        ("CapsLock", 20), ("ContextMenu", 93), *((f"F{item}", 111 + item) for item in range(1, 13)),
    ):  # fmt: skip
        keys[name] = _Key(name, name, number)
    for name, number in (("Shift", 16), ("Control", 17), ("Alt", 18), ("Meta", 91)):
        keys[name] = _Key(f"{name}Left", name, number, location=1)
    keys["Enter"] = keys["\n"] = keys["\r"] = _Key("Enter", "Enter", 13, "\r")
    keys["Space"] = keys[" "] = _Key("Space", " ", 32, " ")
    return keys


_KEYS = _layout()
_SHIFTED = dict(zip("1234567890;=,-./`[\\]'", '!@#$%^&*():+<_>?~{|}"', strict=True))


def modifier_bits(held: Iterable[str]) -> int:
    """Return the protocol's bits of held keys, of which only modifiers have any."""
    return sum({MODIFIERS.get(key, 0) for key in held})


async def hold_key(isolated: IsolatedWorlds, name: str, held: Collection[str], *, down: bool) -> None:
    """Press a key without releasing it, or release it.

    Args:
        isolated: The isolated worlds of the page that has the keyboard focus.
        name: As returned by :func:`~rllm_gym.envs.web.browser.key_names.checked_key`, without modifiers.
        held: The keys held after that.
        down: Whether it is pressed.
    """
    key = _KEYS.get(name)
    if key is None:
        if down:
            await isolated.send("Input.insertText", text=name)
        return
    text = key.text if down and set(held) & set(MODIFIERS) <= {"Shift"} else ""
    kind = "keyUp" if not down else "keyDown" if text else "rawKeyDown"
    await _send(isolated, kind, key, modifier_bits(held), text)


async def press_key(isolated: IsolatedWorlds, name: str) -> None:
    """Press and release a key, with modifiers held.

    Args:
        isolated: The isolated worlds of the page that has the keyboard focus.
        name: As returned by :func:`~rllm_gym.envs.web.browser.key_names.checked_key`: ``"Control+a"``.
    """
    *held, last = [*name[:-2].split("+"), "+"] if name.endswith("++") else name.split("+") if name != "+" else ["+"]
    modifiers = 0
    for modifier in held:
        modifiers |= MODIFIERS[modifier]
        await _send(isolated, "rawKeyDown", _KEYS[modifier], modifiers)
    key = _KEYS.get(last)
    if key is None:  # a key of another keyboard layout
        await isolated.send("Input.insertText", text=last)
    else:
        if "Shift" in held and len(last) == 1:
            key = _KEYS[_SHIFTED.get(last, last.upper())]
        # With any modifier other than Shift, a key is a command and types nothing.
        text = key.text if set(held) <= {"Shift"} else ""
        pressed = modifiers | MODIFIERS.get(last, 0)
        await _send(isolated, "keyDown" if text else "rawKeyDown", key, pressed, text)
        await _send(isolated, "keyUp", key, modifiers)
    for modifier in reversed(held):
        modifiers &= ~MODIFIERS[modifier]
        await _send(isolated, "keyUp", _KEYS[modifier], modifiers)


async def type_text(isolated: IsolatedWorlds, text: str) -> None:
    """Type a text, with a key press for each character that has a key."""
    for character in text:
        if character in _KEYS:
            await press_key(isolated, character)
        else:
            await isolated.send("Input.insertText", text=character)


async def _send(isolated: IsolatedWorlds, kind: str, key: _Key, modifiers: int, text: str = "") -> None:
    event: dict[str, Any] = {
        "type": kind,
        "modifiers": modifiers,
        "windowsVirtualKeyCode": key.number,
        "code": key.code,
        "key": key.key,
        "location": key.location,
    }
    if text:
        event |= {"text": text, "unmodifiedText": text}
    await isolated.send("Input.dispatchKeyEvent", **event)
