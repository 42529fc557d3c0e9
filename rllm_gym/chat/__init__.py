"""Chat messages and their conversion to token ids. The renderer needs a tokenizer, but not torch."""

from rllm_gym.chat.message import ContentPart, Message, ToolCall
from rllm_gym.chat.renderer import ChatRenderer, ChatTemplateError, SampledSpan, TokenPrefix
from rllm_gym.chat.tokenizer import load_tokenizer, reply_decoder

__all__ = [
    "ChatRenderer",
    "ChatTemplateError",
    "ContentPart",
    "Message",
    "SampledSpan",
    "TokenPrefix",
    "ToolCall",
    "load_tokenizer",
    "reply_decoder",
]
