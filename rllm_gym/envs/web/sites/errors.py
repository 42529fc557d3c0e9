"""Exceptions for requests that a site cannot fulfil. Their messages are shown to the visitor."""

from __future__ import annotations


class FormError(ValueError):
    """A form that cannot be accepted. The page that contains the form shows the message to the visitor."""


class NotFound(LookupError):
    """The page does not exist. The message names what was requested."""
