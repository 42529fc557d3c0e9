"""Validation of a call's arguments against its tool's schema, with error messages for the model.

A schema comes from a server and may be hostile. So no reference in it is fetched, its regular expressions are not run
(the server runs them itself), and the work is bounded. If a schema is malformed or too expensive, the arguments are
passed on, and the server decides.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache
from itertools import islice
from typing import Any

from rllm_gym.core import InvalidAction
from rllm_gym.mcp.tools import MCPTool
from rllm_gym.parsing.function_calls import FunctionCall, json_at

MAX_STEPS = 100_000
"""Number of applied keywords, visited items and written error messages, for all calls of a reply: some tenths of a
second."""

_CHARS_PER_STEP = 100
_SHOWN_ERRORS = 3
_SHOWN_CHARS = 300
_REGULAR_EXPRESSIONS = ("pattern", "patternProperties")
# These keywords evaluate the other keywords again, including regular expressions.
_UNEVALUATED = ("unevaluatedItems", "unevaluatedProperties")

_active_budget: ContextVar[ValidationBudget] = ContextVar("validation_budget")


class ValidationBudget:
    """The work budget for checking the calls of one reply. What exceeds it is left for the servers to check."""

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def spend(self, steps: int) -> None:
        """Count steps.

        Raises:
            _TooMuch: The budget is used up.
        """
        self._left -= steps
        if self._left < 0:
            raise _TooMuch


class _TooMuch(Exception):
    """Raised when a schema needs more steps than its budget."""


def checked_arguments(
    call: FunctionCall, tool: MCPTool, number: int = 0, *, work: ValidationBudget | None = None
) -> dict[str, Any]:
    """Return the arguments to send: those of the call, with text from XML converted to the types of the schema.

    Args:
        call: The call.
        tool: Its tool.
        number: Position of the call in its reply, from 1; 0 if it is the only one.
        work: Budget shared by the calls of a reply.

    Raises:
        InvalidAction: The arguments do not fit the schema; the message names the position and the allowed value.
    """
    work = work or ValidationBudget()
    validator = _validator(json.dumps(tool.input_schema))
    arguments = call.arguments if call.typed else _from_text(call.arguments, tool.input_schema, validator, work)
    errors = _errors(validator, arguments, work)
    if not errors:
        return arguments
    which = f"Call {number}, of {call.name!r}," if number else f"The call of {call.name!r}"
    message = "; ".join(_in_words(error, arguments) for error in errors[:_SHOWN_ERRORS])
    raise InvalidAction(f"{which} was not sent, since its arguments do not fit the schema: {message}.")


def _from_text(
    arguments: dict[str, Any], schema: Mapping[str, Any], validator: Any, work: ValidationBudget
) -> dict[str, Any]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return arguments
    return {
        key: _typed(value, properties[key], validator, work) if key in properties and isinstance(value, str) else value
        for key, value in arguments.items()
    }


def _typed(text: str, schema: Any, validator: Any, work: ValidationBudget) -> Any:
    """Return ``text`` itself if it fits the schema; else its value as JSON, if that fits."""
    wanted = validator.evolve(schema=schema)
    if not _errors(wanted, text, work):
        return text
    word = {"True": "true", "False": "false", "None": "null"}.get(text.strip(), text.strip())
    try:
        value, end = json_at(word, 0)
    except InvalidAction:
        return text
    return value if end == len(word) and not _errors(wanted, value, work) else text


# Error messages


def _errors(validator: Any, value: Any, work: ValidationBudget) -> list[Any]:
    """Return the first errors; none if the schema cannot be applied."""
    token = _active_budget.set(work)
    try:
        return list(islice(validator.iter_errors(value), 20))
    except Exception:  # a malformed schema may raise anything: unknown types, dangling references, endless recursion
        return []
    finally:
        _active_budget.reset(token)


def _in_words(error: Any, arguments: dict[str, Any]) -> str:
    message = _short(error.message)
    position = error.json_path
    if error.validator == "required" and isinstance(error.instance, dict):
        allowed = ", ".join(map(repr, error.instance)) or "nothing"
        message += f" (given: {_short(allowed)})"
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        message += _nearest_property(error)
    return message if position == "$" else f"at {_short(position)}: {message}"


def _nearest_property(error: Any) -> str:
    known = error.schema.get("properties")
    if not isinstance(known, dict):
        return ""
    unknown = next((key for key in error.instance if key not in known), "")
    near = difflib.get_close_matches(unknown[:100], list(known)[:1_000], n=1)
    return f" (did you mean {near[0]!r}?)" if near else f" (it takes {_short(', '.join(known) or 'nothing')})"


def _short(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


# Validators


@lru_cache(maxsize=1_024)
def _validator(schema_text: str) -> Any:
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    schema = json.loads(schema_text)
    try:
        base = validator_for(schema, default=Draft202012Validator)
    except TypeError:  # "$schema" is not a text
        base = Draft202012Validator
    # An empty registry fetches nothing; the default one would.
    return _bounded(base)(schema, registry=Registry())


@cache
def _bounded(base: Any) -> Any:
    from jsonschema.validators import extend

    keywords = {name: _counted(check) for name, check in base.VALIDATORS.items()}
    for name in (*_REGULAR_EXPRESSIONS, *_UNEVALUATED):
        keywords[name] = _not_checked
    keywords["additionalProperties"] = _without_patterns(keywords["additionalProperties"])
    keywords["uniqueItems"] = _unique_items
    if "required" in keywords:  # not in draft 3
        keywords["required"] = _without_defaults(keywords["required"])
    return extend(base, validators=keywords)


Keyword = Callable[[Any, Any, Any, Any], Any]


def _counted(check: Keyword) -> Keyword:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        work = _active_budget.get()
        work.spend(1 + _size(value) + _size(instance))
        for error in check(validator, value, instance, schema) or ():
            work.spend(len(error.message) // _CHARS_PER_STEP)  # the message contains the whole value
            yield error

    return counted


def _not_checked(validator: Any, value: Any, instance: Any, schema: Any) -> tuple[Any, ...]:
    return ()


def _without_patterns(check: Keyword) -> Keyword:
    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if "patternProperties" not in schema:
            yield from check(validator, value, instance, schema)

    return checked


def _without_defaults(check: Keyword) -> Keyword:
    """Do not require a property with a default: servers that use zod list it as required, and fill it in."""

    def checked(validator: Any, required: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if isinstance(required, list):
            required = [name for name in required if not has_default(schema, name)]
        yield from check(validator, required, instance, schema)

    return checked


def has_default(schema: Mapping[str, Any], name: Any) -> bool:
    """Return whether a property has a default."""
    properties = schema.get("properties")
    wanted = properties.get(name) if isinstance(properties, dict) and isinstance(name, str) else None
    return isinstance(wanted, dict) and "default" in wanted


def _unique_items(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if value and isinstance(instance, list):
        _active_budget.get().spend(len(instance))
        # Values are compared as JSON: 1 is not true.
        if len({json.dumps(item, sort_keys=True) for item in instance}) < len(instance):
            yield ValidationError("its items are not all different")


def _size(value: Any) -> int:
    return len(value) if isinstance(value, dict | list) else 0
