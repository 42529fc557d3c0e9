"""Chat messages and their conversion to token ids. The renderer needs a tokenizer, but not torch."""

from rllm_gym.chat.message import ContentPart, Message, ToolCall
from rllm_gym.chat.renderer import ChatRenderer, ChatTemplateError, SampledSpan, TokenPrefix

__all__ = [
    "ChatRenderer",
    "ChatTemplateError",
    "ContentPart",
    "Message",
    "SampledSpan",
    "TokenPrefix",
    "ToolCall",
]
