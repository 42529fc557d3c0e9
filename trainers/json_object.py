"""``JsonObject``: an option that holds keyword arguments, as a YAML mapping or as JSON on the command line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Annotated, Any

import tyro

shown_as_json = tyro.constructors.PrimitiveConstructorSpec[Mapping[str, Any]](
    nargs=1,
    metavar="JSON",
    instance_from_str=lambda words: json.loads(words[0]),
    is_instance=lambda value: isinstance(value, Mapping),
    str_from_instance=lambda value: [json.dumps(dict(value), default=dataclasses.asdict)],
)
"""How ``--help`` shows a mapping."""

JsonObject = Annotated[Mapping[str, Any], shown_as_json]
"""Keyword arguments as an option: a YAML mapping, or JSON on the command line."""
