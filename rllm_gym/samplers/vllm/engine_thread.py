"""The thread that runs a vLLM engine in this process: requests join and leave between its steps.

An operation that must not overlap with replies in progress (new weights, sleep) is an :class:`EngineCall`: earlier
replies finish first, later ones wait.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rllm_gym.samplers.protocol import SamplerError, unknown_weights


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
    """

    ids: tuple[int, ...]
    params: Any
    done: Callable[[Any], None]
    weights: str = ""
    cancelled: bool = False
    engine_id: str = ""


@dataclass(eq=False, slots=True)
class EngineCall:
    """An operation that runs while no reply is in progress."""

    action: Callable[[Any], Any]
    done: Callable[[Any], None]


class EngineThread:
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
        self._inbox: deque[EngineRequest | EngineCall] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._failure: BaseException | None = None
        self._started = threading.Event()
        self.adapters: dict[str, Any] = {"": None}  # by name; None is the base
        self.base_adapter: Any = None  # serves the base where requests must have an adapter
        self.last_progress = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="rllm-gym-vllm", daemon=True)
        self._thread.start()
        if not self._started.wait(start_timeout):
            self._closing = True
            raise SamplerError(
                f"vLLM did not start within {start_timeout:g} s (start_timeout); a larger model needs more"
            )
        if self._failure is not None:
            raise self._failure

    def put(self, items: list[EngineRequest] | list[EngineCall]) -> None:
        """Queue requests or an operation, in order.

        Raises:
            SamplerError: The engine is closed or died.
        """
        with self._wake:
            if self._failure is not None:
                raise SamplerError(f"vLLM died: {self._failure}; make a new sampler") from self._failure
            if self._closing:
                raise SamplerError("this sampler is closed; make a new one")
            self._inbox.extend(items)
            self._wake.notify()

    def stop(self, timeout: float = 60.0) -> bool:
        """End the thread and free the engine; replies in progress fail. Return whether it ended in time."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            engine, free = self._open_engine()
        except BaseException as error:
            self._failure = error
            self._started.set()
            return
        self._started.set()
        queue: deque[EngineRequest | EngineCall] = deque()
        running: dict[str, EngineRequest] = {}
        try:
            self._serve(engine, queue, running)
        except BaseException as error:
            with self._wake:
                self._failure = SamplerError(f"{type(error).__name__}: {error}")
                self._failure.__cause__ = error
        finally:
            with self._wake:
                self._closing = True
                queue.extend(self._inbox)
            end = (
                SamplerError("the sampler was closed before this call finished")
                if self._failure is None
                else SamplerError(f"vLLM died during this call: {self._failure}; make a new sampler")
            )
            for item in [*running.values(), *queue]:
                item.done(end)
            self.adapters.clear()
            free()

    def _serve(self, engine: Any, queue: deque[EngineRequest | EngineCall], running: dict[str, EngineRequest]) -> None:
        number = 0
        while True:
            with self._wake:
                while not (self._inbox or queue or running or self._closing):
                    self._wake.wait()
                queue.extend(self._inbox)
                self._inbox.clear()
                if self._closing:
                    return
            self.last_progress = time.monotonic()
            gone = [name for name, draw in running.items() if draw.cancelled]
            if gone:
                engine.abort_request([running.pop(name).engine_id for name in gone], internal=True)
            while queue:
                item = queue[0]
                if isinstance(item, EngineCall):
                    if running:
                        break
                    self._do(item, engine)
                elif not item.cancelled:
                    number += 1
                    if self._add(engine, str(number), item):
                        running[str(number)] = item
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
            if output.finished and output.request_id in running:
                running.pop(output.request_id).done(output)
