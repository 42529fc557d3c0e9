"""``JsonObject``: an option that holds keyword arguments, as a YAML mapping or as JSON on the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import tyro


def _read_json_object(words: list[str]) -> dict[str, Any]:
    try:
        value = json.loads(words[0])
    except ValueError as error:
        raise ValueError(f"{words[0]!r} is not JSON ({error}); use for example '{{\"size\": 4}}'") from error
    if not isinstance(value, dict):
        raise ValueError(f"{words[0]!r} is JSON, but not an object; use for example '{{\"size\": 4}}'")
    return value


JsonObject = Annotated[
    Mapping[str, Any],
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="JSON",
        instance_from_str=_read_json_object,
        is_instance=lambda value: isinstance(value, Mapping),
        str_from_instance=lambda value: [json.dumps(dict(value))],
    ),
]
"""Keyword arguments as an option: a YAML mapping, or JSON on the command line."""
