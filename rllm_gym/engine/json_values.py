"""Convert values to JSON types and back. Types that JSON lacks are tagged, so that a saved episode is restored."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

_TAG = "__rllm__"


def to_json(value: Any) -> Any:
    """Convert any value to JSON types. Tuples, sets, bytes, arrays, non-finite floats and dicts with keys other than
    strings are tagged, so that :func:`from_json` restores them. Numpy scalars become Python scalars; any other value
    becomes the tagged text of its ``repr``.

    >>> from_json(to_json({"a": (1, float("inf")), 2: b"x"}))
    {'a': (1, inf), 2: b'x'}
    """
    if value is None or isinstance(value, bool | str):
        # str() converts subclasses, such as StrEnum members, to plain strings.
        return str(value) if isinstance(value, str) else value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, np.generic) and not isinstance(value, np.void):
        return to_json(value.item())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_TAG: "float", "value": repr(float(value))}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value) and _TAG not in value:
            return {key: to_json(item) for key, item in value.items()}
        return {_TAG: "dict", "value": [[to_json(key), to_json(item)] for key, item in value.items()]}
    if isinstance(value, list):
        return [to_json(item) for item in value]
    if isinstance(value, tuple):
        return {_TAG: "tuple", "value": [to_json(item) for item in value]}
    if isinstance(value, set | frozenset):
        return {_TAG: type(value).__name__, "value": [to_json(item) for item in sorted(value, key=repr)]}
    if isinstance(value, bytes):
        return {_TAG: "bytes", "value": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {
            _TAG: "array",
            "dtype": value.dtype.str,
            "shape": list(value.shape),
            "value": base64.b64encode(np.ascontiguousarray(value).tobytes()).decode(),
        }
    return {_TAG: "repr", "value": repr(value)}


def from_json(value: Any) -> Any:
    """Return the value of a result of :func:`to_json`. Values stored as ``repr`` are returned as that text.

    Raises:
        ValueError: A tag is unknown.
    """
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_TAG)
    if kind is None:
        return {key: from_json(item) for key, item in value.items()}
    content = value["value"]
    match kind:
        case "float":
            return float(content)
        case "tuple":
            return tuple(from_json(item) for item in content)
        case "set":
            return {from_json(item) for item in content}
        case "frozenset":
            return frozenset(from_json(item) for item in content)
        case "bytes":
            return base64.b64decode(content)
        case "dict":
            return {from_json(key): from_json(item) for key, item in content}
        case "array":
            data = np.frombuffer(base64.b64decode(content), dtype=np.dtype(value["dtype"]))
            return data.reshape(value["shape"]).copy()
        case "repr":
            return content
    raise ValueError(f"unknown kind of value {kind!r}; the file was written by a newer version")
