"""Finds the earlier conversation that a chat request continues: requests are whole conversations without a name."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Owner = TypeVar("Owner")
MessageKey = tuple[Any, ...]


@dataclass(slots=True, eq=False)
class ConversationLine(Generic[Owner]):
    """One conversation as its client sees it.

    Attributes:
        owner: What the user of the index keeps for it.
        end: Digest of its messages up to its latest reply.
        texts: The text as sampled of each message that is a reply, by its index.
        digests: Digests of its messages up to each reply that was added to it.
    """

    owner: Owner
    end: bytes = b""
    texts: dict[int, str] = field(default_factory=dict)
    digests: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FoundConversation(Generic[Owner]):
    """What an index knows about the messages of a request.

    Attributes:
        line: The conversation with the most replies that the request repeats unchanged from its beginning; ``None`` if
            it repeats none.
        continues: Whether the request repeats this conversation as a whole. Otherwise it is a branch of it.
        messages: The messages of the request, with the texts that were sampled in place of those replies.
        texts: Those texts, by index.
        digest: Digest of all messages.
    """

    line: ConversationLine[Owner] | None
    continues: bool
    messages: list[dict[str, Any]]
    texts: dict[int, str]
    digest: bytes


class ConversationIndex(Generic[Owner]):
    """The latest conversations by what was said in them. Time and memory of a look-up are those of its messages.

    Args:
        most: Number of conversations that are kept, the latest ones.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_digest: dict[bytes, ConversationLine[Owner]] = {}
        self._lines: OrderedDict[int, ConversationLine[Owner]] = OrderedDict()

    def find(self, messages: Sequence[Mapping[str, Any]], tools: str, scope: str = "") -> FoundConversation[Owner]:
        """Return the conversation that a request continues, if there is one.

        Args:
            messages: The messages of the request, as :class:`~rllm_gym.chat_server.ChatRequest` has them.
            tools: Its tools; conversations with other tools are not continued.
            scope: Conversations of another scope are not continued.
        """
        digest = hashlib.sha256(json.dumps([scope, tools]).encode()).digest()
        line: ConversationLine[Owner] | None = None
        common, end = 0, b""
        for index, message in enumerate(messages):
            digest = _extended(digest, message)
            if message["role"] == "assistant" and (known := self._by_digest.get(digest)) is not None:
                line, common, end = known, index + 1, digest
        texts = {} if line is None else {index: text for index, text in line.texts.items() if index < common}
        sampled = [
            {"role": "assistant", "content": texts[index]} if index in texts else dict(message)
            for index, message in enumerate(messages)
        ]
        return FoundConversation(line, line is not None and line.end == end, sampled, texts, digest)

    def add_reply(
        self,
        line: ConversationLine[Owner],
        found: FoundConversation[Owner],
        message: Mapping[str, Any],
        text: str | None,
    ) -> None:
        """Add a reply to a conversation, which from then on is found by it.

        Args:
            line: ``found.line`` if it is continued, else a new one.
            found: The request.
            message: The reply as the client gets it.
            text: The reply as it was sampled; ``None`` if only the message is known, which then is left as it is.
        """
        line.texts = found.texts if text is None else {**found.texts, len(found.messages): text}
        line.end = _extended(found.digest, message)
        line.digests.append(line.end)
        self._by_digest[line.end] = line
        self._lines[id(line)] = line
        self._lines.move_to_end(id(line))
        if len(self._lines) > self._most:
            _, oldest = self._lines.popitem(last=False)
            for digest in oldest.digests:
                if self._by_digest.get(digest) is oldest:
                    del self._by_digest[digest]


def message_key(message: Mapping[str, Any]) -> MessageKey:
    """Return what two messages must have in common to be the same. Ids of calls do not count."""
    calls = tuple((call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ())
    return (message["role"], message.get("content") or "", calls, message.get("name"))


def _extended(digest: bytes, message: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(digest + json.dumps(message_key(message)).encode()).digest()
