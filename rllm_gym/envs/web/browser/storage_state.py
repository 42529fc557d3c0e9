"""What a browser context contains when an episode begins: cookies and local storage, as a row's setup returns them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from rllm_gym.envs.web.browser.network_policy import origin_of

_COOKIE_KEYS = ("name", "value", "domain", "path", "expires", "httpOnly", "secure", "sameSite", "url")
MAX_ITEM_CHARS = 5 * 2**20
"""Characters of an origin's local storage in Chromium."""


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


def read_storage_state(value: Any, origins: Sequence[str]) -> StorageState:
    """Return what a setup has returned: cookies by name for the first origin, or a ``storage_state`` of Playwright.

    Args:
        value: What the setup has returned.
        origins: Those of the task, as :func:`~rllm_gym.envs.web.browser.network_policy.origin_of` writes them.

    Raises:
        ValueError: It is neither, or not for any of the origins.
    """
    if value is None:
        return StorageState()
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r:.80} is not a mapping")
    if any(isinstance(part, list) for part in value.values()):
        return _storage_state(value, origins)
    if not all(isinstance(part, str) for item in value.items() for part in item):
        raise ValueError("names and values of cookies must be strings")
    return StorageState([{"name": name, "value": cookie, "url": origins[0]} for name, cookie in value.items()])


def _storage_state(value: Mapping[str, Any], origins: Sequence[str]) -> StorageState:
    try:
        _check_keys("a storage_state", value, ("cookies", "origins"))
        cookies = [_cookie(cookie) for cookie in value.get("cookies", ())]
        storage = dict(_local_storage(entry) for entry in value.get("origins", ()))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"the storage_state is invalid: {type(error).__name__}: {error}") from error
    hosts = [urlsplit(origin).hostname or "" for origin in origins]
    of_these = any(_is_sent_to(host, cookie) for cookie in cookies for host in hosts)
    if (cookies or storage) and not of_these and storage.keys().isdisjoint(origins):
        raise ValueError(f"the storage_state has nothing for {', '.join(origins)}: save it at a URL with this host")
    return StorageState(cookies, storage)


def _check_keys(what: str, value: Mapping[str, Any], known: Sequence[str]) -> None:
    if unknown := set(value) - set(known):
        raise TypeError(f"the fields of {what} are {', '.join(known)}, not {sorted(unknown)!r:.80}")


def _local_storage(entry: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    _check_keys("an entry of origins", entry, ("origin", "localStorage"))
    items = {item["name"]: item["value"] for item in entry.get("localStorage", ())}
    if not all(isinstance(part, str) for item in items.items() for part in item):
        raise TypeError("names and values of items must be strings")
    if sum(len(part) for item in items.items() for part in item) > MAX_ITEM_CHARS:
        raise TypeError(f"the local storage of {entry['origin']!r:.80} has more than {MAX_ITEM_CHARS:,} characters")
    return origin_of(entry["origin"]), items


def _is_sent_to(host: str, cookie: Mapping[str, Any]) -> bool:
    domain = str(cookie.get("domain") or urlsplit(str(cookie.get("url", ""))).hostname or "").lower().lstrip(".")
    return bool(domain) and f".{host}".endswith(f".{domain}")


def _cookie(cookie: Mapping[str, Any]) -> dict[str, Any]:
    _check_keys("a cookie", cookie, _COOKIE_KEYS)
    if not isinstance(cookie["name"], str) or not isinstance(cookie["value"], str):
        raise TypeError("name and value of a cookie must be strings")
    # Playwright writes -1 for a cookie of the session.
    return {key: part for key, part in cookie.items() if not (key == "expires" and part == -1)}
