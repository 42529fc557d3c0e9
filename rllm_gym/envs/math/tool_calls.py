"""Parsing of calculator calls, ``<tool_call>{…}</tool_call>``, in a reply."""

from __future__ import annotations

import json
from typing import Any

from rllm_gym.core import InvalidAction

OPEN, CLOSE = "<tool_call>", "</tool_call>"

MAX_CALLS = 8
MAX_CALL_CHARS = 4_000

EXAMPLE = '<tool_call>{"name": "calculator", "arguments": {"expression": "2 * (3 + 4)"}}</tool_call>'


def expressions_asked(text: str) -> list[str]:
    """Return the expressions of all calls in ``text``, in order; ``[]`` if there is no call.

    Raises:
        InvalidAction: A call is malformed; the message says which, where, and how to write it.
    """
    expressions: list[str] = []
    at = text.find(OPEN)
    while at >= 0:
        number = len(expressions) + 1
        if number > MAX_CALLS:
            raise InvalidAction(f"The reply has more than {MAX_CALLS} tool calls; make fewer at a time.")
        start = at + len(OPEN)
        end = text.find(CLOSE, start)
        if end < 0:
            raise InvalidAction(
                f"Tool call {number}, at position {at + 1} of the reply, is never closed with {CLOSE}. "
                f"A call looks like this: {EXAMPLE}"
            )
        expressions.append(_expression(text[start:end], number, start))
        at = text.find(OPEN, end)
    return expressions


def _expression(call: str, number: int, start: int) -> str:
    def refuse(what: str) -> InvalidAction:
        return InvalidAction(f"Tool call {number} {what}. A call looks like this: {EXAMPLE}")

    if len(call) > MAX_CALL_CHARS:
        raise refuse(f"has {len(call)} characters; at most {MAX_CALL_CHARS} are read")
    try:
        value: Any = json.loads(call)
    except json.JSONDecodeError as error:
        raise refuse(f"is not JSON: {error.msg} at position {start + error.pos + 1} of the reply") from error
    except (ValueError, RecursionError) as error:
        raise refuse(
            "is not JSON that can be read: it is nested too deeply or holds a number that is too long"
        ) from error
    if not isinstance(value, dict):
        raise refuse("is not a JSON object")
    if value.get("name") != "calculator":
        raise refuse(f"names the tool {str(value.get('name'))[:80]!r}; the only tool is 'calculator'")
    arguments = value.get("arguments")
    if isinstance(arguments, str):
        # OpenAI sends the arguments as JSON inside a string.
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise refuse("has 'arguments' that are no JSON object") from error
    expression = arguments.get("expression") if isinstance(arguments, dict) else None
    if not isinstance(expression, str):
        raise refuse("has no text under 'expression' in its 'arguments'")
    return expression
