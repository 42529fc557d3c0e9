"""The simulated user of a conversation: written turns, a function, or a model (:mod:`rllm_gym.user_model`).

A user speaks first, and answers every reply of the model that calls no tool. Its messages are observations, so they are
never trained on. What a model may have caused is no fault: see :class:`UserGone`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rllm_gym.core import EnvironmentFault
from rllm_gym.grading.user_checks import run_function, run_in_thread
from rllm_gym.runtime import DeadlineExceeded

MAX_MESSAGE_CHARS = 8_000
"""Longest message of either party that the other one reads; the middle of a longer one is cut."""

Messages = Sequence[Mapping[str, str]]
"""``{"role": "user" | "assistant", "content": text}``, beginning with the user's first message."""


class UserGone(Exception):
    """A user that has spoken does not answer any more, and what the model has said to it may be why."""


class SimulatedUser(Protocol):
    """The second party of one conversation."""

    async def say(self, messages: Messages) -> str | None:
        """Return the next message, or ``None`` to end the conversation.

        Raises:
            EnvironmentFault: There is none, and not because of the model; kind ``"user"``.
            UserGone: There is none, and the model may be why.
        """
        ...


@dataclass(frozen=True, slots=True)
class ScriptedUser:
    """A user that says the same whatever the model says."""

    turns: Sequence[str]

    async def say(self, messages: Messages) -> str | None:
        said = sum(message["role"] == "user" for message in messages)
        return self.turns[said] if said < len(self.turns) else None


@dataclass(frozen=True, slots=True)
class PolicyUser:
    """A user whose messages a function returns: ``policy(messages, data)``."""

    policy: Callable[..., Any]
    data: Any
    timeout: float

    async def say(self, messages: Messages) -> str | None:
        copies = [dict(message) for message in messages]
        try:
            said = await run_in_thread(run_function, self.policy, copies, self.data, timeout=self.timeout)
            if said is not None and (not isinstance(said, str) or not said.strip()):
                raise TypeError(f"it returned {said!r:.80}; it must return a text, or None to end the conversation")
        except Exception as error:
            if isinstance(error, EnvironmentFault) and not isinstance(error.__cause__, DeadlineExceeded):
                raise
            words = f"the user {getattr(self.policy, '__qualname__', self.policy)} failed: {error!r:.1000}"
            if messages:
                raise UserGone(words) from error
            raise EnvironmentFault(words, kind="user") from error
        return None if said is None else bounded(said)


class UserModel(Protocol):
    """A model that plays users, such as :class:`rllm_gym.user_model.UserModel`."""

    def user(self, scenario: str, seed: int) -> SimulatedUser:
        """Return the user of one conversation.

        Args:
            scenario: Who the user is, and what it wants.
            seed: Of its replies, and of all else that is random.
        """
        ...


def bounded(text: str) -> str:
    """Return a message for the other party."""
    half = MAX_MESSAGE_CHARS // 2
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:half]}\n[…]\n{text[-half:]}"
