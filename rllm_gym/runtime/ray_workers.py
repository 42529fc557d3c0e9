"""Workers that are actors of a Ray cluster, so that the work runs on any of its machines."""

# ruff: noqa: ASYNC109 - the timeout is the contract: passing it kills the worker
from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import itertools
import os
import sys
from collections.abc import Sequence
from typing import Any

from rllm_gym.runtime.child import answer, cap_memory
from rllm_gym.runtime.errors import DeadlineExceeded, WorkerDied, WorkerStartFailed
from rllm_gym.runtime.process_worker import import_path
from rllm_gym.runtime.request_handler import OUT_OF_MEMORY, RequestHandler, WorkRequest, decode_reply, encode_request

START_TIMEOUT = 300.0
"""Seconds that an actor may take to start. Generous: a node starts its processes a few at a time."""

CPUS_PER_WORKER = 0.01
"""CPUs that an actor requests from a node. Environments mostly wait, so a hundred of them share a CPU; a node started
with ``num_cpus=0`` gets none.
"""

_LONGEST_REASON = 600  # characters of Ray's message in an error message
_worker_numbers = itertools.count()


def connect() -> None:
    """Connect to a cluster: the one this process is connected to, else the one at ``RAY_ADDRESS``.

    No cluster is started, and one that happens to run on this machine is not used: the user decides its size and owner,
    and when it ends.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        RuntimeError: There is no cluster.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"kind='ray' needs the package ray, which cannot be imported ({error}): pip install 'rllm-gym[ray]'",
            name=error.name,
        ) from error
    if ray.is_initialized():
        return
    if not os.environ.get("RAY_ADDRESS"):
        raise RuntimeError(
            "kind='ray' needs a Ray cluster, and this process is not connected to one: call ray.init() to "
            "start one on this machine, call ray.init(address='auto') to join a running one (`ray start "
            "--head`), or set RAY_ADDRESS"
        )
    try:
        ray.init()
    except ConnectionError as error:
        raise RuntimeError(
            f"kind='ray' cannot join the Ray cluster at RAY_ADDRESS={os.environ['RAY_ADDRESS']!r}: {_short(error)}"
        ) from error


class _RayActor:
    """The actor itself, on any node: executes requests one by one, as a worker process does."""

    def __init__(self, path: Sequence[str], preload: Sequence[str], memory_mb: int | None) -> None:
        # After the node's own entries: what the owner imports from a shared folder (on this machine, or a network
        # drive).
        sys.path += [entry for entry in path if entry not in sys.path]
        self._handler = RequestHandler()
        self._capped = memory_mb is not None
        for module in preload:
            importlib.import_module(module)
        if memory_mb is not None:
            cap_memory(memory_mb)

    def hello(self) -> int:
        return os.getpid()

    def answer(self, data: bytes) -> bytes:
        return answer(self._handler, data, capped=self._capped)


@functools.cache
def _actor_class() -> Any:
    import ray

    # The owner handles failures; Ray must not repeat the work elsewhere by itself.
    return ray.remote(num_cpus=CPUS_PER_WORKER, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")(
        _RayActor
    )


class RayWorker:
    """One actor. It executes one request at a time.

    Any failure to answer, including an exceeded deadline or a cancelled wait, kills it; then ``alive`` is False.
    """

    def __init__(self, preload: Sequence[str], memory_mb: int | None, pool_name: str) -> None:
        self.name = f"{pool_name}-{next(_worker_numbers)}"
        self.alive = True
        self.pid: int | None = None
        """Its process id, on its node."""
        self._memory_mb = memory_mb
        self._owner_pid = os.getpid()
        self._require_connection()
        self._actor = _actor_class().remote(import_path(), list(preload), memory_mb)

    def is_healthy(self) -> bool:
        return self.alive and _connected()

    def call(self, request: WorkRequest, timeout: float) -> Any:
        import ray

        data = encode_request(request)
        self._require_connection()
        try:
            if self.pid is None:
                self.pid = ray.get(self._actor.hello.remote(), timeout=START_TIMEOUT)
            reply = ray.get(self._actor.answer.remote(data), timeout=timeout)
        except TimeoutError:  # Ray's GetTimeoutError is a subclass
            raise self._deadline_error(request, timeout) from None
        except ray.exceptions.RayError as error:
            raise self._death_error(request, error) from error
        except BaseException:
            self.kill()
            raise
        return self._decode(reply, request)

    async def acall(self, request: WorkRequest, timeout: float) -> Any:
        import ray

        data = encode_request(request)
        self._require_connection()
        try:
            if self.pid is None:
                async with asyncio.timeout(START_TIMEOUT):
                    self.pid = await asyncio.wrap_future(self._actor.hello.remote().future())
            async with asyncio.timeout(timeout):
                reply = await asyncio.wrap_future(self._actor.answer.remote(data).future())
        except TimeoutError:
            raise self._deadline_error(request, timeout) from None
        except ray.exceptions.RayError as error:
            raise self._death_error(request, error) from error
        except BaseException:
            self.kill()
            raise
        return self._decode(reply, request)

    def kill(self) -> None:
        """End the actor's process. Safe to call twice, and does not wait."""
        if not self.alive:
            return
        self.alive = False
        if self._owner_pid == os.getpid() and _connected():  # after a disconnect, Ray has already ended it
            import ray

            with contextlib.suppress(ray.exceptions.RayError, RuntimeError, ValueError):
                ray.kill(self._actor, no_restart=True)

    def _require_connection(self) -> None:
        if not _connected():
            self.alive = False
            raise WorkerDied(
                f"worker {self.name} is lost: this process has disconnected from the Ray cluster (ray.shutdown())"
            )

    def _decode(self, reply: bytes, request: WorkRequest) -> Any:
        if reply == OUT_OF_MEMORY:
            self.kill()
        return decode_reply(reply, memory_mb=self._memory_mb, name=request.name)

    def _deadline_error(self, request: WorkRequest, timeout: float) -> Exception:
        self.kill()
        if self.pid is None:
            return WorkerStartFailed(
                f"worker {self.name} did not start within {START_TIMEOUT:g} s: the cluster is too busy, or no node has "
                f"{CPUS_PER_WORKER:g} CPU free; add nodes or ask for fewer workers"
            )
        return DeadlineExceeded(f"{request.name!r} did not finish within {timeout:g} s; worker {self.name} was killed")

    def _death_error(self, request: WorkRequest, error: Exception) -> Exception:
        if not self.alive:
            return WorkerDied(f"worker {self.name} was closed while {request.name!r} was running")
        self.kill()
        if self.pid is None:
            return WorkerStartFailed(
                f"worker {self.name} ended before it was ready: {_short(error)} (every node needs the same "
                "version of rllm-gym)"
            )
        hint = f"; its memory is capped at {self._memory_mb} MB" if self._memory_mb is not None else ""
        return WorkerDied(f"worker {self.name} ended during {request.name!r} ({_short(error)}{hint})")


def _connected() -> bool:
    import ray

    return bool(ray.is_initialized())


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"
