"""What the two vLLM samplers have in common: their options, checks, and the record of the weights that are served."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

from rllm_gym.samplers.protocol import Completion, Probe, SamplerError, SamplingRequest, WeightUpdate
from rllm_gym.samplers.vllm.checkpoint_files import tensor_shapes
from rllm_gym.samplers.vllm.model_info import ModelInfo
from rllm_gym.samplers.vllm.settings import EngineSettings, check_update, has_cuda
from rllm_gym.samplers.vllm.weight_probe import compare


class VLLMEngineArguments(TypedDict, total=False):
    """The keyword arguments of both samplers that become :class:`EngineSettings`, for type checkers and editors."""

    max_batch: int
    lora_rank: int
    max_adapters: int
    dtype: str
    seed: int
    memory: float
    cache_gib: float
    eager: bool | None
    sleep_mode: bool
    engine_args: Mapping[str, Any]


class VLLMArguments(VLLMEngineArguments, total=False):
    """All keyword arguments that both samplers have; see :class:`~rllm_gym.samplers.VLLMSampler`."""

    context_length: int | None
    probe_tolerance: float | None
    eos_token_ids: Sequence[int] | None


class BaseVLLMSampler(ABC):
    """A sampler on one vLLM engine. Subclasses reach the engine; see :class:`~rllm_gym.samplers.VLLMSampler`."""

    returns_tokens = True

    def __init__(
        self,
        path: str | Path,
        tokenizer: Any,
        *,
        timeout: float,
        context_length: int | None = None,
        probe_tolerance: float | None = None,
        eos_token_ids: Sequence[int] | None = None,
        **options: Unpack[VLLMEngineArguments],
    ) -> None:
        self._model_info = ModelInfo.read(
            path, tokenizer=tokenizer, context_length=context_length, eos_token_ids=eos_token_ids
        )
        self.tokenizer = self._model_info.tokenizer
        self.context_length: int | None = self._model_info.context_length
        self.weight_version = 0
        self._settings = EngineSettings(
            path=self._model_info.path, context_length=self._model_info.context_length, **options
        )
        if self._settings.sleep_mode and not has_cuda():
            raise ValueError("sleep_mode=True needs an NVIDIA GPU: on a CPU vLLM has no GPU memory to free")
        self._tolerance = probe_tolerance
        self._timeout = timeout
        self._shapes = tensor_shapes(Path(path)) if Path(path).is_dir() else {}
        self._probes: dict[str, Probe] = {}
        self._versions = {"": 0}
        self._asleep = 0
        self._stale_weights = ""
        self._untruncated_logprobs = False  # whether the engine reports log-probs before top-p and top-k

    @abstractmethod
    async def sample(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        """Sample one completion per request, in order. See :class:`~rllm_gym.samplers.Sampler`."""

    async def sync_weights(self, update: WeightUpdate) -> int:
        """Load new weights and return the new version.

        Requests made before the call get the old weights, those made after it the new ones. Named weights are adapters,
        on the full weights that were loaded last.

        Raises:
            ValueError: The tensors do not fit the model, or are full weights with a name; nothing was changed.
            SamplerError: The sampler is closed or asleep, the engine died, refuses, or does not serve what was loaded,
                or, in this process, a generator of tensors failed; then the engine is lost.
        """
        check_update(update, self._settings)
        return await self._sync_weights(update)

    @abstractmethod
    async def drop(self, name: str) -> None:
        """Stop serving an adapter. Requests made before still use it.

        Raises:
            ValueError: There is none of that name, or it is ``""``.
            SamplerError: The sampler is closed, or the engine died or refuses.
        """

    async def release(self, conversation: str) -> None:
        """Do nothing: vLLM's prefix cache removes the least recently used entries itself."""
        return

    @property
    def can_sleep(self) -> bool:
        """Whether it was made with ``sleep_mode=True``, so that :meth:`sleep` and :meth:`wake` work."""
        return self._settings.sleep_mode

    async def sleep(self, level: int = 1) -> None:
        """Free GPU memory until :meth:`wake`: the cache, and the weights.

        Weights are moved to the CPU (level 1) or dropped (level 2).

        Raises:
            SamplerError: There is no GPU, or the sampler was not made with ``sleep_mode=True``.
            ValueError: There is no such level.
        """
        if level not in (1, 2):
            raise ValueError(f"level={level!r} must be 1 (weights kept on the CPU) or 2 (dropped)")
        if not self._settings.sleep_mode:
            raise SamplerError(
                "this sampler cannot sleep: it needs an NVIDIA GPU and sleep_mode=True; on a CPU close it instead"
            )
        await self._sleep(level)

    async def wake(self) -> None:
        """Allocate the memory again, reload adapters, and check the last probes.

        After level 2 the base is read from its files again. Full weights of an earlier :meth:`sync_weights` are
        lost in this process, and the next one must provide them; a server gets them again.

        Raises:
            SamplerError: The sampler is not asleep, or the engine serves other weights than before.
        """
        if not self._asleep:
            raise SamplerError("this sampler is not asleep")
        await self._wake()

    @abstractmethod
    async def close(self) -> None:
        """End the engine; replies in progress fail with :class:`~rllm_gym.samplers.SamplerError`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # Methods for subclasses

    @abstractmethod
    async def _sync_weights(self, update: WeightUpdate) -> int: ...

    @abstractmethod
    async def _sleep(self, level: int) -> None: ...

    @abstractmethod
    async def _wake(self) -> None: ...

    def _check_awake(self) -> None:
        if self._asleep:
            raise SamplerError("this sampler is asleep; call wake() first")

    def _check_serving(self) -> None:
        """Raise if the engine cannot sample, or serves weights that failed their check."""
        if self._stale_weights:
            raise SamplerError(self._stale_weights)
        self._check_awake()

    def _check_truncation(self, request: SamplingRequest, index: int) -> None:
        """Raise if the engine would report the log-probs of a truncated distribution."""
        if not self._untruncated_logprobs and (request.params.top_p < 1 or request.params.top_k):
            raise ValueError(
                f"request {index} truncates the distribution (top_p={request.params.top_p}, "
                f"top_k={request.params.top_k}), and this version of vLLM cannot report log-probs before truncation; "
                "sample with top_p=1 and top_k=0, or use the torch sampler"
            )

    def _new_probe(self, update: WeightUpdate) -> None:
        self._probes.pop(update.name, None)
        if update.probe is not None:
            self._probes[update.name] = update.probe

    def _new_version(self, name: str) -> int:
        self.weight_version += 1
        self._versions[name] = self.weight_version
        return self.weight_version

    def _compare(self, probe: Probe, scores: Sequence[float], when: str) -> None:
        """Compare the engine's log-probs with a probe's; after a difference nothing is sampled from these weights."""
        assert self._tolerance is not None
        try:
            compare(probe, scores, self._tolerance, when)
        except SamplerError as error:
            self._stale_weights = str(error)
            raise
