"""The embedded sampler: a Hugging Face model that decodes in a thread of this process, many requests in one batch.

This module is the asynchronous interface: it checks requests, waits and cancels. ``decode_loop`` contains the thread.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rllm_gym.argument_checks import check_int
from rllm_gym.chat.tokenizer import load_tokenizer, reply_decoder
from rllm_gym.samplers.decode_batch import DecodeBatch, DecodeJob
from rllm_gym.samplers.decode_loop import DecodeLoop, WeightDrop, WeightSync
from rllm_gym.samplers.fixed_shape_batch import FixedShapeDecodeBatch
from rllm_gym.samplers.protocol import Completion, SamplerError, SamplingRequest, WeightUpdate
from rllm_gym.samplers.sampler_thread import STOP_S


class TorchSampler:
    """Samples from a Hugging Face decoder.

    Requests of overlapping :meth:`sample` calls join the running batch between two decode steps. The keys and values of
    a conversation are kept until its next turn, and a prompt that shares a prefix with another one, running or kept, is
    computed only from where they differ; the replies of a group share their prompt. A weight sync waits until the
    replies in progress have finished (they keep their version) and clears the cache; with ``in_flight`` they continue
    with the new weights, and their keys and values are computed again.

    Weights loaded under a name (an adapter for each role, a frozen opponent) are served in addition to those of the
    model; each set decodes in its own batch, with its own cache. Together they respect ``max_batch``, ``cache_bytes``
    and ``slot_bytes``.

    The model is used as it is, not copied. A trainer that trains all its weights can pass the model it trains, if it
    never steps while replies are in progress, and call ``sync_weights(WeightUpdate((), kind="shared"))`` after each
    step.

    Args:
        model: A loaded ``transformers`` causal language model, or the path of one.
        tokenizer: Its tokenizer; optional with a path.
        max_batch: Maximum number of replies in progress.
        context_length: Maximum tokens of prompt and reply together; by default the model's own limit.
        cache_bytes: Maximum memory for keys and values kept between turns.
        slot_bytes: Maximum memory for keys and values of the replies in progress: long ones wait for each other. By
            default half of the free memory of a GPU, a quarter of the memory of a CPU machine. Ignored if
            ``deterministic``.
        deterministic: The reply depends on its request alone, bit for bit, whatever else is in the batch and whenever
            it arrived: fixed shapes, prompts computed in fixed chunks. Slower.
        num_threads: torch threads of the decoding thread; ``None`` leaves torch's setting.
        merge_adapters: Merge LoRA adapters into the weights, which decodes fastest. If false, they are added to the
            outputs of the adapted layers: the weights are not overwritten, so that a trainer can share them, and no
            update is rounded away in bfloat16.
        eos_token_ids: Ids that end a reply; by default those of the model's generation config and of the tokenizer.
        device: Device for a model given as a path.
        dtype: Type of the weights of a model given as a path.

    Raises:
        ValueError: The model's attention cannot be cached in slots.
    """

    returns_tokens = True

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        max_batch: int = 64,
        context_length: int | None = None,
        cache_bytes: int = 1 << 30,
        slot_bytes: int | None = None,
        deterministic: bool = False,
        num_threads: int | None = None,
        merge_adapters: bool = True,
        eos_token_ids: Sequence[int] | None = None,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_int("max_batch", max_batch)
        if isinstance(model, str | Path):
            model, tokenizer = _load(model, tokenizer, device, dtype)
        elif device is not None or dtype is not None:
            raise ValueError("device and dtype are for a model given as a path; move a loaded model with model.to()")
        if tokenizer is None:
            raise ValueError("tokenizer is missing: give the model's tokenizer, which decodes the sampled ids")
        self.model = model
        self.tokenizer = tokenizer
        self.deterministic = deterministic
        built_for = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 20
        self.context_length: int | None = min(context_length or built_for, built_for)
        self._vocabulary = model.get_input_embeddings().weight.shape[0]
        self._eos = frozenset(_eos_ids(model, tokenizer) if eos_token_ids is None else eos_token_ids)
        self._dispatcher = _ResultDispatcher()
        if deterministic and num_threads is None:
            num_threads = 1  # threads split sums, and the splits depend on the number of threads
        self._loop = DecodeLoop(
            model,
            reply_decoder(tokenizer),
            self._dispatcher.flush,
            batch_type=FixedShapeDecodeBatch if deterministic else DecodeBatch,
            max_batch=max_batch,
            cache_bytes=cache_bytes,
            slot_bytes=slot_bytes,
            num_threads=num_threads,
            merge_adapters=merge_adapters,
        )
        # Stop the thread at interpreter exit, too, if the sampler was not closed: it must not outlive torch.
        self._finalizer = weakref.finalize(self, self._loop.stop)

    @property
    def weight_version(self) -> int:
        """Number of the last weight sync; 0 before the first."""
        return self._loop.version

    async def sample(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        """Sample one completion per request, in order. See :class:`~rllm_gym.samplers.Sampler`.

        Raises:
            ValueError: A prompt is empty, too long, or has ids outside the vocabulary, or a request names weights that
                were never loaded; nothing was sampled.
            SamplerError: The sampler is closed or failed.
        """
        if not requests:
            return []
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Completion]] = loop.create_future()
        completions: list[Any] = [None] * len(requests)
        missing = len(requests)

        def receive(index: int, result: Completion | BaseException) -> None:
            nonlocal missing
            completions[index] = result
            missing -= 1
            if isinstance(result, BaseException):
                self._dispatcher.settle(future, result)
            elif missing == 0:
                self._dispatcher.settle(future, completions)

        def sampled(on_token: Callable[[int], None], token: int) -> None:
            self._dispatcher.add(loop, partial(on_token, token))

        jobs = [
            self._job(request, index, lambda result, index=index: receive(index, result))
            for index, request in enumerate(requests)
        ]
        for job in jobs:
            if job.request.on_token is not None:
                job.sampled = partial(sampled, job.request.on_token)
        self._loop.put(list(jobs))
        try:
            return await future
        except BaseException:
            for job in jobs:
                job.cancelled = True
            raise

    async def sync_weights(self, update: WeightUpdate) -> int:
        """Load new weights and return the new version.

        Requests made before the call get the old weights (with ``in_flight``, up to their next token), those made after
        it the new ones.

        Args:
            update: ``kind="full"``: the whole state dict, copied in place. ``"lora"``: a PEFT adapter, merged into the
                sampler's own weights (LoRA, rsLoRA and DoRA); over a base in 4 or 8 bits it stays unmerged (LoRA and
                rsLoRA), which takes the memory of the adapter alone. ``"shared"``: no tensors; the model was changed in
                place by its owner. With a name, ``"full"`` takes the memory of a whole model, ``"lora"`` that of the
                weights it adapts (merged into the model's current weights without the model's own adapters), and
                ``"shared"`` none: it serves the model's own adapter of that name.

        Raises:
            ValueError: The tensors do not fit the model; nothing was changed.
            SamplerError: The sampler is closed.
        """
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._loop.put([WeightSync(update, lambda result: self._dispatcher.settle(future, result))])
        return await future

    async def drop(self, name: str) -> None:
        """Free the weights that were loaded under a name. Requests made before still use them.

        Raises:
            ValueError: There are none of that name, or it is ``""``.
            SamplerError: The sampler is closed.
        """
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._loop.put([WeightDrop(name, lambda result: self._dispatcher.settle(future, result))])
        await future

    async def release(self, conversation: str) -> None:
        """Clear the cache of a conversation."""
        self._loop.release(conversation)

    async def close(self) -> None:
        """End the thread; replies in progress fail with :class:`~rllm_gym.samplers.SamplerError`."""
        ended = await asyncio.to_thread(self._loop.stop)
        self._finalizer.detach()
        if not ended:
            raise SamplerError(f"the decoding thread did not stop within {STOP_S:g} s; it ends with the program")

    async def __aenter__(self) -> TorchSampler:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _job(self, request: SamplingRequest, index: int, done: Any) -> DecodeJob:
        if type(request.ids) is not tuple:
            request = replace(request, ids=tuple(map(int, request.ids)))
        length = len(request.ids)
        assert self.context_length is not None
        if length == 0:
            raise ValueError(f"the prompt of request {index} is empty; it needs at least one token")
        if length >= self.context_length:
            raise ValueError(
                f"the prompt of request {index} has {length} tokens, which leaves no tokens for a reply "
                f"(context_length={self.context_length}); shorten the conversation"
            )
        if min(request.ids) < 0 or max(request.ids) >= self._vocabulary:
            raise ValueError(
                f"the prompt of request {index} has token ids outside 0..{self._vocabulary - 1}; it was made with "
                "another tokenizer than the model's"
            )
        if not isinstance(request.seed, int):
            raise TypeError(f"the seed of request {index} is a {type(request.seed).__name__}; it must be an int")
        return DecodeJob(
            request=request,
            limit=min(request.params.max_tokens, self.context_length - length),
            stops=self._eos.union(request.params.stop_token_ids) if request.params.stop_token_ids else self._eos,
            done=done,
        )


class _ResultDispatcher:
    """Results from the decoding thread; one wake-up of an event loop delivers all results of a step."""

    def __init__(self) -> None:
        self._ready: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}

    def add(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._ready.setdefault(loop, []).append(call)

    def settle(self, future: asyncio.Future[Any], result: Any) -> None:
        self.add(future.get_loop(), partial(_settle, future, result))

    def flush(self) -> None:
        while self._ready:
            loop, calls = self._ready.popitem()
            try:
                loop.call_soon_threadsafe(_call_soon, loop, calls)
            except RuntimeError:
                continue  # the event loop is closed: there is no caller left


def _call_soon(loop: asyncio.AbstractEventLoop, calls: list[Callable[[], None]]) -> None:
    for call in calls:
        loop.call_soon(call)  # in order, and an exception of one does not reach the others


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


def _eos_ids(model: Any, tokenizer: Any) -> set[int]:
    ids: set[int] = set()
    for config in (getattr(model, "generation_config", None), model.config):
        token_ids = getattr(config, "eos_token_id", None)
        ids.update(token_ids if isinstance(token_ids, list | tuple) else [] if token_ids is None else [token_ids])
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    return ids


def _load(path: str | Path, tokenizer: Any, device: Any, dtype: Any) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype or "auto", attn_implementation="sdpa")
    return model.to(device) if device is not None else model, tokenizer or load_tokenizer(path)
