"""rLLM's ``Tool``, the base class of tools, and its output."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rllm_gym.core import EnvironmentFault

_JSON_TYPES = {
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "str": "string",
    "dict": "object",
    "list": "array",
}


@dataclass
class ToolOutput:
    """The output of a tool, or its error."""

    name: str
    output: str | list[Any] | dict[str, Any] | Any = None
    error: str | None = None
    metadata: dict[str, Any] | None = None

    def to_string(self) -> str:
        if self.error:
            return f"Error: {self.error}"
        if self.output is None:
            return ""
        if isinstance(self.output, list | dict):
            return json.dumps(self.output, ensure_ascii=False, default=str)
        return str(self.output)

    __str__ = to_string


class Tool:
    """A tool: override :meth:`forward` and ``json``, or pass a function whose signature defines the schema."""

    def __init__(
        self, name: str | None = None, description: str | None = None, function: Callable[..., Any] | None = None
    ) -> None:
        self.function = function
        self.name = name or (function.__name__ if function is not None else None)
        self.description = description or (inspect.getdoc(function) if function is not None else None)
        if self.name is None or self.description is None:
            raise ValueError(f"a tool needs a name and a description (or a function); got {name!r}, {description!r}")

    @property
    def json(self) -> dict[str, Any]:
        """The tool schema in OpenAI format."""
        parameters = _schema(self.function) if self.function is not None else {"type": "object", "properties": {}}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.function is None:
            raise TypeError(f"tool {self.name!r} defines neither forward() nor a function")
        return self.function(*args, **kwargs)

    async def async_forward(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run without blocking; :meth:`forward` unless a subclass overrides it."""
        return self.forward(*args, **kwargs)

    def __call__(self, /, *args: Any, use_async: bool = False, **kwargs: Any) -> Any:
        """Return the output of :meth:`forward`, or with ``use_async`` an awaitable of that of :meth:`async_forward`."""
        return self._call_async(*args, **kwargs) if use_async else self.call_sync(*args, **kwargs)

    def call_sync(self, /, *args: Any, **kwargs: Any) -> ToolOutput:
        """Return the output of :meth:`forward`; what it raises is the output's error."""
        try:
            return self._output(self.forward(*args, **kwargs))
        except EnvironmentFault:
            raise
        except Exception as error:  # an error of a tool is reported to the model; it is not an environment fault
            return self._failed(error)

    async def _call_async(self, /, *args: Any, **kwargs: Any) -> ToolOutput:
        try:
            return self._output(await self.async_forward(*args, **kwargs))
        except EnvironmentFault:
            raise
        except Exception as error:
            return self._failed(error)

    def _output(self, output: Any) -> ToolOutput:
        return output if isinstance(output, ToolOutput) else ToolOutput(str(self.name), output=output)

    def _failed(self, error: Exception) -> ToolOutput:
        return ToolOutput(str(self.name), error=f"{type(error).__name__} - {error}")


def _schema(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    properties = {}
    for parameter in parameters:
        # Use the name: with ``from __future__ import annotations`` an annotation is text, which is not evaluated.
        name = getattr(parameter.annotation, "__name__", str(parameter.annotation)).partition("[")[0]
        properties[parameter.name] = {"type": _JSON_TYPES.get(name, "string")}
    required = [parameter.name for parameter in parameters if parameter.default is inspect.Parameter.empty]
    return {"type": "object", "properties": properties, "required": required}
