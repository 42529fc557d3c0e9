"""The interface of every sampler: token ids in, token ids with log-probs out, and weight updates.

A sampler handles tokens and weights. It does not depend on environments, agents or chat templates.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rllm_gym.argument_checks import check_int, check_number


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters.

    Attributes:
        temperature: 0 is greedy. Log-probs are those of the distribution at this temperature (at 0: of the unscaled
            distribution), before ``top_p`` and ``top_k`` are applied.
        top_p: Nucleus mass, in (0, 1].
        top_k: Number of most likely tokens that are kept; 0 keeps all.
        max_tokens: Maximum length of the reply in tokens, at least 1.
        stop: Strings that end the reply. The text is cut before the string; the ids keep it.
        stop_token_ids: Ids that end the reply, in addition to the model's own end-of-turn ids; kept in ``ids``.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, least=0.0)
        if not 0 < check_number("top_p", self.top_p) <= 1:
            raise ValueError(f"top_p={self.top_p!r} must be in (0, 1]")
        check_int("top_k", self.top_k, 0)
        check_int("max_tokens", self.max_tokens)


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """A request for one reply.

    Attributes:
        ids: The whole prompt as token ids.
        params: Sampling parameters.
        seed: Seed of this request alone. The same request, weights and seed give the same reply, whatever else is in
            the batch (up to floating-point noise of batching; exactly where the sampler is deterministic).
        conversation: Name of the conversation that the request continues, so that a sampler can keep its cache; ``""``
            for none. Prefixes are shared without a name.
        messages: The same prompt as OpenAI messages, for samplers that take no token ids.
        weights: Name of the weights to sample with: ``""`` for the default weights, else those loaded under
            this name (the LoRA adapter of a role, a frozen opponent).
        on_token: Called in the caller's event loop with each token but the last as soon as it is sampled, by samplers
            that can tell (``TorchSampler``, ``VLLMSampler``). It changes nothing about the completion.
    """

    ids: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    conversation: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()
    weights: str = ""
    on_token: Callable[[int], None] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Completion:
    """One reply.

    Attributes:
        ids: Sampled token ids, including the end-of-turn token if it was sampled; ``()`` where the sampler returns
            none.
        logprobs: One natural-log probability per id.
        text: The ids decoded without special tokens, cut before a stop string.
        finish_reason: ``"stop"`` (end of turn or a stop condition), ``"length"``, or ``"context_length"``: the sampler
            could not check the length beforehand, the prompt does not fit the model, and nothing was sampled.
        weight_version: Version of the weights that sampled the reply: the number of the weight sync that loaded them.
            The oldest of them if an update with ``in_flight`` changed them meanwhile.
        usage: Tokens of the prompt and of the reply as an endpoint counts them; ``None`` if it does not report them, or
            returns ids.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish_reason: str = "stop"
    weight_version: int = 0
    usage: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """Expected log-probs of a text under new weights, used to check that a sampler really serves them.

    Attributes:
        ids: A text as token ids, at least two.
        logprobs: One natural-log probability at temperature 1 for each id except the first, from the trainer's model.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.ids) < 2 or len(self.logprobs) != len(self.ids) - 1:
            raise ValueError(
                f"a probe of {len(self.ids)} ids has {len(self.logprobs)} log-probs; it needs at least two ids, and a "
                "log-prob for each but the first"
            )


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """New weights for a sampler.

    Attributes:
        tensors: ``(name, tensor)`` pairs as in ``state_dict()`` of the plain Hugging Face model (``kind="full"``), or
            of the PEFT adapter (``kind="lora"``); empty for ``kind="shared"``.
        kind: ``"full"``, ``"lora"``, or ``"shared"`` where the sampler uses the trainer's own model, which was changed
            in place: only caches must be cleared.
        lora_config: The PEFT configuration as a dict, for ``kind="lora"``.
        probe: For samplers that load weights into a separate engine: compared after the load, and whenever the engine
            wakes or restarts.
        name: Serve the weights to requests that name them, in addition to those already served; ``""`` for all other
            requests.
        in_flight: Whether a reply in progress continues with the new weights after its next token, each token with the
            log-prob of the weights that sampled it. Otherwise, and in samplers of vLLM, which cannot continue a reply
            with another adapter, it finishes with the old weights first.
    """

    tensors: Sequence[tuple[str, Any]] | Iterable[tuple[str, Any]]
    kind: str = "full"
    lora_config: Mapping[str, Any] | None = None
    probe: Probe | None = None
    name: str = ""
    in_flight: bool = False

    @classmethod
    def from_adapter(cls, folder: str | os.PathLike[str], *, name: str = "") -> WeightUpdate:
        """Load an adapter that PEFT saved, such as the adapter of a role in the model folder of a run.

        Args:
            folder: Folder with ``adapter_config.json`` and ``adapter_model.safetensors``.
            name: As in :class:`WeightUpdate`.

        Raises:
            ValueError: The folder holds no readable adapter.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = Path(folder)
        try:
            config = json.loads((path / "adapter_config.json").read_text(encoding="utf-8"))
            tensors = load_file(path / "adapter_model.safetensors")
        except (OSError, ValueError, SafetensorError) as error:
            raise ValueError(
                f"{str(folder)!r} contains no readable adapter ({error}); give a folder saved by PEFT, with "
                "adapter_config.json and adapter_model.safetensors"
            ) from error
        return cls(list(tensors.items()), "lora", config, name=name)


def unknown_weights(name: str, known: Iterable[str]) -> ValueError:
    """Return the error for a request, or a :meth:`Sampler.drop`, that names weights which were never loaded."""
    names = ", ".join(repr(item) for item in sorted(known) if item) or "none"
    return ValueError(
        f"there are no weights named {name!r}; the sampler's named weights: {names}. Load them first with "
        "sync_weights(WeightUpdate(..., name=...))"
    )


class SamplerError(RuntimeError):
    """The sampler cannot serve: it is closed, out of memory, or its engine died. The message says what to do."""


@runtime_checkable
class Sampler(Protocol):
    """The interface that the engine needs. Close it with ``async with`` or ``await sampler.close()``.

    A class of your own may inherit from it: :meth:`drop`, :meth:`release` and :meth:`close` then are those of a sampler
    without named weights, cache and resources.

    In addition to the default weights, a sampler may hold named weights (``WeightUpdate.name``) for requests that name
    them (``SamplingRequest.weights``). One counter numbers all weight syncs; a completion carries the number of the one
    that loaded the weights it was sampled with.

    Attributes:
        returns_tokens: Whether completions carry ids and log-probs. Without them episodes can be evaluated but not
            trained on.
        context_length: Maximum tokens of prompt and reply together, or ``None`` if unknown.
        weight_version: Number of the last weight sync; 0 before the first.
    """

    returns_tokens: bool
    context_length: int | None

    @property
    def weight_version(self) -> int: ...

    async def sample(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        """Sample one completion per request, in order. Calls may overlap: requests of all calls share one batch.

        Raises:
            ValueError: A prompt is empty or does not fit, or a request names weights that were never loaded. The
                message names the request.
            SamplerError: The sampler cannot serve.
        """
        ...

    async def sync_weights(self, update: WeightUpdate) -> int:
        """Load new weights and return the new version. Replies in progress keep theirs; see ``in_flight``."""
        ...

    async def drop(self, name: str) -> None:
        """Free the weights that were loaded under a name, once the replies in progress have finished.

        Raises:
            ValueError: There are none of that name, or the name is ``""``: the default weights cannot be dropped.
        """
        raise unknown_weights(name, ())

    async def release(self, conversation: str) -> None:
        """Clear the cache of a conversation. Unknown names are ignored."""
        return

    async def close(self) -> None:
        """Free all resources. Safe to call twice."""
        return
