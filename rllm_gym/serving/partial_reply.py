"""``PartialReply``: the content of a reply while it is sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rllm_gym.chat_server import streamable

_CHARACTER_BYTES = 4  # at most, in UTF-8


class PartialReply:
    """Decodes the tokens of a reply one at a time. It is a view: the reply itself is what the sampler returns.

    A character whose bytes are not complete, text that may begin a stop text, and with tools what may begin a call, are
    held back until it is known what they are.

    Args:
        decode: Function from ids to text without special tokens.
        is_undecided: Whether the text up to an id may change with the id that follows.
        send: Called with the content so far whenever it has grown.
        tools: Whether tools were offered.
        stop: Texts that end the reply.

    Attributes:
        sent: The content so far.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        is_undecided: Callable[[int], bool],
        send: Callable[[str], None],
        *,
        tools: bool,
        stop: Sequence[str],
    ) -> None:
        self._decode, self._is_undecided, self._send, self._tools, self._stop = decode, is_undecided, send, tools, stop
        self._text = ""
        self._ids: list[int] = []  # the latest ones
        self._in_text = 0  # how many characters of what they decode to are in the text
        self._ended = 0  # how many of them there were when one ended a character
        self._least = 0  # how many of them are worth decoding
        self.sent = ""

    def add(self, token: int) -> None:
        """Append a token."""
        self._ids.append(token)
        if len(self._ids) < self._least or self._is_undecided(token):
            return
        # Some tokenizers decode the first token of a text in another way: the new ones are decoded after earlier ones.
        text = self._decode(self._ids)
        known = len(text)
        if text.endswith("\ufffd"):
            if len(self._ids) - self._ended < _CHARACTER_BYTES:
                return
            known -= 1  # these bytes are no character; but one may have begun with the last of them
            self._least = len(self._ids) * 5 // 4 + 1  # otherwise the time would be quadratic in their number
        self._text += text[self._in_text : known]
        self._in_text = max(self._in_text, known)
        if known == len(text):
            del self._ids[: self._ended]
            self._in_text, self._ended, self._least = len(self._decode(self._ids)), len(self._ids), 0
        content = streamable(self._text, tools=self._tools, stop=self._stop, sent=len(self.sent))
        if len(content) > len(self.sent):
            self.sent = content
            self._send(content)
