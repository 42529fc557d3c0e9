"""``EndpointTeacher``: log-probs of a teacher behind an OpenAI-compatible endpoint."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rllm_gym.core import TokenSequence
from rllm_gym.samplers.openai_compatible import OpenAISampler
from rllm_gym.samplers.protocol import SamplerError
from trainers.array_types import FloatArray


class EndpointTeacher:
    """A teacher behind an endpoint that returns ``prompt_logprobs``.

    Args:
        address: URL and name of the model, ``http://HOST/v1#NAME``. The key is read from ``OPENAI_API_KEY``.
        top_k: Number of tokens of :meth:`top_logprobs`.
        vocabulary: Number of tokens of the model that learns.

    Attributes:
        client: Must be closed.
    """

    def __init__(self, address: str, top_k: int = 0, vocabulary: int = 0) -> None:
        url, _, model = address.rpartition("#")
        self.top_k, self.vocabulary = top_k, vocabulary
        self.client = OpenAISampler(model=model, base_url=url)

    def logprobs(self, sequences: Sequence[TokenSequence]) -> list[FloatArray]:
        """Return the log-probs of the sampled tokens of each sequence.

        Raises:
            SamplerError: The endpoint refuses, cannot be reached, or returns no log-probs of prompts.
        """
        found = self.client.prompt_logprobs([sequence.ids for sequence in sequences])
        return [
            np.array(logps)[np.flatnonzero(sequence.mask) - 1] for logps, sequence in zip(found, sequences, strict=True)
        ]

    def top_logprobs(self, sequences: Sequence[TokenSequence]) -> list[FloatArray]:
        """Return the :attr:`top_k` most likely tokens where each token was sampled: ``(M, 2 K)`` per sequence, the ids
        and then their log-probs. Raises as :meth:`logprobs`.
        """
        found = self.client.prompt_top_logprobs([sequence.ids for sequence in sequences], self.top_k)
        for token in (token for rows in found for row in rows for token, _ in row):
            if not 0 <= token < self.vocabulary:
                raise SamplerError(
                    f"the teacher's token {token!s:.20} is not one of the {self.vocabulary} of the model: it must have "
                    "the same vocabulary"
                )
        return [
            np.array([[*zip(*row, strict=True)] for row in rows], dtype=np.float64).reshape(len(rows), -1)[
                np.flatnonzero(sequence.mask) - 1
            ]
            for rows, sequence in zip(found, sequences, strict=True)
        ]
