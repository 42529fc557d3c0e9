"""The reasons for which an episode can end."""

from __future__ import annotations

from enum import StrEnum


class StopReason(StrEnum):
    """Why an episode ended. Success, failure, invalid action, lost server, lost user and maximum turns come
    from environments, the others from the engine.

    ``info["stop_reason"]`` holds the value as a plain string, and ``""`` while the episode is running.
    """

    NONE = ""
    """The episode is running."""
    SUCCESS = "success"
    """The task was solved (terminated)."""
    FAILURE = "failure"
    """The task ended unsolved, for example with a wrong answer (terminated)."""
    INVALID_ACTION = "invalid_action"
    """A reply that cannot be parsed ended a single-turn episode (terminated)."""
    SERVER_LOST = "server_lost"
    """An action of the model ended a server that the task needs and that cannot go on (terminated)."""
    USER_LOST = "user_lost"
    """The simulated user does not answer the model any more, and its messages may be why (terminated)."""
    MAX_TURNS = "max_turns"
    """The turns ran out (truncated)."""
    MAX_TOKENS = "max_tokens"
    """The response token budget of the episode ran out (truncated by the engine)."""
    CONTEXT_LENGTH = "context_length"
    """The conversation no longer fits the context of the model (truncated by the engine)."""
    PROMPT_TOO_LONG = "prompt_too_long"
    """The first prompt alone does not fit. Nothing was sampled."""
    TIMEOUT = "timeout"
    """The deadline of the whole episode passed (truncated by the engine)."""
    FAULT = "fault"
    """The environment failed more often than the engine retries. The episode is excluded from training."""
    AGENT_ERROR = "agent_error"
    """The agent's own code raised an exception. The episode is excluded from training and counted."""
    CANCELLED = "cancelled"
    """The run was stopped before the episode ended."""

    @property
    def truncated(self) -> bool:
        """Whether a limit ended the episode, so that its last state still has a value."""
        return self in (StopReason.MAX_TURNS, StopReason.MAX_TOKENS, StopReason.CONTEXT_LENGTH, StopReason.TIMEOUT)
