"""``SamplerBackend``: how a run creates its sampler, and what this sampler can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rllm_gym.samplers.protocol import Sampler


@dataclass(frozen=True)
class SamplerOptions:
    """The sampler, which generates the replies during training. The other options depend on ``backend``."""

    backend: str = "torch"
    """``torch``: built in, runs in this process, no dependencies. ``vllm``: vLLM in this process, much faster on a GPU.
    ``vllm-server``: vLLM in a separate process; the run survives a crash of it. ``openai``: an endpoint operated by
    others that accepts token ids and loads LoRA adapters. ``my_module:MY_BACKEND``: a SamplerBackend of your own. For
    the options of a backend, use ``--sampler.backend vllm --help-all``."""

    @property
    def merges(self) -> bool:
        """Whether adapters are synced merged into the base, as full weights, although the sampler can load them."""
        return False

    def check(self, problems: list[str]) -> None:
        """Append a message to ``problems`` for each invalid value. Subclasses also call ``super().check(problems)``."""


@dataclass(frozen=True)
class SamplerSetup:
    """What a run tells a backend about itself.

    Attributes:
        load_model: Loads a copy of the base model, a ``transformers`` model on the trainer's device, for a sampler in
            this process. A base in 4 bits is dequantized.
        share_model: Returns the base model over the trainer's own weights, for a sampler in this process that adds
            adapters to the outputs of layers and never writes to the weights; ``None`` if they should be merged into a
            copy.
        model_path: Returns the path or hub id of the base model, for a sampler that loads it itself. A base in 4 bits
            is first written to the run's folder dequantized, an adapter merged.
        tokenizer: The model's tokenizer.
        parallel: Maximum number of concurrent episodes (``env.parallel``).
        context_length: ``sampling.context_length``.
        dtype: ``model.dtype``.
        seed: Seed of the run.
        deterministic: Whether replies must be the same, bit for bit, whenever their requests arrive.
        lora_rank: Rank of the adapters that are synced; 0 if full weights are.
        max_adapters: Maximum number of adapters that are served at a time.
        pauses: Whether nothing is sampled while the model is trained, so that a sampler on the trainer's GPU can free
            its memory meanwhile.
        output: Folder of the run.
    """

    load_model: Callable[[], Any]
    share_model: Callable[[], Any] | None
    model_path: Callable[[], str]
    tokenizer: Any
    parallel: int
    context_length: int | None
    dtype: str
    seed: int
    deterministic: bool
    lora_rank: int
    max_adapters: int
    pauses: bool
    output: Path


@dataclass(frozen=True)
class CacheMemory:
    """Memory of a sampler on the trainer's device, for the estimate of ``--dry-run``.

    Attributes:
        limit: Maximum number of bytes of keys and values.
        preallocated: Whether all of it is allocated at the start, on a GPU with the weights in it; otherwise as needed,
            in addition to the weights.
        can_sleep: Whether it is freed while the model is trained, if nothing is sampled meanwhile.
    """

    limit: int
    preallocated: bool
    can_sleep: bool = False


@dataclass(frozen=True, eq=False)
class SamplerBackend:
    """A kind of sampler. Train with one of your own by ``sampler.backend=my_module:MY_BACKEND``.

    Attributes:
        name: Its name in messages.
        options: A dataclass of its options.
        make: Called with the options and the setup of the run; returns a sampler with the base weights of the model.
            Called again if the sampler died.
        updates: The weight updates that the sampler loads: ``"full"`` (full weights), ``"lora"`` (adapters). If it
            does not load adapters, they are merged and synced as full weights. Without ``"full"``, its base is the
            unchanged model, which only ``model.tuning=lora`` trains.
        several_full_models: Whether it serves several full models, each under a name (``WeightUpdate.name``).
        needs_probe: Whether each update carries a text with its log-probs under the new weights, to be compared with
            those of the sampler.
        deterministic: Whether replies can be reproduced bit for bit (``deterministic=true``).
        not_with_torchrun: Why it does not work in several training processes, and what to use instead; ``""`` if it
            works.
        packages: The modules it needs, and how to install each.
        cache_memory: Called with the options, whether the trainer uses a GPU, and the bytes of the trainer's device;
            ``None`` if the sampler uses another device, or its memory is unknown.
    """

    name: str
    options: type[SamplerOptions]
    make: Callable[[Any, SamplerSetup], Sampler]
    updates: tuple[Literal["full", "lora"], ...] = ("full",)
    several_full_models: bool = False
    needs_probe: bool = False
    deterministic: bool = False
    not_with_torchrun: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    cache_memory: Callable[[Any, bool, int], CacheMemory] | None = None

    def sends(self, options: SamplerOptions, tuning: str) -> Literal["full", "lora"]:
        """Return what is synced to the sampler with a ``model.tuning``: full weights or adapters."""
        merged = "full" in self.updates and (options.merges or "lora" not in self.updates)
        return "full" if tuning == "full" or merged else "lora"
