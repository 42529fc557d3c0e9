"""The tokens and turns that an episode has left, and the exception that says that there are none."""

from __future__ import annotations

from dataclasses import replace

from rllm_gym.core import RllmGymError, StopReason
from rllm_gym.samplers.protocol import SamplingRequest


class Truncated(RllmGymError):
    """Raised if a limit of the engine prevents an agent from replying. Uncaught, it ends the episode.

    Attributes:
        stop_reason: ``MAX_TURNS``, ``MAX_TOKENS``, ``CONTEXT_LENGTH`` or ``PROMPT_TOO_LONG``.
        agent: Name of the agent.
    """

    def __init__(self, stop_reason: StopReason, agent: str) -> None:
        super().__init__(stop_reason, agent)
        self.stop_reason = stop_reason
        self.agent = agent

    def __str__(self) -> str:
        return f"{self.agent} cannot reply: {self.stop_reason.value}"


class TokenBudget:
    """The tokens and turns that all agents of an episode together have left. Pending replies reserve their tokens.

    Args:
        tokens: Total tokens of all replies; ``None`` for no limit.
        turns: Total number of replies; ``None`` for no limit.
    """

    def __init__(self, tokens: int | None, turns: int | None) -> None:
        self._tokens = tokens
        self._turns = turns
        self.any_sampled = False  # whether anything was ever sampled

    def check(self, agent: str) -> None:
        """Check that there are turns and tokens left.

        Raises:
            Truncated: There are none.
        """
        if self._turns is not None and self._turns < 1:
            raise Truncated(StopReason.MAX_TURNS, agent)
        if self._tokens is not None and self._tokens < 1:
            raise Truncated(StopReason.MAX_TOKENS, agent)

    def reserve(self, request: SamplingRequest, agent: str) -> SamplingRequest:
        """Return the request, limited to the tokens left, and reserve its tokens until :meth:`commit`.

        Raises:
            Truncated: There are no tokens or no turns left.
        """
        self.check(agent)
        if self._turns is not None:
            self._turns -= 1
        if self._tokens is not None:
            if request.params.max_tokens > self._tokens:
                request = replace(request, params=replace(request.params, max_tokens=self._tokens))
            self._tokens -= request.params.max_tokens
        return request

    def commit(self, request: SamplingRequest, used: int) -> None:
        """Release the reserved tokens that a request did not use."""
        if self._tokens is not None:
            self._tokens += request.params.max_tokens - used
