"""What a site tells its visitor instead of doing as it was asked."""

from __future__ import annotations


class Refused(ValueError):
    """A form that cannot be accepted; its message is for the visitor. The page they came from shows it."""


class NotFound(LookupError):
    """There is no such page; the message says what was looked for."""
