"""Why an episode ended, as one closed list."""

from __future__ import annotations

from enum import StrEnum


class StopReason(StrEnum):
    """Why an episode ended. The first four come from environments, the rest from the engine.

    ``info["stop_reason"]`` carries the value as a plain string; ``""`` while the episode goes on.
    """

    NONE = ""
    """The episode goes on."""
    SUCCESS = "success"
    """The task was solved (terminated)."""
    FAILURE = "failure"
    """The task ended unsolved: a wrong answer, a hole in the ice (terminated)."""
    INVALID_ACTION = "invalid_action"
    """A reply that cannot be parsed ended a single-turn episode (terminated)."""
    MAX_TURNS = "max_turns"
    """The turns ran out (truncated)."""
    MAX_TOKENS = "max_tokens"
    """The response budget of the episode ran out (truncated by the engine)."""
    CONTEXT_LENGTH = "context_length"
    """The conversation no longer fits the model (truncated by the engine)."""
    PROMPT_TOO_LONG = "prompt_too_long"
    """The first prompt alone does not fit; nothing was sampled."""
    TIMEOUT = "timeout"
    """The deadline of the whole episode passed (truncated by the engine)."""
    FAULT = "fault"
    """The world broke more often than the engine retries; the episode is dropped from training."""
    AGENT_ERROR = "agent_error"
    """The agent's own code raised; the episode is dropped from training and counted."""
    CANCELLED = "cancelled"
    """The run was stopped before the episode ended."""
