"""``EndpointTeacher``: log-probs of a teacher behind an OpenAI-compatible endpoint."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rllm_gym.core import TokenSequence
from rllm_gym.samplers.openai_compatible import OpenAISampler
from trainers.array_types import FloatArray


class EndpointTeacher:
    """A teacher behind an endpoint that returns ``prompt_logprobs``.

    Args:
        address: URL and name of the model, ``http://HOST/v1#NAME``. The key is read from ``OPENAI_API_KEY``.

    Attributes:
        client: Must be closed.
    """

    def __init__(self, address: str) -> None:
        url, _, model = address.rpartition("#")
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
