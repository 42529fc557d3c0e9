"""Messages of a conversation, with text, images and tool calls; converts from and to OpenAI format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

MessageRole = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ContentPart:
    """A part of a message: ``text``, or the bytes of an encoded ``image`` (PNG or JPEG)."""

    type: Literal["text", "image"]
    text: str = ""
    image: bytes = b""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call by the model. ``arguments`` is a JSON object as text, as in OpenAI's API."""

    name: str
    arguments: str = "{}"
    id: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        role: The role of the author.
        content: Text, or a tuple of parts if there are images.
        tool_calls: Tool calls of the assistant in this message.
        name: Name of the tool that answers (role ``tool``) or of the author.
        tool_call_id: Id of the call that a ``tool`` message answers.
    """

    role: MessageRole
    content: str | tuple[ContentPart, ...] = ""
    tool_calls: tuple[ToolCall, ...] = ()
    name: str | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The text of the message, without images."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if part.type == "text")

    def to_openai(self) -> dict[str, Any]:
        """Return the message in OpenAI format, as chat templates expect it."""
        content: Any = self.content
        if not isinstance(content, str):
            content = [
                {"type": "text", "text": part.text} if part.type == "text" else {"type": "image"} for part in content
            ]
        message: dict[str, Any] = {"role": self.role, "content": content}
        if self.tool_calls:
            message["tool_calls"] = [
                {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message

    @classmethod
    def from_openai(cls, message: Mapping[str, Any]) -> Message:
        """Create a message from OpenAI format. Inverse of :meth:`to_openai` for text messages; keys may be missing.

        Raises:
            ValueError: The role is unknown.
        """
        role = message.get("role")
        if role not in ("system", "user", "assistant", "tool"):
            raise ValueError(f"role={role!r} must be system, user, assistant or tool")
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = tuple(
                ContentPart("text", text=str(part.get("text", "")))
                if part.get("type") == "text"
                else ContentPart("image")
                for part in content
            )
        calls = tuple(
            ToolCall(call["function"]["name"], call["function"].get("arguments", "{}"), call.get("id", ""))
            for call in message.get("tool_calls") or ()
        )
        return cls(
            role=role,
            content=content,
            tool_calls=calls,
            name=message.get("name"),
            tool_call_id=message.get("tool_call_id"),
        )
