"""The calls of logs as conversations, with a branch wherever a client rewrote its history."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rllm_gym.core import TurnTokens
from rllm_gym.engine.conversation_index import ConversationIndex, ConversationLine, message_key

OpenAIMessage = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ServedCall:
    """One request with its reply.

    Attributes:
        id: Id of the response, ``""`` if it is unknown.
        conversation: Id of its conversation, ``""`` if it is unknown: then it belongs to the one it continues.
        messages: The messages of the request, in OpenAI's format.
        tools: The offered tools as JSON, ``""`` for none.
        reply: The assistant's message.
        text: The reply as it was sampled; ``None`` where only the message is known and has calls.
        tokens: Its tokens, where ``context_ids`` are the whole prompt; ``None`` if they are unknown.
        finish_reason: ``"stop"``, ``"length"`` or another value.
        stop: Texts that ended the reply; its ids may have more of them than its text.
        info: What is known about the model: its version, the temperature, the time.
    """

    id: str
    conversation: str
    messages: tuple[OpenAIMessage, ...]
    tools: str
    reply: OpenAIMessage
    text: str | None
    tokens: TurnTokens | None = None
    finish_reason: str = "stop"
    stop: tuple[str, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Reply:
    """One reply of a conversation.

    Attributes:
        call: The call. Its tokens have as ``context_ids`` only what was appended in their branch.
        branch: Number of its branch.
        texts: The texts as sampled of earlier replies among the messages, by index.
    """

    call: ServedCall
    branch: int
    texts: dict[int, str]

    @property
    def sampled_messages(self) -> list[OpenAIMessage]:
        """The messages with the texts as sampled in place of the replies."""
        return [
            {"role": "assistant", "content": self.texts[index]} if index in self.texts else message
            for index, message in enumerate(self.call.messages)
        ]


@dataclass(slots=True)
class Conversation:
    """The replies of one conversation, in order.

    Attributes:
        name: Its id in the log.
        id: Its id; scrubbed.
        replies: At least one.
        reward: ``None`` while it is unknown.
        scrubbed: Whether a text was changed, so that its tokens were removed.
        num_branches: Number of branches.
    """

    name: str
    id: str = ""
    replies: list[Reply] = field(default_factory=list)
    reward: float | None = None
    scrubbed: bool = False
    num_branches: int = 0

    def __post_init__(self) -> None:
        self.id = self.id or self.name

    @property
    def prompt(self) -> tuple[OpenAIMessage, ...]:
        """The messages before the first reply."""
        return self.replies[0].call.messages

    @property
    def tools(self) -> str:
        return self.replies[0].call.tools

    def content(self) -> bytes:
        """Return a digest that is equal for conversations with the same content. Ids of calls do not count."""
        branches = {reply.branch: reply for reply in self.replies}  # the last reply of each
        keys = [
            [message_key(message) for message in (*reply.call.messages, reply.call.reply)]
            for reply in branches.values()
        ]
        texts = [reply.call.text for reply in self.replies]
        return hashlib.sha256(json.dumps([self.tools, keys, texts]).encode()).digest()

    def scrub(self, change: Callable[[str], str]) -> None:
        """Change every text. If one differs, the tokens of the whole conversation are removed, which spell the texts as
        they were. So they are where a reply was ended by a stop text, which is not in its text.

        Ids of calls, which clients choose, become ``call_0``, ``call_1`` and so on.
        """
        changed = False
        call_ids: dict[str, str] = {"": ""}

        def apply(value: Any) -> Any:
            nonlocal changed
            if isinstance(value, str):
                new = change(value)
                changed = changed or new != value
                return new
            if isinstance(value, list):
                return [apply(item) for item in value]
            if isinstance(value, dict):
                return {apply(key): apply(item) for key, item in value.items()}
            return value

        def call_id(name: str) -> str:
            apply(name)  # a chat template may have written it into the prompt
            return call_ids.setdefault(name, f"call_{len(call_ids) - 1}")

        def scrubbed(message: OpenAIMessage) -> OpenAIMessage:
            new = {key: apply(item) if key in ("content", "name") else item for key, item in message.items()}
            if "tool_call_id" in message:
                new["tool_call_id"] = call_id(message["tool_call_id"])
            if "tool_calls" in message:
                new["tool_calls"] = [
                    {**call, "id": call_id(call["id"]), "function": {k: apply(v) for k, v in call["function"].items()}}
                    for call in message["tool_calls"]
                ]
            return new

        messages: dict[int, OpenAIMessage] = {}  # a message that several calls repeat stays one object

        def shared(message: OpenAIMessage) -> OpenAIMessage:
            if id(message) not in messages:
                messages[id(message)] = scrubbed(message)
            return messages[id(message)]

        self.id = change(self.id)
        for reply in self.replies:
            call = reply.call
            reply.texts = {index: apply(text) for index, text in reply.texts.items()}
            reply.call = replace(
                call,
                messages=tuple(map(shared, call.messages)),
                tools=json.dumps(apply(json.loads(call.tools))) if call.tools else "",
                reply=scrubbed(call.reply),
                text=apply(call.text),
                info={key: change(item) if isinstance(item, str) else item for key, item in call.info.items()},
            )
        if changed or any(reply.call.stop for reply in self.replies):
            self.scrubbed = changed
            for reply in self.replies:
                reply.call = replace(reply.call, tokens=None)


@dataclass(slots=True)
class _Branch:
    conversation: Conversation
    number: int
    ids: tuple[int, ...] = ()


class Conversations:
    """Collects calls to conversations, as :mod:`rllm_gym.engine.call_recorder` does while they are made.

    Messages that several calls repeat are kept once, and of a prompt only the tokens that are new in its branch.

    Attributes:
        by_id: The conversations, by their ids.
        of_call: The conversation of each response id.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, Conversation] = {}
        self.of_call: dict[str, Conversation] = {}
        self._index: ConversationIndex[_Branch] = ConversationIndex(1 << 40)
        self._messages: dict[str, OpenAIMessage] = {}
        self._known: set[tuple[Any, ...]] = set()

    def add(self, call: ServedCall, *, name: str) -> None:
        """Add a call, unless it is in another log as well.

        Args:
            call: The call.
            name: Id of its conversation if it begins one and neither it nor the call has an id; changed if another
                conversation has it.
        """
        call = replace(call, messages=tuple(map(self._shared, call.messages)))
        found = self._index.find(call.messages, call.tools, call.conversation)
        if call.id:
            known = (call.id, found.digest, message_key(call.reply))
            if known in self._known:
                return
            self._known.add(known)
        line = found.line
        if call.conversation:
            conversation = self.by_id.setdefault(call.conversation, Conversation(call.conversation))
        elif line is not None:
            conversation = line.owner.conversation
        else:
            name = call.id if call.id and call.id not in self.by_id else name
            while name in self.by_id:
                name += "'"
            conversation = self.by_id[name] = Conversation(name)
        prompt = () if call.tokens is None else call.tokens.context_ids
        if line is None or not found.continues or not _continues(line.owner, call.tokens):
            line = ConversationLine(_Branch(conversation, conversation.num_branches))
            conversation.num_branches += 1
        branch = line.owner
        if call.tokens is not None:
            context = prompt[len(branch.ids) :]
            branch.ids = (*prompt, *call.tokens.ids)
            call = replace(call, tokens=replace(call.tokens, context_ids=context, branch=branch.number))
        self._index.add_reply(line, found, call.reply, call.text)
        conversation.replies.append(Reply(call, branch.number, found.texts))
        if call.id:
            self.of_call[call.id] = conversation

    def _shared(self, message: OpenAIMessage) -> OpenAIMessage:
        return self._messages.setdefault(json.dumps(message, sort_keys=True), message)


def _continues(branch: _Branch, tokens: TurnTokens | None) -> bool:
    """Return whether a prompt begins with the tokens of a branch, both of which may have none."""
    known = len(branch.ids)
    return not known if tokens is None else bool(known) and tokens.context_ids[:known] == branch.ids
