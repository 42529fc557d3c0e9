"""Render conversations to token ids. Each turn only appends ids, and sampled ids are never decoded and re-encoded.

Messages are rendered with the model's own chat template. This needs a tokenizer but not torch, and is independent of
agents and environments. See ``rllm_gym.chat.encoder`` for the handling of control tokens.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rllm_gym.chat.encoder import ControlTokenEscaper, TemplateEncoder
from rllm_gym.chat.message import Message
from rllm_gym.core import RllmGymError
from rllm_gym.parsing.thinking import THINK_CLOSE, THINK_OPEN


class ChatTemplateError(RllmGymError, ValueError):
    """Raised if the chat template cannot render a conversation. The message names the messages and the fix."""


@dataclass(frozen=True, slots=True)
class SampledSpan:
    """The ids of a sampled message: ``ids[start:end]`` of the prefix, for message number ``index``."""

    index: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TokenPrefix:
    """The token ids of a conversation so far. Immutable; :class:`ChatRenderer` creates the next one from it.

    Attributes:
        ids: All token ids.
        messages: The messages that they encode; sampled messages as they were recorded.
        sampled: The sampled messages of this branch that are still in it, in order.
        branch: 0, increased by one each time a sampled message was changed or removed.
        context_start: ``ids[context_start:]`` was appended after the last reply sampled in this branch.
        awaits_reply: Whether the ids end with the template's generation prompt, so that a sampled reply comes next.
        tools: The tools in the prompt, as JSON; ``""`` for none.
    """

    ids: tuple[int, ...]
    messages: tuple[Message, ...]
    sampled: tuple[SampledSpan, ...] = ()
    branch: int = 0
    context_start: int = 0
    awaits_reply: bool = True
    tools: str = ""

    @property
    def context_ids(self) -> tuple[int, ...]:
        """Ids appended since the last reply; in a new branch, the whole prompt (``TurnTokens.context_ids``)."""
        return self.ids[self.context_start :]


class ChatRenderer:
    """Renders conversations incrementally.

    The first prompt has exactly the ids of ``tokenizer.apply_chat_template(..., add_generation_prompt=True)``, if the
    contents do not spell a control token. Each later prompt consists of the previous prompt, the sampled ids, and the
    template's rendering of the new messages. Message contents are encoded as plain text: where a message spells
    ``<|im_start|>`` or ``<think>``, the model sees those characters and not the control token. For a template without a
    system role (Gemma's), the system prompt is put at the start of the first user message, as its authors recommend.

    Args:
        tokenizer: A fast Hugging Face tokenizer.
        chat_template: A Jinja template, in Hugging Face's format, to use instead of the tokenizer's own.
        template_kwargs: Further variables of the template, such as ``{"enable_thinking": False}``.

    Raises:
        ValueError: There is no chat template, or the tokenizer is not a fast one.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        chat_template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if chat_template is None and not getattr(tokenizer, "chat_template", None):
            raise ValueError(
                f"the tokenizer {getattr(tokenizer, 'name_or_path', '')!r} has no chat template; pass "
                "chat_template=, or use the tokenizer of an instruction-tuned model"
            )
        self.tokenizer = tokenizer
        self._template = chat_template
        self._template_kwargs = dict(template_kwargs or {})
        self._encoder = TemplateEncoder(tokenizer)
        self._reply = f"rllm{secrets.token_hex(16)}"
        # How to render a turn alone so that the result equals that of the whole conversation, by the roles of the turn.
        self._locality: dict[tuple[tuple[str, ...], str], int] = {}

    # Public methods

    @cached_property
    def end_of_turn_id(self) -> int | None:
        """The control token with which the template ends an assistant's turn; ``None`` if it has none.

        It must be a stop token if the model's own end-of-text token is another one, as for base models.
        """
        # Some templates end the last turn with another token than earlier ones: <|return|> and <|end|> in gpt-oss.
        for awaits_reply in (False, True):
            with contextlib.suppress(ChatTemplateError):
                text = self._after_reply([_OPENING, self._placeholder_message()], None, awaits_reply=awaits_reply)
                ids = self._encoder.encode(text, self._encoder.make_escaper([]))
                if (index := self._first_control(ids)) is not None:
                    return ids[index]
        return None

    def extend(
        self,
        prefix: TokenPrefix | None,
        messages: Sequence[Message | Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | str | None = None,
    ) -> TokenPrefix:
        """Return the prompt for the next reply to ``messages``, which is the *whole* conversation.

        A message counts as sampled if it has the index of a sampled message and equals it as recorded. If a sampled
        message was changed or removed, a new branch begins; unchanged sampled messages keep their ids in it.

        Args:
            prefix: The result of :meth:`append_sampled` after the previous reply; ``None`` for the first prompt.
            messages: All messages, as :class:`Message` or in OpenAI format.
            tools: OpenAI tool schemas, as a list or as JSON text.

        Raises:
            ChatTemplateError: The template rejects the conversation, or a message contains an image.
            ValueError: There are no messages, or a role is unknown.
        """
        new = tuple(message if isinstance(message, Message) else Message.from_openai(message) for message in messages)
        if not new:
            raise ValueError("no messages to render; a conversation needs at least one")
        tools_json = _tools_json(tools)
        if prefix is None:
            return self._assemble(new, tools_json, (), (), branch=0, keep=0, start=0)
        if new == prefix.messages and prefix.awaits_reply and tools_json == prefix.tools:
            return prefix

        common = 0
        if tools_json == prefix.tools:
            common = _common_length(prefix.messages, new)
        same_branch = all(span.index < common for span in prefix.sampled)
        # Keep everything up to the last unchanged reply. The model has not sampled anything after the rest.
        kept = [span for span in prefix.sampled if span.index < common]
        base = kept[-1].end if kept else 0
        later = [
            span
            for span in prefix.sampled
            if span.index >= common and span.index < len(new) and new[span.index] == prefix.messages[span.index]
        ]
        spliced = [(span.index, prefix.ids[span.start : span.end]) for span in later]
        return self._assemble(
            new,
            tools_json,
            prefix.ids[:base],
            tuple(kept),
            branch=prefix.branch if same_branch else prefix.branch + 1,
            keep=kept[-1].index + 1 if kept else 0,
            start=prefix.context_start if same_branch else 0,
            spliced=spliced,
        )

    def append_sampled(
        self, prefix: TokenPrefix, ids: Sequence[int], text: str, *, message: Message | None = None
    ) -> TokenPrefix:
        """Return the prefix with a sampled reply appended.

        Args:
            prefix: The result of :meth:`extend`.
            ids: The sampled ids, unchanged.
            text: The reply as text, which the agent will repeat as the content of its assistant message.
            message: The assistant message that the agent will repeat, if it consists of more than the text.

        Raises:
            ValueError: The prefix does not end with a generation prompt.
        """
        if not prefix.awaits_reply:
            raise ValueError("this prefix already ends with a sampled reply; call extend() before the next one")
        message = message if message is not None else Message("assistant", text)
        start = len(prefix.ids)
        end = start + len(ids)
        return replace(
            prefix,
            ids=prefix.ids + tuple(ids),
            messages=(*prefix.messages, message),
            sampled=(*prefix.sampled, SampledSpan(len(prefix.messages), start, end)),
            context_start=end,
            awaits_reply=False,
        )

    def append_written(self, prefix: TokenPrefix, message: Message) -> TokenPrefix:
        """Return the prefix with a reply appended that was not sampled, with the ids that a model would have sampled.

        The text is encoded as it is, between the white space with which the template begins and ends a reply, and ended
        as the template ends a turn. If the generation prompt ends with ``<think>``, a text without ``</think>`` follows
        an empty reasoning. :attr:`TokenPrefix.sampled` gives its position. Tool calls are written as the template
        writes them.

        Args:
            prefix: The result of :meth:`extend`.
            message: The assistant's message.

        Raises:
            ChatTemplateError: The template does not write the tool calls after its generation prompt.
            ValueError: The prefix does not end with a generation prompt.
        """
        escaper = self._encoder.make_escaper([*_texts([*prefix.messages, message]), prefix.tools])
        if message.tool_calls:
            text = self._with_calls(prefix, message, escaper)
        else:
            lead, rest = self._begin(message.text)
            text = lead + escaper.escape_special(rest) + self._trail
        ids = self._encoder.encode(text, escaper, after=self._prompt_end)
        end = self.end_of_turn_id
        if end is None:
            end = self.tokenizer.eos_token_id
        if message.tool_calls and end in ids:
            ids = ids[: len(ids) - ids[::-1].index(end) - 1]
        # gpt-oss ends a call with a token of its own.
        is_ended = bool(message.tool_calls and ids) and ids[-1] == self._encoder.id_of("<|call|>")
        if end is not None and not is_ended:
            ids = [*ids, end]
        return self.append_sampled(prefix, ids, message.text, message=message)

    # Assembling a prompt

    def _assemble(
        self,
        messages: tuple[Message, ...],
        tools: str,
        ids: tuple[int, ...],
        sampled: tuple[SampledSpan, ...],
        *,
        branch: int,
        keep: int,
        start: int,
        spliced: Sequence[tuple[int, tuple[int, ...]]] = (),
    ) -> TokenPrefix:
        """Return ``ids`` (of the first ``keep`` messages) plus the other messages, with sampled ids where known."""
        out = list(ids)
        spans = list(sampled)
        for index, reply in [*spliced, (len(messages), None)]:
            if keep == 0:
                out += self._head(messages[:index], tools)
            else:
                out += self._tail(messages, keep, index, out[-1] if out else None, tools)
            if reply is not None:
                spans.append(SampledSpan(index, len(out), len(out) + len(reply)))
                out += reply
                keep = index + 1
        return TokenPrefix(
            ids=tuple(out),
            messages=messages,
            sampled=tuple(spans),
            branch=branch,
            context_start=start,
            awaits_reply=True,
            tools=tools,
        )

    def _head(self, messages: tuple[Message, ...], tools: str) -> list[int]:
        """Return the ids of a conversation from its beginning, up to the generation prompt."""
        escaper = self._encoder.make_escaper([*_texts(messages), tools])
        rendered = self._render(self._openai(messages, escaper), self._tools(tools, escaper))
        return self._encoder.encode(rendered, escaper, after=None)

    def _tail(self, messages: tuple[Message, ...], start: int, end: int, last_id: int | None, tools: str) -> list[int]:
        """Return the ids of ``messages[start:end]`` after a sampled reply, from the end of that reply."""
        rendered, escaper = self._turn_text(messages, start, end, tools)
        ids = self._encoder.encode(rendered, escaper)
        # If the end-of-turn token was sampled, do not add the template's own as well.
        index = self._first_control(ids)
        if index is None or last_id is None:
            return ids
        if last_id == self.end_of_turn_id:
            last_id = ids[index]
        while index < len(ids) and ids[index] in self._encoder.control_ids:  # Command A ends a turn with two
            if ids[index] == last_id:
                return ids[index + 1 :]
            index += 1
        return ids

    def _first_control(self, ids: list[int]) -> int | None:
        """Return the position of the first control token if only white space precedes it, else ``None``."""
        index = next((index for index, token in enumerate(ids) if token in self._encoder.control_ids), None)
        return None if index and self.tokenizer.decode(ids[:index]).strip() else index

    # Rendering

    def _turn_text(
        self, messages: tuple[Message, ...], start: int, end: int, tools: str
    ) -> tuple[str, ControlTokenEscaper]:
        """Return the template's text after a reply: the end of its turn, the new messages, the generation prompt.

        The turn is rendered after a short placeholder conversation, so that the cost does not grow with the length of
        the conversation. Whether the template allows this is tested once for each sequence of roles. If it does not
        (for example a template that numbers its rounds), the whole conversation is rendered, as text only.
        """
        escaper = self._encoder.make_escaper([*_texts(messages[start:end]), tools])
        turn = self._openai(messages[start:end], escaper)
        key = (tuple(message["role"] for message in turn), tools)
        rendering = self._locality.get(key)
        if rendering is None:
            if len(self._locality) >= 1000:
                self._locality.clear()
            rendering = self._locality[key] = self._choose_rendering(turn, self._tools(tools, escaper))
        if rendering == _WHOLE:
            escaper = self._encoder.make_escaper([*_texts(messages[:end]), tools])
            chat = self._openai(messages[:end], escaper)
            chat[start - 1] = self._placeholder_message()
            return self._after_reply(chat, self._tools(tools, escaper)), escaper
        chat = [_OPENING, self._placeholder_message(), *turn]
        return self._after_reply(chat, self._tools(tools, escaper) if rendering == _WITH_TOOLS else None), escaper

    def _choose_rendering(self, turn: list[dict[str, Any]], tools: list[Any] | None) -> int:
        earlier = [_OPENING, {"role": "assistant", "content": "A"}]
        try:
            expected = self._after_reply([*earlier, _OPENING, self._placeholder_message(), *turn], tools)
            short = [_OPENING, self._placeholder_message(), *turn]
            if self._after_reply(short, None) == expected:
                return _ALONE
            if self._after_reply(short, tools) == expected:
                return _WITH_TOOLS
        except ChatTemplateError:
            # The template rejects the placeholder conversation, but it may accept the real one.
            return _WHOLE
        return _WHOLE

    def _placeholder_message(self) -> dict[str, Any]:
        return {"role": "assistant", "content": self._reply}

    def _after_reply(self, chat: list[dict[str, Any]], tools: list[Any] | None, *, awaits_reply: bool = True) -> str:
        rendered = self._render(chat, tools, awaits_reply=awaits_reply)
        _, found, after = rendered.partition(self._reply)
        if not found or self._reply in after:
            raise ChatTemplateError(
                f"the chat template renders an assistant message {rendered.count(self._reply)} times instead of "
                "once, so turns cannot be appended as tokens; use another chat_template"
            )
        return after

    def _begin(self, text: str) -> tuple[str, str]:
        """Return what the template writes at the start of a reply, and the reply's text from there on."""
        if not self._opens_thinking:
            return self._lead, text
        if THINK_CLOSE in text:  # the prompt contains what opens the reasoning
            return "", text.lstrip().removeprefix(THINK_OPEN).removeprefix("\n")
        return self._lead or f"\n{THINK_CLOSE}\n\n", text

    @cached_property
    def _opens_thinking(self) -> bool:
        """Whether the generation prompt ends inside of the model's reasoning."""
        with contextlib.suppress(ChatTemplateError):
            return self._render([_OPENING], None).rstrip().endswith(THINK_OPEN)
        return False

    @cached_property
    def _lead(self) -> str:
        """What the template writes between its generation prompt and a reply, and the model samples; usually nothing.

        It is white space, or control tokens, with a channel's name between them in gpt-oss
        (``<|channel|>final<|message|>``). After a prompt that opens the reasoning, it closes it.
        """
        try:
            before = self._render([_OPENING], None)
            rendered = self._render([_OPENING, self._placeholder_message()], None, awaits_reply=False)
        except ChatTemplateError:
            return ""
        lead = rendered.removeprefix(before).partition(self._reply)[0]
        is_header = lead.startswith("<|channel|>") and lead.endswith("<|message|>")
        is_header = is_header or not any(self._encoder.split_at_controls(lead))  # <|START_RESPONSE|> in Command A
        closes = self._opens_thinking and lead.strip() == THINK_CLOSE
        return lead if is_header or closes or not lead.strip() else ""

    @cached_property
    def _trail(self) -> str:
        """White space that the template writes between a reply and the control token that ends it; usually none."""
        with contextlib.suppress(ChatTemplateError):
            after = self._after_reply([_OPENING, self._placeholder_message()], None, awaits_reply=False)
            trail, *others = self._encoder.split_at_controls(after)
            return trail if others and not trail.strip() else ""
        return ""

    @cached_property
    def _prompt_end(self) -> str:
        """The text of the template's generation prompt, from its last control token or the last message on."""
        with contextlib.suppress(ChatTemplateError):
            rendered = self._render([{"role": "user", "content": self._reply}], None)
            return self._encoder.split_at_controls(rendered.rpartition(self._reply)[2])[-1]
        return ""

    @cached_property
    def _writes_calls(self) -> bool:
        """Whether the template writes the tool calls of an assistant's message."""
        call = {"type": "function", "id": "call00000", "function": {"name": self._reply, "arguments": {"a": 1}}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        try:
            return self._reply in self._render([_OPENING, message], None, awaits_reply=False)
        except ChatTemplateError:  # it may need the tools, or a result after the call
            return True

    def _with_calls(self, prefix: TokenPrefix, message: Message, escaper: ControlTokenEscaper) -> str:
        """Return the template's text of an assistant message with tool calls, after the generation prompt."""
        chat, tools = self._openai([*prefix.messages, message], escaper), self._tools(prefix.tools, escaper)
        before, rendered = self._render(chat[:-1], tools), self._render(chat, tools, awaits_reply=False)
        reply = rendered.removeprefix(before)
        if len(reply) == len(rendered) or any(
            call.name not in reply.translate(escaper.unescape) for call in message.tool_calls
        ):
            raise ChatTemplateError(
                "the chat template does not render an assistant's tool calls after the generation prompt; put "
                "the calls into the message's content as the model writes them, or pass another chat_template"
            )
        return reply

    def _render(self, chat: list[dict[str, Any]], tools: list[Any] | None, *, awaits_reply: bool = True) -> str:
        first_error: Exception | None = None
        for form in _forms(chat):
            try:
                rendered: str = self.tokenizer.apply_chat_template(
                    form,
                    tools=tools,
                    chat_template=self._template,
                    tokenize=False,
                    add_generation_prompt=awaits_reply,
                    **self._template_kwargs,
                )
                return rendered
            except Exception as error:
                if type(error).__module__.partition(".")[0] != "jinja2" and not isinstance(error, TypeError):
                    raise
                first_error = first_error or error
        roles = " ".join(message["role"] for message in chat)
        raise ChatTemplateError(
            f"the chat template cannot render messages with the roles [{roles}]: {first_error}. Change the order "
            "or form of the messages to those that the model was trained on, or pass another chat_template"
        ) from first_error

    # Converting messages

    def _openai(self, messages: Sequence[Message], escaper: ControlTokenEscaper) -> list[dict[str, Any]]:
        """Return the messages in OpenAI format for the template, with shielded texts."""
        chat = []
        for number, message in enumerate(messages):
            if not isinstance(message.content, str) and any(part.type != "text" for part in message.content):
                raise ChatTemplateError(
                    f"message {number} ({message.role}) has an image, but this renderer supports only text; use "
                    'observation_mode="text" or a model and a renderer that support images'
                )
            cover = escaper.escape_special if message.role == "assistant" else escaper.escape
            row: dict[str, Any] = {"role": message.role, "content": cover(message.text)}
            if message.name is not None:
                row["name"] = escaper.escape(message.name)
            if message.tool_call_id is not None:
                row["tool_call_id"] = escaper.escape(message.tool_call_id)
            if message.tool_calls:
                row["tool_calls"] = [
                    {
                        "type": "function",
                        "id": escaper.escape_special(call.id),
                        "function": {
                            "name": escaper.escape_special(call.name),
                            "arguments": _map_strings(_arguments(call.arguments), escaper.escape_special),
                        },
                    }
                    for call in message.tool_calls
                ]
                # As in OpenAI's API; DeepSeek's templates leave out the calls of a message with an empty text.
                row["content"] = row["content"] or None
                if not self._writes_calls:
                    raise ChatTemplateError(
                        f"message {number} has tool calls, which the chat template leaves out; put the calls into the "
                        "message's content as the model writes them, or pass another chat_template"
                    )
            chat.append(row)
        return chat

    def _tools(self, tools: str, escaper: ControlTokenEscaper) -> list[Any] | None:
        return _map_strings(json.loads(tools), escaper.escape) if tools else None


# How to render a turn: after a placeholder without the tools, with the tools, or after the whole conversation.
_ALONE, _WITH_TOOLS, _WHOLE = range(3)

_OPENING = {"role": "user", "content": "Q"}


def _texts(messages: Sequence[Message]) -> list[str]:
    texts = []
    for message in messages:
        texts.append(message.text)
        if message.name:
            texts.append(message.name)
        texts += [text for call in message.tool_calls for text in (call.name, call.arguments)]
    return texts


def _common_length(old: tuple[Message, ...], new: tuple[Message, ...]) -> int:
    if new[: len(old)] == old:
        return len(old)
    return next(
        (index for index, (left, right) in enumerate(zip(old, new, strict=False)) if left != right),
        min(len(old), len(new)),
    )


def _forms(chat: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Return a conversation in the forms that templates accept, the usual one first.

    Templates differ in whether the arguments of a tool call are an object or JSON text, in the content of a message
    that is nothing but calls, and in whether there is a system role: without one, its text begins the first message.
    """
    forms = [chat]
    if any(message.get("tool_calls") for message in chat):
        forms.append([_with_json_arguments(message) for message in chat])
    if any(message["content"] is None for message in chat):
        forms += [[message | {"content": message["content"] or ""} for message in form] for form in forms]
    yield from forms
    if [message["role"] for message in chat[:2]] == ["system", "user"]:
        for system, user, *rest in forms:
            yield [{**user, "content": f"{system['content']}\n\n{user['content']}"}, *rest]


def _with_json_arguments(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        call | {"function": call["function"] | {"arguments": _json_text(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return message | {"tool_calls": calls} if calls else message


def _json_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _tools_json(tools: Sequence[Mapping[str, Any]] | str | None) -> str:
    if not tools:
        return ""
    if not isinstance(tools, str):
        return json.dumps(list(tools), ensure_ascii=False)
    parsed = json.loads(tools)
    if not isinstance(parsed, list):
        raise ValueError(f"tools must be a list of OpenAI schemas, or its JSON; got JSON of a {type(parsed).__name__}")
    return tools if parsed else ""


def _arguments(arguments: str) -> Any:
    # In OpenAI's API the arguments are JSON text; templates expect an object.
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _map_strings(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_map_strings(item, change) for item in value]
    if isinstance(value, dict):
        return {change(key): _map_strings(item, change) for key, item in value.items()}
    return value
