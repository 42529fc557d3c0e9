"""Tools for what a server offers beside its tools: resources and prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rllm_gym.mcp.protocol import printable
from rllm_gym.mcp.results import ToolResult, read_result, shown_json


class RequestTool(dict[str, Any]):
    """A tool, as a server would describe it, whose call is another request to the server.

    Args:
        method: The request. The tool's arguments are its parameters.
        name: The tool's name.
        description: Its description.
        required: Names of the text arguments that are required.
        optional: Schemas of other arguments.
    """

    def __init__(self, method: str, name: str, description: str, *required: str, **optional: Mapping[str, Any]) -> None:
        properties = {**{key: {"type": "string"} for key in required}, **optional}
        schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
        super().__init__(name=name, description=description, inputSchema=schema)
        self.method = method


_CURSOR = {"type": "string", "description": "Of the page before, to get the next one."}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
OFFERS: Mapping[str, Sequence[RequestTool]] = {
    "resources": (
        RequestTool("resources/list", "list_resources", "List the resources of the server.", cursor=_CURSOR),
        RequestTool(
            "resources/templates/list",
            "list_resource_templates",
            "List the patterns of URIs of the server's resources.",
            cursor=_CURSOR,
        ),
        RequestTool("resources/read", "read_resource", "Read a resource of the server by its URI.", "uri"),
    ),
    "prompts": (
        RequestTool("prompts/list", "list_prompts", "List the prompts of the server.", cursor=_CURSOR),
        RequestTool("prompts/get", "get_prompt", "Get a prompt of the server by its name.", "name", arguments=_TEXTS),
    ),
}


_LISTS = {
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "resources/read": "contents",
    "prompts/list": "prompts",
    "prompts/get": "messages",
}


def read_response(method: str, raw: dict[str, Any]) -> ToolResult:
    """Return the result of a request for the model.

    >>> read_response("resources/read", {"contents": [{"uri": "a:b", "text": "hello"}]}).text
    '[resource a:b]\\nhello'
    >>> read_response("prompts/list", {"prompts": [{"name": "greet", "description": "Greet."}], "nextCursor": "2"}).text
    '{"name": "greet", "description": "Greet."}\\nThe next page has the cursor "2".'
    """
    if method == "tools/call":
        return read_result(raw)
    key = _LISTS[method]
    if not isinstance(listed := raw.get(key), list):
        return ToolResult(f"The server sent no list of {key}.", is_error=True)
    read: Callable[[Any], list[Any]] = {"resources/read": _content, "prompts/get": parts_of_message}.get(method, _entry)
    parts = [part for item in listed for part in read(item)]
    if isinstance(cursor := raw.get("nextCursor"), str) and cursor:
        parts.append(_text(f"The next page has the cursor {shown_json(cursor)}."))
    return read_result({"content": parts})


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": printable(text)}


def _content(item: Any) -> list[Any]:
    return [{"type": "resource", "resource": item}]


def parts_of_message(item: Any) -> list[Any]:
    """Return the parts of a message of a prompt or of a request, after a line with its role."""
    if not isinstance(item, dict):
        return [item]
    content = item.get("content")
    return [_text(f"{str(item.get('role'))[:100]}:"), *(content if isinstance(content, list) else [content])]


def _entry(item: Any) -> list[Any]:
    shown = ("uri", "uriTemplate", "name", "title", "description", "mimeType", "arguments")
    return [_text(shown_json({key: item[key] for key in shown if key in item} if isinstance(item, dict) else item))]
