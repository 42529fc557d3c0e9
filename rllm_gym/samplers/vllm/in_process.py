"""vLLM in this process: requests of all callers share one batch, and new weights need no restart."""

from __future__ import annotations

import asyncio
import os
import queue
import random
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from rllm_gym.samplers.protocol import Completion, SamplerError, SamplingRequest, WeightUpdate, unknown_weights
from rllm_gym.samplers.sampler_thread import STOP_S
from rllm_gym.samplers.vllm.adapter import write_adapter, zero_adapter
from rllm_gym.samplers.vllm.base import BaseVLLMSampler, VLLMArguments
from rllm_gym.samplers.vllm.checkpoint_files import checked
from rllm_gym.samplers.vllm.engine_thread import EngineCall, EngineLost, EngineRequest, EngineThread
from rllm_gym.samplers.vllm.settings import EngineSettings, environment, has_cuda
from rllm_gym.samplers.vllm.temporary_folder import private_folder, remove_private_folder
from rllm_gym.samplers.vllm.weight_probe import TOLERANCES

_owner: weakref.ref[VLLMSampler] | None = None


class VLLMSampler(BaseVLLMSampler):
    """Samples with vLLM inside this process, on its GPU or CPU.

    Requests of overlapping :meth:`sample` calls share the engine's batch; a cancelled request leaves it. A weight sync
    waits until the replies in progress have finished (they keep their version) and clears the prefix cache. If the
    update has a probe, the engine's log-probs must then agree with it.

    A process can have one such engine at a time, because vLLM's distributed state belongs to the process. For more, or
    to survive a crash of the engine, use :class:`~rllm_gym.samplers.VLLMServerSampler`.

    Args:
        path: A Hugging Face folder or the id of a model.
        tokenizer: Its tokenizer, if not the one at ``path``.
        max_batch: Maximum number of replies in progress, 64 by default.
        context_length: Maximum tokens of prompt and reply together; by default the model's own limit.
        lora_rank: Maximum rank of adapters that can be loaded; 0, the default, serves none, and is faster.
        max_adapters: Maximum number of adapters whose requests share a batch, 1 by default; further ones take turns.
        dtype: ``"auto"`` (the default), ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        seed: Seed of the engine. Requests have their own.
        memory: Fraction of a GPU's memory that vLLM takes for weights and cache, 0.5 by default. On a CPU,
            ``cache_gib`` is used.
        cache_gib: GiB of keys and values on a CPU, 1 by default.
        eager: No CUDA graphs, no compilation; ``None`` means only on a CPU.
        sleep_mode: Enable :meth:`sleep` (CUDA only).
        probe_tolerance: Maximum difference of a log-prob between engine and trainer; by default what rounding of
            ``dtype`` explains.
        eos_token_ids: Ids that end a reply; by default those of the model's configs and of the tokenizer.
        num_threads: torch threads of the engine; by default this thread's.
        start_timeout: Seconds that the engine may take to start.
        timeout: Seconds without one step of the engine after which waiting calls fail.
        engine_args: Further arguments of ``vllm.EngineArgs``.

    Raises:
        SamplerError: vLLM is not installed, did not start, or has too little memory; the message says why.
        ValueError: An option does not fit.
    """

    def __init__(
        self,
        path: str | Path,
        tokenizer: Any = None,
        *,
        num_threads: int | None = None,
        start_timeout: float = 900.0,
        timeout: float = 600.0,
        **options: Unpack[VLLMArguments],
    ) -> None:
        super().__init__(path, tokenizer, timeout=timeout, **options)
        self._sync_count = 0
        self._claim_process()
        self._folder = private_folder()
        try:
            threads = num_threads or _torch_threads()
            settings = self._settings
            self._thread = EngineThread(lambda: _open(settings, threads), start_timeout=start_timeout)
            self._untruncated_logprobs, type_of_weights = self._ask_engine()
        except BaseException as error:
            remove_private_folder(self._folder)
            self._release_process()
            if isinstance(error, SamplerError | KeyboardInterrupt):
                raise
            raise SamplerError(f"vLLM did not start: {type(error).__name__}: {error}") from error
        if self._tolerance is None:
            self._tolerance = TOLERANCES[type_of_weights]
        # Stop the thread at interpreter exit, too, if the sampler was not closed: it must not outlive torch.
        self._finalizer = weakref.finalize(self, _finish, self._thread, self._folder)

    async def sample(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        """Sample one completion per request, in order. See :class:`~rllm_gym.samplers.Sampler`.

        Raises:
            ValueError: A prompt is empty, too long, or has ids outside the vocabulary, or a request names weights that
                were never loaded; nothing was sampled.
            SamplerError: The sampler is closed, asleep, hangs, or serves unverified weights after a failed update.
        """
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        if not requests:
            return []
        self._check_serving()
        draws, futures = [], []
        loop = asyncio.get_running_loop()
        for index, request in enumerate(requests):
            arguments = self._model_info.engine_params(request, index)
            self._check_truncation(request, index)
            arguments["detokenize"] = bool(request.params.stop)
            progress = None if request.on_token is None else _token_sender(loop, request.on_token)
            kind = RequestOutputKind.FINAL_ONLY if progress is None else RequestOutputKind.CUMULATIVE
            params = SamplingParams(**arguments, output_kind=kind)
            future: asyncio.Future[Any] = loop.create_future()
            futures.append(future)
            receive = self._receiver(loop, future, request.weights)
            draws.append(EngineRequest(tuple(request.ids), params, receive, request.weights, progress))
        self._thread.put(draws)
        try:
            outputs = await self._wait(futures)
        except BaseException:
            for draw in draws:
                draw.cancelled = True
            raise
        return [
            self._completion(request, output, version)
            for request, (output, version) in zip(requests, outputs, strict=True)
        ]

    async def _sync_weights(self, update: WeightUpdate) -> int:
        self._check_awake()
        return int(await self._engine_call(lambda engine: self._take(engine, update)))

    async def drop(self, name: str) -> None:
        await self._engine_call(lambda engine: self._drop(engine, name))

    async def _sleep(self, level: int) -> None:
        await self._engine_call(lambda engine: engine.sleep(level))
        self._asleep = level

    async def _wake(self) -> None:
        level, self._asleep = self._asleep, 0
        await self._engine_call(lambda engine: self._wake_up(engine, level))

    async def close(self) -> None:
        ended = await asyncio.to_thread(_finish, self._thread, self._folder)
        self._finalizer.detach()
        self._release_process()
        if not ended:
            raise SamplerError(f"vLLM did not stop within {STOP_S:g} s; it ends with the program")

    # Called in the event loop

    async def _engine_call(self, action: Callable[[Any], Any]) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._thread.put([EngineCall(action, lambda result: _deliver(loop, future, result))])
        (result,) = await self._wait([future])
        return result

    def _receiver(
        self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], weights: str
    ) -> Callable[[Any], None]:
        def receive(result: Any) -> None:
            # Runs in the engine's thread: no weight sync can happen between a reply's end and this.
            _deliver(loop, future, result if isinstance(result, BaseException) else (result, self._versions[weights]))

        return receive

    def _ask_engine(self) -> tuple[bool, str]:
        """Return whether log-probs before top-p and top-k are available, and the type the engine computes in."""
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def ask(engine: Any) -> tuple[bool, str]:
            available = all(engine.collective_rpc("rllm_gym_report_untruncated_logprobs"))
            return available, str(engine.model_config.dtype).removeprefix("torch.")

        self._thread.put([EngineCall(ask, answer.put)])
        result = answer.get(timeout=60.0)
        if isinstance(result, BaseException):
            raise result
        available, name = result
        return available, name

    async def _wait(self, futures: Sequence[asyncio.Future[Any]]) -> list[Any]:
        """Wait for all futures, as long as the engine makes progress."""
        pending = set(futures)
        try:
            while pending:
                done, pending = await asyncio.wait(
                    pending, timeout=max(0.1, self._timeout / 8), return_when=asyncio.FIRST_EXCEPTION
                )
                for future in done:
                    future.result()
                if not done and time.monotonic() - self._thread.last_progress > self._timeout:
                    raise SamplerError(f"vLLM has not finished a step for {self._timeout:g} s (timeout); it hangs")
        finally:
            for future in futures:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # marks it as retrieved, also if another exception was raised first
        return [future.result() for future in futures]

    def _completion(self, request: SamplingRequest, output: Any, version: int) -> Completion:
        reply = output.outputs[0]
        logprobs = [entry[index].logprob for entry, index in zip(reply.logprobs, reply.token_ids, strict=True)]
        return self._model_info.completion(request, reply.token_ids, logprobs, reply.finish_reason, version)

    # Called in the engine's thread

    def _take(self, engine: Any, update: WeightUpdate) -> int:
        if update.kind == "lora":
            tensors = list(update.tensors)
            if tensors:
                folder = self._folder / f"adapter-{self._sync_count}"
                self._sync_count += 1
                write_adapter(replace(update, tensors=tensors), folder, rank=self._settings.lora_rank)
                self._load_adapter(engine, update.name, folder)
                self._load_base_adapter(engine, replace(update, tensors=tensors))
            else:
                self._unload_adapter(engine, update.name, None)
        else:
            full = checked(update.tensors, self._shapes, tied=self._model_info.tied)
            try:
                engine.collective_rpc("reload_weights", kwargs={"weights_iterator": full})
                engine.collective_rpc("rllm_gym_repack_heads")
            except Exception as error:
                # vLLM takes its layers apart to load them, and cannot restart the load.
                raise EngineLost(f"loading new weights failed half-way: {type(error).__name__}: {error}") from error
            self._unload_adapter(engine, "", None)
        self._forget_prefixes(engine)
        self._new_probe(update)
        self._check(engine, "after a weight sync", [update.name])
        return self._new_version(update.name)

    def _drop(self, engine: Any, name: str) -> None:
        if not name or name not in self._thread.adapters:
            raise unknown_weights(name, self._thread.adapters)
        self._unload_adapter(engine, name, None)
        del self._thread.adapters[name], self._versions[name]
        self._probes.pop(name, None)

    def _load_adapter(self, engine: Any, name: str, folder: Path) -> None:
        """Serve the adapter in a folder, under a new id: vLLM caches what it once loaded under an id."""
        from vllm.lora.request import LoRARequest

        adapter = LoRARequest(folder.name, self._sync_count, str(folder))
        try:
            engine.add_lora(adapter)
        except Exception as error:
            shutil.rmtree(folder)
            raise ValueError(f"vLLM rejected the adapter: {error}") from error
        self._unload_adapter(engine, name, adapter)

    def _load_base_adapter(self, engine: Any, update: WeightUpdate) -> None:
        """See :func:`~rllm_gym.samplers.vllm.adapter.zero_adapter`."""
        from vllm.lora.request import LoRARequest

        if has_cuda() or self._thread.base_adapter is not None or all(self._thread.adapters.values()):
            return
        folder = self._folder / f"adapter-{self._sync_count}"
        self._sync_count += 1
        write_adapter(zero_adapter(update), folder, rank=self._settings.lora_rank)
        adapter = LoRARequest(folder.name, self._sync_count, str(folder))
        engine.add_lora(adapter)
        self._thread.base_adapter = adapter

    def _unload_adapter(self, engine: Any, name: str, instead: Any) -> None:
        """Serve another adapter, or the base (``None``), in place of the one with this name."""
        old = self._thread.adapters.get(name)
        self._thread.adapters[name] = instead
        if old is not None:
            engine.remove_lora(old.lora_int_id)
            shutil.rmtree(old.lora_path, ignore_errors=True)

    def _wake_up(self, engine: Any, level: int) -> None:
        engine.wake_up()
        if level == 2:
            engine.collective_rpc("reload_weights")
            engine.collective_rpc("rllm_gym_repack_heads")
        for name, adapter in self._thread.adapters.items():
            if adapter is not None:
                folder = Path(adapter.lora_path)
                moved = folder.with_name(f"adapter-{self._sync_count}")
                self._sync_count += 1
                folder.rename(moved)
                self._load_adapter(engine, name, moved)
        self._forget_prefixes(engine)
        self._check(engine, "after wake()", list(self._probes))

    def _forget_prefixes(self, engine: Any) -> None:
        if not engine.reset_prefix_cache():
            raise SamplerError("vLLM did not clear its prefix cache, which belongs to older weights")

    def _check(self, engine: Any, when: str, names: Sequence[str]) -> None:
        for name in names:
            probe = self._probes.get(name)
            if probe is not None:
                self._compare(probe, self._score(engine, name, probe.ids), when)
        self._stale_weights = ""

    def _score(self, engine: Any, name: str, ids: tuple[int, ...]) -> list[float]:
        from vllm.sampling_params import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        prompt = {"type": "token", "prompt_token_ids": list(ids)}
        engine.add_request(
            "probe", prompt, params, lora_request=self._thread.adapters[name] or self._thread.base_adapter
        )
        while True:
            for output in engine.step():
                if output.finished:
                    scores = output.prompt_logprobs
                    return [entry[index].logprob for entry, index in zip(scores[1:], ids[1:], strict=True)]

    # One engine per process

    def _claim_process(self) -> None:
        global _owner
        if _owner is not None and _owner() is not None:
            raise SamplerError("this process already has a vLLM engine; close that sampler, or use VLLMServerSampler")
        _owner = weakref.ref(self)

    def _release_process(self) -> None:
        global _owner
        if _owner is not None and _owner() is self:
            _owner = None


def _open(settings: EngineSettings, threads: int) -> tuple[Any, Callable[[], None]]:
    """Return an engine, and a function that frees it."""
    import torch

    cuda = has_cuda()
    with _global_state_kept(), environment(settings.environment(cuda=cuda)):
        try:
            from vllm.distributed.parallel_state import cleanup_dist_env_and_memory
            from vllm.engine.arg_utils import EngineArgs
            from vllm.v1.engine.llm_engine import LLMEngine
        except ImportError as error:
            raise SamplerError(
                f"vLLM cannot be imported ({error}); pip install 'rllm-gym[vllm]' on a machine with an NVIDIA GPU; "
                "elsewhere `make setup` installs its CPU build"
            ) from error
        torch.set_num_threads(threads)
        engine = LLMEngine.from_engine_args(EngineArgs(**settings.arguments(cuda=cuda)))

    def free() -> None:
        engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()  # also collects garbage

    return engine, free


def _finish(thread: EngineThread, folder: Path) -> bool:
    ended = thread.stop()
    remove_private_folder(folder)
    return ended


def _token_sender(loop: asyncio.AbstractEventLoop, on_token: Callable[[int], None]) -> Callable[[Any], None]:
    """Return what passes the new tokens of cumulative outputs to an event loop."""
    sent = 0

    def send(output: Any) -> None:
        nonlocal sent
        tokens = output.outputs[0].token_ids
        with suppress(RuntimeError):  # the event loop is closed: there is no caller left
            for token in tokens[sent:]:
                loop.call_soon_threadsafe(on_token, token)
        sent = len(tokens)

    return send


def _deliver(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], result: Any) -> None:
    def settle() -> None:
        if future.done():
            return
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        return  # the event loop is closed: there is no caller left


def _torch_threads() -> int:
    import torch

    return torch.get_num_threads()


@contextmanager
def _global_state_kept() -> Iterator[None]:
    """Preserve the process's random state and torch threads.

    vLLM seeds every generator of the process and, on a CPU, replaces ``torch.set_num_threads``.
    """
    import numpy
    import torch

    set_num_threads = torch.set_num_threads
    # vLLM preloads its OpenMP into every program this process starts afterwards, sandboxed ones included.
    preloaded = os.environ.get("LD_PRELOAD")
    state = random.getstate(), numpy.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads
        if preloaded is None:
            os.environ.pop("LD_PRELOAD", None)
        else:
            os.environ["LD_PRELOAD"] = preloaded
        random.setstate(state[0])
        numpy.random.set_state(state[1])  # noqa: NPY002
        torch.set_rng_state(state[2])
