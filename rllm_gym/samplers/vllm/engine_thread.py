"""The thread that runs a vLLM engine in this process: requests join and leave between its steps.

An operation that must not overlap with replies in progress (new weights, sleep) is an :class:`EngineCall`: earlier
replies finish first, later ones wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rllm_gym.samplers.protocol import SamplerError, unknown_weights
from rllm_gym.samplers.sampler_thread import SamplerThread


class EngineLost(SamplerError):
    """An operation left the engine in a state from which it cannot continue; the engine is stopped."""


@dataclass(eq=False, slots=True)
class EngineRequest:
    """One request to the engine.

    Attributes:
        ids: The prompt.
        params: ``vllm.SamplingParams``.
        done: Called from the thread with the engine's output or an exception.
        weights: Name of the adapter to sample with.
        progress: Called from the thread with each output before the last, if ``params`` ask for them.
    """

    ids: tuple[int, ...]
    params: Any
    done: Callable[[Any], None]
    weights: str = ""
    progress: Callable[[Any], None] | None = None
    cancelled: bool = False
    engine_id: str = ""


@dataclass(eq=False, slots=True)
class EngineCall:
    """An operation that runs while no reply is in progress."""

    action: Callable[[Any], Any]
    done: Callable[[Any], None]


class EngineThread(SamplerThread):
    """Owns an engine and runs it in a thread. Close it with :meth:`stop`.

    Args:
        open_engine: Creates the engine, in the thread; returns it and a function that frees it.
        start_timeout: Seconds that this may take.

    Raises:
        SamplerError: The engine did not start in time.
        Exception: Raised by ``open_engine``.
    """

    def __init__(self, open_engine: Callable[[], tuple[Any, Callable[[], None]]], *, start_timeout: float) -> None:
        self._open_engine = open_engine
        self._engine: Any = None
        self._running: dict[str, EngineRequest] = {}
        self._number = 0
        self.adapters: dict[str, Any] = {"": None}  # by name; None is the base
        self.base_adapter: Any = None  # serves the base where requests must have an adapter
        self.last_progress = time.monotonic()
        super().__init__("rllm-gym-vllm", engine="vLLM", start_timeout=start_timeout)

    @contextmanager
    def _opened(self) -> Iterator[None]:
        self._engine, free = self._open_engine()
        try:
            yield
        finally:
            self.adapters.clear()
            free()

    def _has_work(self) -> bool:
        return bool(self._running)

    def _in_progress(self) -> list[EngineRequest]:
        return list(self._running.values())

    def _serve(self) -> None:
        engine, queue, running = self._engine, self._queue, self._running
        self.last_progress = time.monotonic()
        gone = [name for name, draw in running.items() if draw.cancelled]
        if gone:
            engine.abort_request([running.pop(name).engine_id for name in gone], internal=True)
        while queue:
            item: EngineRequest | EngineCall = queue[0]
            if isinstance(item, EngineCall):
                if running:
                    break
                self._do(item, engine)
            elif not item.cancelled:
                self._number += 1
                if self._add(engine, str(self._number), item):
                    running[str(self._number)] = item
            queue.popleft()
        if running:
            self._step(engine, running)

    def _do(self, engine_call: EngineCall, engine: Any) -> None:
        try:
            result = engine_call.action(engine)
        except EngineLost as error:
            engine_call.done(error)
            raise
        except Exception as error:
            result = error
        engine_call.done(result)

    def _add(self, engine: Any, name: str, request: EngineRequest) -> bool:
        if request.weights not in self.adapters:
            request.done(unknown_weights(request.weights, self.adapters))
            return False
        prompt = {"type": "token", "prompt_token_ids": list(request.ids)}
        adapter = self.adapters[request.weights] or self.base_adapter
        try:
            request.engine_id = engine.add_request(name, prompt, request.params, lora_request=adapter)
        except ValueError as error:  # vLLM rejected the request; the engine continues
            request.done(error)
            return False
        return True

    def _step(self, engine: Any, running: dict[str, EngineRequest]) -> None:
        for output in engine.step():
            request = running.get(output.request_id)
            if request is None:
                continue
            if output.finished:
                del running[output.request_id]
                request.done(output)
            elif request.progress is not None:
                request.progress(output)
