"""``JsonObject``: an option that holds keyword arguments, as a YAML mapping or as JSON on the command line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Annotated, Any

import tyro


def _to_json(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)


shown_as_json = tyro.constructors.PrimitiveConstructorSpec[Mapping[str, Any]](
    nargs=1,
    metavar="JSON",
    instance_from_str=lambda words: json.loads(words[0]),
    is_instance=lambda value: isinstance(value, Mapping),
    str_from_instance=lambda value: [json.dumps(dict(value), default=_to_json)],
)
"""How ``--help`` shows a mapping."""

JsonObject = Annotated[Mapping[str, Any], shown_as_json]
"""Keyword arguments as an option: a YAML mapping, or JSON on the command line."""
