"""The simulated user of a conversation: written turns, a function, or a model (:mod:`rllm_gym.user_model`).

A user begins the conversation, and answers every reply of the model that calls no tool. Its messages are observations,
so they are never trained on. What a model may have caused is no fault: see :class:`UserLost`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rllm_gym.core import EnvironmentFault
from rllm_gym.grading.user_checks import run_function, run_in_thread
from rllm_gym.runtime import DeadlineExceeded

if TYPE_CHECKING:
    from rllm_gym.mcp import MCPTool, ToolResult

MAX_MESSAGE_CHARS = 8_000
"""Longest message of either party; the middle of a longer one is cut, for the other party and for the check."""

_CUT = "\n[…]\n"

Messages = Sequence[Mapping[str, str]]
"""``{"role": "user" | "assistant", "content": text}``, beginning with the user's first message."""


class UserLost(Exception):
    """A user that has begun the conversation does not answer any more, and the model's messages may be why."""


class SimulatedUser(Protocol):
    """The second party of one conversation."""

    async def reply(self, messages: Messages) -> str | None:
        """Return the next message, or ``None`` to end the conversation.

        Raises:
            EnvironmentFault: There is none, and not because of the model; kind ``"user"``.
            UserLost: There is none, and the model may be why.
        """
        ...


@dataclass(frozen=True, slots=True)
class ScriptedUser:
    """A user that replies the same whatever the model replies."""

    turns: Sequence[str]

    async def reply(self, messages: Messages) -> str | None:
        number = sum(message["role"] == "user" for message in messages)
        return self.turns[number] if number < len(self.turns) else None


@dataclass(frozen=True, slots=True)
class PolicyUser:
    """A user whose messages a function returns: ``policy(messages, data)``."""

    policy: Callable[..., Any]
    data: Any
    timeout: float

    async def reply(self, messages: Messages) -> str | None:
        copies = [dict(message) for message in messages]
        try:
            text = await run_in_thread(run_function, self.policy, copies, self.data, timeout=self.timeout)
            if text is not None and (not isinstance(text, str) or not text.strip()):
                raise TypeError(f"it returned {text!r:.80}; it must return a text, or None to end the conversation")
        except Exception as error:
            if isinstance(error, EnvironmentFault) and not isinstance(error.__cause__, DeadlineExceeded):
                raise
            words = f"the user {getattr(self.policy, '__qualname__', self.policy)} failed: {error!r:.1000}"
            if messages:
                raise UserLost(words) from error
            raise EnvironmentFault(words, kind="user") from error
        return None if text is None else bounded(text)


MAX_ASKED = 3
"""Most replies of a model for one message: one that fails, a first message as a test of the model, and one more."""


@dataclass(frozen=True, slots=True)
class UserTools:
    """What a user can do besides talking.

    Attributes:
        tools: The tools by name.
        call: Calls one, with checked arguments.
    """

    tools: Mapping[str, MCPTool]
    call: Callable[[str, dict[str, Any]], Awaitable[ToolResult]]


class UserFactory(Protocol):
    """Creates the users of conversations, such as :class:`rllm_gym.user_model.UserModel`.

    It may have an attribute ``timeout``, the seconds that a reply may take, and a method ``close()``, which blocks.
    """

    def user(self, scenario: str, seed: int, tools: UserTools | None = None) -> SimulatedUser:
        """Return the user of one conversation.

        Args:
            scenario: Who the user is, and what it wants.
            seed: Of its replies, and of all else that is random.
            tools: Its tools, if the row names any.
        """
        ...


def bounded(text: str) -> str:
    """Return a message of at most :data:`MAX_MESSAGE_CHARS` characters."""
    half = (MAX_MESSAGE_CHARS - len(_CUT)) // 2
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:half]}{_CUT}{text[-half:]}"
