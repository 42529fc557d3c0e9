"""An OpenAI-compatible endpoint: chat completions and responses with tools and streaming, and ``GET /v1/models``."""

from rllm_gym.chat_server.replies import ChatReply, reply_message, streamable
from rllm_gym.chat_server.requests import (
    ChatRequest,
    RequestError,
    chat_request,
    checked_messages,
    checked_tools,
    conversation_of,
)
from rllm_gym.chat_server.server import ChatServer

__all__ = [
    "ChatReply",
    "ChatRequest",
    "ChatServer",
    "RequestError",
    "chat_request",
    "checked_messages",
    "checked_tools",
    "conversation_of",
    "reply_message",
    "streamable",
]
