"""What a browser context contains when an episode begins: cookies and local storage, as a row's setup returns them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_COOKIE_KEYS = ("name", "value", "domain", "path", "expires", "httpOnly", "secure", "sameSite", "url")


@dataclass(frozen=True, slots=True)
class StorageState:
    """Cookies and local storage.

    Attributes:
        cookies: Parameters of ``Network.setCookies`` of the browser's protocol.
        local_storage: Items by origin.
    """

    cookies: Sequence[Mapping[str, Any]] = ()
    local_storage: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def script(self) -> str:
        """Return a script that stores the items of the document's origin."""
        items = json.dumps({origin: list(items.items()) for origin, items in self.local_storage.items()})
        return f"for (const [key, value] of {items}[location.origin] ?? []) localStorage.setItem(key, value);"


def read_storage_state(value: Any, url: str) -> StorageState:
    """Return what a setup has returned: cookies by name for the site of ``url``, or a ``storage_state`` of Playwright.

    Raises:
        ValueError: It is neither.
    """
    if value is None:
        return StorageState()
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r:.80} is not a mapping")
    if any(isinstance(part, list) for part in value.values()):
        return _storage_state(value)
    if not all(isinstance(part, str) for item in value.items() for part in item):
        raise ValueError("names and values of cookies must be strings")
    return StorageState([{"name": name, "value": cookie, "url": url} for name, cookie in value.items()])


def _storage_state(value: Mapping[str, Any]) -> StorageState:
    if unknown := set(value) - {"cookies", "origins"}:
        raise ValueError(f"a storage_state has the fields 'cookies' and 'origins', not {sorted(unknown)!r:.80}")
    try:
        cookies = [_cookie(cookie) for cookie in value.get("cookies", ())]
        storage = {
            origin["origin"]: {item["name"]: item["value"] for item in origin.get("localStorage", ())}
            for origin in value.get("origins", ())
        }
        if not all(isinstance(part, str) for items in storage.values() for item in items.items() for part in item):
            raise TypeError("names and values of items must be strings")
        return StorageState(cookies, storage)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"the storage_state is invalid: {type(error).__name__}: {error}") from error


def _cookie(cookie: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := set(cookie) - set(_COOKIE_KEYS):
        raise TypeError(f"a cookie has the fields {', '.join(_COOKIE_KEYS)}, not {sorted(unknown)!r:.80}")
    if not isinstance(cookie["name"], str) or not isinstance(cookie["value"], str):
        raise TypeError("name and value of a cookie must be strings")
    # Playwright writes -1 for a cookie of the session.
    return {key: part for key, part in cookie.items() if not (key == "expires" and part == -1)}
