"""What every sampler does: token ids in, token ids with log-probs out, new weights on request.

A sampler knows tokens and weights. It knows no environment, no agent and no chat template.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to draw tokens.

    Attributes:
        temperature: 0 is greedy. Log-probs are those of the distribution at this temperature (at 0: of the
            unscaled one), before ``top_p`` and ``top_k`` cut it.
        top_p: Nucleus mass, in (0, 1].
        top_k: Most likely tokens kept; 0 keeps all.
        max_tokens: Longest reply in tokens, at least 1.
        stop: Strings that end the reply; the text is cut before the string, the ids keep it.
        stop_token_ids: Ids that end the reply beside the model's own end-of-turn ids; kept in ``ids``.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature={self.temperature!r} must be 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p!r} must be in (0, 1]")
        if self.top_k < 0:
            raise ValueError(f"top_k={self.top_k!r} must be 0 (all) or more")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens!r} must be at least 1")


@dataclass(frozen=True, slots=True)
class Request:
    """One reply to draw.

    Attributes:
        ids: The whole prompt as token ids.
        params: How to draw.
        seed: Seeds this request alone: the same request, weights and seed give the same reply, whatever else is
            in the batch (up to floating-point noise of batching; exactly where the sampler is deterministic).
        conversation: Names the conversation the request continues, so that a sampler may keep its cache; ``""``
            for none. Sharing a prefix needs no name.
        messages: The same prompt as OpenAI messages, for samplers that take no token ids.
        weights: Which weights draw it: ``""`` those pushed without a name, else those pushed under this name (the
            LoRA of a role, a frozen opponent).
    """

    ids: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    conversation: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()
    weights: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """One reply.

    Attributes:
        ids: Sampled token ids, the end-of-turn token included if sampled; ``()`` where the sampler gives none.
        logprobs: One natural-log probability per id.
        text: The ids decoded without special tokens, cut before a stop string.
        finish_reason: ``"stop"`` (end of turn or a stop condition), ``"length"``, or ``"context_length"``: a sampler
            that cannot know beforehand found that the prompt does not fit its model; nothing was sampled.
        weight_version: The version of the weights that drew it: the number of the push that brought them.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish_reason: str = "stop"
    weight_version: int = 0


@dataclass(frozen=True, slots=True)
class Probe:
    """What the new weights must say of a text, so that a sampler can tell whether it really serves them.

    Attributes:
        ids: A text as token ids, at least two.
        logprobs: One natural-log probability at temperature 1 for each id but the first, by the trainer's model.
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
        tensors: ``(name, tensor)`` pairs as in ``state_dict()`` of the plain Hugging Face model (``kind="full"``),
            or of the PEFT adapter (``kind="lora"``); none for ``kind="shared"``.
        kind: ``"full"``, ``"lora"``, or ``"shared"`` where the sampler works on the trainer's own model, which was
            changed in place: only what is cached must be forgotten.
        lora_config: The PEFT configuration as a dict, for ``kind="lora"``.
        probe: For samplers that load weights into an engine of another make: compared after the load, and whenever the
            engine wakes or comes back.
        name: Serve them to requests that name them, beside what is served already; ``""`` for all other requests.
    """

    tensors: Sequence[tuple[str, Any]] | Iterable[tuple[str, Any]]
    kind: str = "full"
    lora_config: Mapping[str, Any] | None = None
    probe: Probe | None = None
    name: str = ""

    @classmethod
    def from_adapter(cls, folder: str | os.PathLike[str], *, name: str = "") -> WeightUpdate:
        """An adapter as PEFT saves it, such as a role's in the model folder of a run.

        Args:
            folder: With ``adapter_config.json`` and ``adapter_model.safetensors``.
            name: As in :class:`WeightUpdate`.

        Raises:
            ValueError: There is no adapter in it.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = Path(folder)
        try:
            config = json.loads((path / "adapter_config.json").read_text(encoding="utf-8"))
            tensors = load_file(path / "adapter_model.safetensors")
        except (OSError, ValueError, SafetensorError) as error:
            raise ValueError(
                f"{str(folder)!r} holds no adapter that can be read ({error}); give a folder that PEFT saved, with "
                "adapter_config.json and adapter_model.safetensors"
            ) from error
        return cls(list(tensors.items()), "lora", config, name=name)


def unknown_weights(name: str, known: Iterable[str]) -> ValueError:
    """The error of a request, or of a :meth:`Sampler.drop`, that names weights which were never pushed."""
    names = ", ".join(repr(each) for each in sorted(known) if each) or "none with a name"
    return ValueError(
        f"there are no weights named {name!r}: this sampler has {names} beside those without one; push them first "
        "(WeightUpdate(name=...))"
    )


class SamplerError(RuntimeError):
    """The sampler cannot serve: closed, out of memory, or its engine died. Names what to do."""


@runtime_checkable
class Sampler(Protocol):
    """What the engine needs. Close it with ``async with`` or ``await sampler.close()``.

    Beside the weights that every request gets, a sampler may hold others under names (``WeightUpdate.name``), for
    requests that name them (``Request.weights``). One counter numbers the pushes of all of them; a completion carries
    the number of the push that brought the weights it was drawn by.

    Attributes:
        returns_tokens: Completions carry ids and log-probs. Without them episodes can be evaluated, not trained on.
        context_length: Most tokens of prompt and reply together, or ``None`` where unknown.
        weight_version: Number of the last push; 0 before the first.
    """

    returns_tokens: bool
    context_length: int | None

    @property
    def weight_version(self) -> int: ...

    async def sample(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request, in order. Calls may overlap: requests of all calls share one batch.

        Raises:
            ValueError: A prompt is empty or does not fit, or a request names weights that were never pushed; names it.
            SamplerError: The sampler cannot serve.
        """
        ...

    async def push(self, update: WeightUpdate) -> int:
        """Load new weights; returns the new version. Replies already under way keep their version."""
        ...

    async def drop(self, name: str) -> None:
        """Free the weights that were pushed under a name, once the replies under way are done.

        Raises:
            ValueError: There are none of that name; or it is ``""``, whose weights stay.
        """
        ...

    async def release(self, conversation: str) -> None:
        """Forget what is cached for a conversation. Unknown names are ignored."""
        ...

    async def close(self) -> None:
        """Free everything. Safe to call twice."""
        ...
