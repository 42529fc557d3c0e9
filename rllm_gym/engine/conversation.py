"""The token ids of one episode's conversation: what each turn appends, and how many tokens are left for a reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rllm_gym.chat.renderer import ChatRenderer, TokenPrefix
from rllm_gym.core import StopReason, TurnTokens
from rllm_gym.engine.spec import Budget
from rllm_gym.samplers.protocol import Completion, SamplingParams


class ConversationTokens:
    """The token ids of a conversation. Call :meth:`extend` (messages) and :meth:`append` (sampled reply) alternately.

    Args:
        renderer: Converts messages to token ids; ``None`` for samplers that take only messages.
        budget: Limits on turns and tokens.
        context_length: The context limit of the sampler in tokens, or ``None``.
    """

    def __init__(self, renderer: ChatRenderer | None, budget: Budget, context_length: int | None) -> None:
        self._renderer = renderer
        self._budget = budget
        limits = [limit for limit in (budget.max_context_tokens, context_length) if limit is not None]
        self._context_length = min(limits) if limits else None
        self._prefix: TokenPrefix | None = None
        self._sampled = 0
        self._turns = 0

    @property
    def ids(self) -> tuple[int, ...]:
        """The token ids of the whole prompt of the next request."""
        return self._prefix.ids if self._prefix is not None else ()

    @property
    def context_ids(self) -> tuple[int, ...]:
        """The ids that the last :meth:`extend` appended; the whole prompt at the start of a branch."""
        return self._prefix.context_ids if self._prefix is not None else ()

    @property
    def fits(self) -> bool:
        """Whether a reply to the prompt could have a token."""
        return self._context_length is None or len(self.ids) < self._context_length

    def fork(self, other: ConversationTokens) -> None:
        """Start with the tokens of another conversation: replies that the next messages keep are not encoded again."""
        if other._prefix is not None:
            self._prefix = replace(other._prefix, context_start=0)

    def extend(self, messages: Sequence[Mapping[str, Any]], tools: str | None) -> None:
        """Append the new part of ``messages``. If they rewrite earlier messages, start a new branch."""
        if self._renderer is not None:
            self._prefix = self._renderer.extend(self._prefix, messages, tools)

    def limit_params(self, params: SamplingParams) -> SamplingParams | StopReason:
        """Return the parameters of the next request, with ``max_tokens`` reduced to the tokens left, or the stop reason
        if no request is possible."""
        most = params.max_tokens
        if self._budget.max_response_tokens is not None:
            left = self._budget.max_response_tokens - self._sampled
            if left < 1:
                return StopReason.MAX_TOKENS
            most = min(most, left)
        if self._renderer is not None:
            length = len(self.ids)
            first = self._turns == 0
            if first and self._budget.max_prompt_tokens is not None and length > self._budget.max_prompt_tokens:
                return StopReason.PROMPT_TOO_LONG
            if self._context_length is not None:
                left = self._context_length - length
                if left < 1:
                    return StopReason.PROMPT_TOO_LONG if first else StopReason.CONTEXT_LENGTH
                most = min(most, left)
        return params if most == params.max_tokens else replace(params, max_tokens=most)

    def append(self, completion: Completion) -> TurnTokens | None:
        """Append a reply with its exact ids. Return its tokens for training, or ``None`` if the sampler gave none."""
        self._turns += 1
        self._sampled += len(completion.ids) if completion.ids else self._length(completion.text)
        if self._renderer is None or not completion.ids:
            return None
        prefix = self._prefix
        assert prefix is not None
        self._prefix = self._renderer.append_sampled(prefix, completion.ids, completion.text)
        return TurnTokens(
            prefix.context_ids,
            completion.ids,
            completion.logprobs,
            completion.weight_version,
            prefix.branch,
            completion.finish_reason,
        )

    def _length(self, text: str) -> int:
        # A sampler that takes messages returns no ids, so the limits use the length of the encoded text.
        return 0 if self._renderer is None else len(self._renderer.tokenizer.encode(text, add_special_tokens=False))
