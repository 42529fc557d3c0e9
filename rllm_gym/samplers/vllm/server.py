"""vLLM as a separate server process: a crash there does not affect this process, and a restart restores the weights."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from rllm_gym.samplers.client_loop import ClientLoop
from rllm_gym.samplers.protocol import Completion, SamplerError, SamplingRequest, WeightUpdate, unknown_weights
from rllm_gym.samplers.vllm.adapter import write_adapter, zero_adapter
from rllm_gym.samplers.vllm.base import BaseVLLMSampler, VLLMArguments
from rllm_gym.samplers.vllm.checkpoint_files import checked, write_checkpoint
from rllm_gym.samplers.vllm.read_write_lock import ReadWriteLock
from rllm_gym.samplers.vllm.server_api import ServerApi, ServerLost, ServerRefused
from rllm_gym.samplers.vllm.server_process import ServerProcess
from rllm_gym.samplers.vllm.settings import has_cuda
from rllm_gym.samplers.vllm.temporary_folder import private_folder, remove_private_folder

_log = logging.getLogger(__name__)
_HEALTH_SECONDS = 0.2
_BASE = "base"  # the server's name for the model


class VLLMServerSampler(BaseVLLMSampler):
    """Samples with a vLLM server that it starts. For one that is already running, use
    :class:`~rllm_gym.samplers.OpenAISampler`.

    The server listens on a Unix socket that only this user can reach, and is killed when this program ends, in whatever
    way. When the server dies, replies in progress fail with :class:`~rllm_gym.samplers.SamplerError`; the next call
    restarts it with the weights that were loaded last, at most ``max_restarts`` times between two weight syncs.

    Requests of overlapping :meth:`sample` calls share the engine's batch; a cancelled request leaves it. A weight sync
    waits until the replies in progress have finished and clears the prefix cache. If the update has a probe, the
    engine's log-probs must agree with it, after the weight sync and after every restart.

    Args:
        path: A Hugging Face folder or the id of a model.
        tokenizer: Its tokenizer, if not the one at ``path``.
        max_restarts: Maximum number of restarts between two weight syncs.
        log: File for the server's output; by default a temporary one, removed on :meth:`close` unless the server died.
        start_timeout: Seconds that the server may take to start, and to load new weights.
        timeout: Seconds that one reply may take.
        engine_args: As :class:`~rllm_gym.samplers.VLLMSampler`, and so are the options that are not listed here.

    Attributes:
        restarts: Number of restarts of the server.

    Raises:
        SamplerError: The server did not start; the message has the reason and the end of its log.
        ValueError: An option does not fit.
    """

    def __init__(
        self,
        path: str | Path,
        tokenizer: Any = None,
        *,
        max_restarts: int = 3,
        log: str | Path | None = None,
        start_timeout: float = 900.0,
        timeout: float = 1800.0,
        **options: Unpack[VLLMArguments],
    ) -> None:
        super().__init__(path, tokenizer, timeout=timeout, **options)
        if self._tolerance is None:
            self._tolerance = self._model_info.tolerance(self._settings.dtype)
        self._max_restarts = max_restarts
        self._start_timeout = start_timeout
        self.restarts = 0
        self._since_sync = 0
        self._serial = 0
        self._adapters: dict[str, Path | None] = {"": None}  # by name; None is the base
        self._base_adapter: Path | None = None  # serves the base where requests must have an adapter
        self._full_weights: Path | None = None

        self._folder = private_folder()
        self._log_path, self._log_is_ours = _log_file(log)
        self._server: ServerProcess | None = None
        self._api: ServerApi | None = None
        self._lock = ReadWriteLock()
        self._owned: list[ServerProcess] = []
        self._connected: list[ServerApi] = []
        self._loop = ClientLoop(self, "rllm-gym-vllm-client", partial(_disconnect, self._connected, self._owned))
        self._finalizer = weakref.finalize(self, _abandon, self._owned, self._folder)
        try:
            self._loop.wait(self._start())
        except BaseException:
            self._end()
            raise

    @property
    def pid(self) -> int | None:
        """Process id of the server; ``None`` before the first start."""
        return self._server.pid if self._server is not None else None

    async def sample(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        """Sample one completion per request, in order. See :class:`~rllm_gym.samplers.Sampler`.

        Raises:
            ValueError: A prompt is empty, too long, or has ids outside the vocabulary, or a request names weights that
                were never loaded; nothing was sampled.
            SamplerError: The server died, hangs, or serves unverified weights after a failed update.
        """
        if not requests:
            return []
        params = [self._params(request, index) for index, request in enumerate(requests)]
        return await self._loop.call(self._sample(requests, params))

    async def _sync_weights(self, update: WeightUpdate) -> int:
        return await self._loop.call(self._take(update))

    async def drop(self, name: str) -> None:
        await self._loop.call(self._drop(name))

    async def _sleep(self, level: int) -> None:
        await self._loop.call(self._put_to_sleep(level))

    async def _wake(self) -> None:
        await self._loop.call(self._wake_up())

    async def close(self) -> None:
        """End the server; replies in progress fail with ``SamplerError``. Does nothing in a forked child."""
        if not self._loop.closed:
            died = self._server is not None and bool(self._server.exit_description)
            await asyncio.to_thread(self._end)
            if self._log_is_ours and not died:
                self._log_path.unlink(missing_ok=True)

    def _end(self) -> None:
        try:
            self._loop.close()
        finally:
            self._finalizer()

    # Called in the client's event loop

    async def _start(self) -> None:
        """Start a server with the weights that were loaded last."""
        cuda = has_cuda()
        self._serial += 1
        self._server = ServerProcess(
            {**self._settings.arguments(cuda=cuda), "served_model_name": _BASE},
            {
                **self._settings.environment(cuda=cuda),
                "VLLM_SERVER_DEV_MODE": "1",
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            },
            self._folder / f"socket-{self._serial}",
            self._log_path,
        )
        self._owned[:] = [self._server]
        if self._api is not None:
            await self._api.close()
        self._api = ServerApi(self._server.socket)
        self._connected[:] = [self._api]
        try:
            async with asyncio.timeout(self._start_timeout):
                while not await self._api.healthy():
                    if self._server.exit_description:
                        raise SamplerError(
                            f"vLLM's server ended ({self._server.exit_description}). {self._server.log_tail()}"
                        )
                    await asyncio.sleep(_HEALTH_SECONDS)
                self._untruncated_logprobs = "False" not in await self._api.call_workers(
                    "rllm_gym_report_untruncated_logprobs", self._start_timeout
                )
                await self._restore()
        except TimeoutError as error:
            self._server.kill()
            raise SamplerError(
                f"vLLM's server did not start within {self._start_timeout:g} s (start_timeout). "
                f"{self._server.log_tail()}"
            ) from error
        except ServerRefused as refused:
            self._server.kill()
            raise SamplerError(f"vLLM's server rejected the last weights: {refused}") from refused
        except BaseException:
            self._server.kill()
            raise

    async def _alive(self) -> ServerApi:
        """Return the connection to a running server; restart the server if necessary."""
        assert self._api is not None
        if self._server is not None and self._server.exit_description:
            if self._since_sync >= self._max_restarts:
                raise SamplerError(
                    f"vLLM's server ended ({self._server.exit_description}) after {self._since_sync} restarts since "
                    f"the last weight sync (max_restarts). {self._server.log_tail()}"
                )
            self._since_sync += 1
            self.restarts += 1
            _log.warning(
                "vLLM's server ended (%s); starting it again with the weights of version %d (restart %d)",
                self._server.exit_description,
                self.weight_version,
                self.restarts,
            )
            self._server.kill()  # processes that it left running
            await self._start()
        return self._api

    async def _sample(self, requests: Sequence[SamplingRequest], params: Sequence[dict[str, Any]]) -> list[Completion]:
        async with self._lock.read(self._alive) as api:
            self._check_serving()
            for request in requests:
                if request.weights not in self._adapters:
                    raise unknown_weights(request.weights, self._adapters)
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(self._complete(api, request, index, item))
                        for index, (request, item) in enumerate(zip(requests, params, strict=True))
                    ]
            except BaseExceptionGroup as failed:
                # Raise one exception only: the requests of a dead server all have the same one.
                raise failed.exceptions[0] from None
            return [task.result() for task in tasks]

    def _served(self, name: str) -> str:
        """Return the server's name for these weights."""
        adapter = self._adapters[name] or self._base_adapter
        return _BASE if adapter is None else adapter.name

    async def _complete(
        self, api: ServerApi, request: SamplingRequest, index: int, params: dict[str, Any]
    ) -> Completion:
        model = self._served(request.weights)
        try:
            choice = await api.complete(model, request.ids, params, self._timeout)
        except ServerRefused as refused:
            if refused.status == 404:
                raise SamplerError(f"vLLM's server no longer serves {model!r}: {refused}") from refused
            raise ValueError(f"vLLM's server rejected request {index}: {refused}") from refused
        except ServerLost as lost:
            raise await self._on_server_lost(api, lost) from lost
        return self._model_info.completion(
            request,
            choice["token_ids"],
            choice["logprobs"]["token_logprobs"],
            choice["finish_reason"],
            self._versions[request.weights],
        )

    async def _on_server_lost(self, api: ServerApi, lost: ServerLost) -> SamplerError:
        """Return the error for a lost server; kill one whose engine died, so that the next call restarts it."""
        server = self._server  # another request may start the next one meanwhile
        assert server is not None
        if not server.exit_description and api is self._api and not await api.healthy():
            server.kill()
        return SamplerError(f"{lost} ({server.exit_description or 'still running'}; its log: {self._log_path})")

    def _params(self, request: SamplingRequest, index: int) -> dict[str, Any]:
        params = self._model_info.engine_params(request, index)
        self._check_truncation(request, index)
        return params

    # New weights

    async def _take(self, update: WeightUpdate) -> int:
        async with self._lock.write():
            self._check_awake()
            self._serial += 1
            name, kept = update.name, (dict(self._adapters), self._full_weights, dict(self._probes))
            folder: Path | None = None
            if update.kind == "lora":
                tensors = list(update.tensors)
                if tensors:
                    folder = self._folder / f"adapter-{self._serial}"
                    written = replace(update, tensors=tensors)
                    await asyncio.to_thread(write_adapter, written, folder, rank=self._settings.lora_rank)
                    await self._load_base_adapter(written, name)
                self._adapters[name] = folder
            else:
                folder = self._folder / f"weights-{self._serial}"
                complete = checked(update.tensors, self._shapes, tied=self._model_info.tied)
                await asyncio.to_thread(write_checkpoint, complete, folder)
                self._adapters[""], self._full_weights = None, folder
            self._new_probe(update)
            old = kept[0].get(name)
            try:
                restarts = self.restarts
                api = await self._alive()
                if self.restarts == restarts:  # a restarted server has already loaded it
                    await self._load(api, [name], full=update.kind == "full", old=old)
                    await self._check(api, "after a weight sync", [name])
            except (ServerRefused, ServerLost) as error:
                # A restarted server gets what was served before.
                self._adapters, self._full_weights, self._probes = kept
                if folder is not None:
                    shutil.rmtree(folder, ignore_errors=True)
                if isinstance(error, ServerRefused):
                    raise ValueError(f"vLLM's server rejected the weights: {error}") from error
                assert self._api is not None
                raise await self._on_server_lost(self._api, error) from error
            for files in (old, kept[1]):
                if files is not None and files not in (*self._adapters.values(), self._full_weights):
                    shutil.rmtree(files, ignore_errors=True)
            self._since_sync = 0
            return self._new_version(name)

    async def _load_base_adapter(self, update: WeightUpdate, name: str) -> None:
        """Load :func:`~rllm_gym.samplers.vllm.adapter.zero_adapter` where the base needs it."""
        base_is_served = any(folder is None for other, folder in self._adapters.items() if other != name)
        if has_cuda() or self._base_adapter is not None or not base_is_served:
            return
        folder = self._folder / f"adapter-{self._serial}-none"
        await asyncio.to_thread(write_adapter, zero_adapter(update), folder, rank=self._settings.lora_rank)
        api = await self._alive()
        await api.load_adapter(folder.name, folder, self._start_timeout)
        self._base_adapter = folder

    async def _drop(self, name: str) -> None:
        async with self._lock.write():
            if not name or name not in self._adapters:
                raise unknown_weights(name, self._adapters)
            folder = self._adapters.pop(name)
            del self._versions[name]
            self._probes.pop(name, None)
            if folder is not None:
                await self._unload(await self._alive(), folder)
                shutil.rmtree(folder, ignore_errors=True)

    async def _unload(self, api: ServerApi, folder: Path) -> None:
        try:
            await api.unload_adapter(folder.name, self._start_timeout)
        except ServerRefused as refused:
            if refused.status != 404:  # a restarted server does not know the adapter
                raise SamplerError(f"vLLM's server did not unload {folder.name!r}: {refused}") from refused

    async def _load(self, api: ServerApi, names: Sequence[str], *, full: bool, old: Path | None) -> None:
        if full and self._full_weights is not None:
            self._stale_weights = (
                "the last weight sync failed half-way, and the weights that the server has are unknown; restart it"
            )
            try:
                await api.call_workers("reload_weights", self._start_timeout, weights_path=str(self._full_weights))
                await api.call_workers("rllm_gym_repack_heads", self._start_timeout)
            except ServerLost:
                # vLLM takes its layers apart to load them, and cannot restart the load.
                if self._server is not None:
                    self._server.kill()
                    self._stale_weights = ""
                raise
            await self._forget_prefixes(api)
            self._stale_weights = ""
        for folder in (self._adapters[name] for name in names):
            if folder is None:
                continue
            # A new name each time: vLLM caches what it once loaded under a name, its prefixes included, and an adapter
            # loaded in place is read from disk again for every step of the engine.
            await api.load_adapter(folder.name, folder, self._start_timeout)
            await self._forget_prefixes(api)
        if old is not None:
            await api.unload_adapter(old.name, self._start_timeout)

    async def _restore(self) -> None:
        """Load the last weights into a new server."""
        assert self._api is not None
        if self._base_adapter is not None:
            await self._api.load_adapter(self._base_adapter.name, self._base_adapter, self._start_timeout)
        if self._full_weights is not None or any(self._adapters.values()):
            await self._load(self._api, list(self._adapters), full=True, old=None)
            await self._check(self._api, "after a restart", list(self._probes))

    async def _forget_prefixes(self, api: ServerApi) -> None:
        if not await api.reset_prefix_cache(self._timeout):
            raise SamplerError("vLLM did not clear its prefix cache, which belongs to older weights")

    async def _check(self, api: ServerApi, when: str, names: Sequence[str]) -> None:
        for name in names:
            probe = self._probes.get(name)
            if probe is not None:
                self._compare(probe, await api.score(self._served(name), probe.ids, self._timeout), when)
        self._stale_weights = ""

    async def _put_to_sleep(self, level: int) -> None:
        async with self._lock.write():
            await (await self._alive()).sleep(level, self._start_timeout)
            self._asleep = level

    async def _wake_up(self) -> None:
        async with self._lock.write():
            api = await self._alive()
            await api.wake_up(self._start_timeout)
            level, self._asleep = self._asleep, 0
            if level == 2 and self._full_weights is None:
                await api.call_workers("reload_weights", self._start_timeout)
                await api.call_workers("rllm_gym_repack_heads", self._start_timeout)
            for name, old in list(self._adapters.items()):
                if old is not None:
                    self._serial += 1
                    self._adapters[name] = old.rename(old.with_name(f"adapter-{self._serial}"))
                    await self._unload(api, old)
            await self._load(api, list(self._adapters), full=level == 2, old=None)
            await self._check(api, "after wake()", list(self._probes))


def _log_file(log: str | Path | None) -> tuple[Path, bool]:
    if log is not None:
        return Path(log), False
    handle, name = tempfile.mkstemp(prefix=f"rllm-gym-vllm-{os.getpid()}-", suffix=".log")
    os.close(handle)
    return Path(name), True


async def _disconnect(connected: list[ServerApi], servers: list[ServerProcess]) -> None:
    for api in connected:
        await api.close()
    for server in servers:
        # While this loop runs: the kernel kills the server with the thread that started it.
        if not server.exit_description:
            await asyncio.to_thread(server.stop)


def _abandon(servers: list[ServerProcess], folder: Path) -> None:
    """Free what the client's event loop did not."""
    for server in servers:
        server.stop()
    remove_private_folder(folder)
