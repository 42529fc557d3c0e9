"""One model behind an OpenAI-compatible endpoint that generates single replies: a judge, or a simulated user."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rllm_gym.argument_checks import check_int
from rllm_gym.core.async_env import shared_loop

if TYPE_CHECKING:
    from rllm_gym.samplers.openai_compatible import OpenAISampler
    from rllm_gym.samplers.protocol import Completion


class ChatEndpoint:
    """Requests replies from a model. Can be pickled, and used after a fork. To be closed.

    Args:
        model: Name of the model at the endpoint.
        base_url: Such as ``"http://localhost:8000/v1"``.
        max_tokens: Longest reply.
        **endpoint: Further arguments of :class:`~rllm_gym.samplers.OpenAISampler`.

    Raises:
        ValueError: An argument is out of range.
    """

    def __init__(self, model: str, base_url: str, *, max_tokens: int, **endpoint: Any) -> None:
        self.model, self.base_url, self.arguments = model, base_url, endpoint
        self.max_tokens = check_int("max_tokens", max_tokens)
        self._sampler: OpenAISampler | None = self._open()
        self._pid = os.getpid()

    async def ask(self, messages: Sequence[Mapping[str, Any]], temperature: float, seed: int = 0) -> Completion:
        """Return the model's reply to OpenAI messages.

        Raises:
            SamplerError: The endpoint failed.
        """
        from rllm_gym.samplers.protocol import SamplingParams, SamplingRequest

        sampler = self._sampler
        if sampler is None or self._pid != os.getpid():  # connections do not survive a fork
            sampler = self._sampler = self._open()
            self._pid = os.getpid()
        params = SamplingParams(temperature=temperature, max_tokens=self.max_tokens)
        (reply,) = await sampler.sample([SamplingRequest((), params, seed, messages=tuple(messages))])
        return reply

    def close(self) -> None:
        """Close the connections, and end their thread. Blocks. Safe to call twice; a later request opens new ones."""
        sampler, self._sampler = self._sampler, None
        if sampler is not None and self._pid == os.getpid():
            shared_loop().run(sampler.close())

    def _open(self) -> OpenAISampler:
        from rllm_gym.samplers.openai_compatible import OpenAISampler

        return OpenAISampler(model=self.model, base_url=self.base_url, **self.arguments)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sampler": None, "_pid": 0}  # another process opens its own
