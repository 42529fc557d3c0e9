"""``PartialReply``: the content of a reply while it is sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rllm_gym.chat_server import streamable


class PartialReply:
    """Decodes the tokens of a reply one at a time. It is a view: the reply itself is what the sampler returns.

    A character whose bytes are not complete, text that may begin a stop text, and with tools what may begin a call, are
    held back until it is known what they are.

    Args:
        decode: Function from ids to text without special tokens.
        send: Called with the content so far whenever it has grown.
        tools: Whether tools were offered.
        stop: Texts that end the reply.

    Attributes:
        sent: The content so far.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], send: Callable[[str], None], *, tools: bool, stop: Sequence[str]
    ) -> None:
        self._decode, self._send, self._tools, self._stop = decode, send, tools, stop
        self._text = ""
        self._ids: list[int] = []  # the latest ones, of which the first _decoded are in the text
        self._decoded = 0
        self.sent = ""

    def add(self, token: int) -> None:
        """Append a token."""
        self._ids.append(token)
        # Some tokenizers decode the first token of a text in another way: the new ones are decoded after earlier ones.
        text = self._decode(self._ids)
        if text.endswith("\ufffd"):
            return
        self._text += text[len(self._decode(self._ids[: self._decoded])) :]
        del self._ids[: self._decoded]
        self._decoded = len(self._ids)
        content = streamable(self._text, tools=self._tools, stop=self._stop)
        if len(content) > len(self.sent):
            self.sent = content
            self._send(content)
