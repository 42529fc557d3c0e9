"""The decoding thread: requests join and leave running batches between steps.

This module decides the order of requests and weight updates, and which weights are served under which names. ``lane``
decodes the replies of one set of weights; ``torch_sampler`` contains the asynchronous interface for callers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rllm_gym.samplers.lane import Job, Lane
from rllm_gym.samplers.protocol import SamplerError, WeightUpdate, unknown_weights
from rllm_gym.samplers.weight_sets import WeightSets


@dataclass(eq=False, slots=True)
class Push:
    """A weight update and the callback for its result."""

    update: WeightUpdate
    done: Callable[[int | BaseException], None]


@dataclass(eq=False, slots=True)
class Drop:
    """A request to free weights and the callback for its result."""

    name: str
    done: Callable[[int | BaseException], None]


class DecodeLoop:
    """Runs jobs in a separate thread, with one ``Lane`` for each set of weights. Close it with :meth:`stop`.

    Args:
        model: The decoder.
        decode: Function from ids to text without special tokens.
        flush: Called after each step, from the decode thread, to deliver all finished results at once.
        lane: Class that decodes replies.
        max_batch: Maximum number of replies in progress.
        cache_bytes: Maximum memory for kept prefixes.
        slot_bytes: Maximum memory for the replies in progress.
        num_threads: torch threads of this thread; ``None`` leaves torch's setting.

    Attributes:
        version: Number of the last push.
    """

    def __init__(
        self,
        model: Any,
        decode: Callable[[list[int]], str],
        flush: Callable[[], None],
        *,
        lane: type[Lane],
        max_batch: int,
        cache_bytes: int,
        slot_bytes: int | None,
        num_threads: int | None,
    ) -> None:
        self._model = model
        self._decode = decode
        self._flush = flush
        self._lane_type = lane
        self._max_batch = max_batch
        self._num_threads = num_threads
        self._cache_bytes = cache_bytes
        self._slot_bytes = slot_bytes
        self.version = 0
        self._lanes: dict[str, Lane] = {}
        self._joining: dict[Lane, list[Job]] = {}
        self._prefilled_by_dropped = 0
        self._inbox: deque[Job | Push | Drop] = deque()
        self._releases: deque[str] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._ready: BaseException | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rllm-gym-sampler", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._ready is not None:
            raise self._ready

    # Called from any thread

    @property
    def prefilled(self) -> int:
        """Number of prompt tokens computed so far."""
        return self._prefilled_by_dropped + sum(lane.prefilled for lane in list(self._lanes.values()))

    def put(self, items: list[Job] | list[Push] | list[Drop]) -> None:
        """Queue jobs, a push or a drop, in order.

        Raises:
            SamplerError: The loop is stopped.
        """
        with self._wake:
            if self._closing:
                raise SamplerError("this sampler is closed; make a new one")
            self._inbox.extend(items)
            self._wake.notify()

    def release(self, conversation: str) -> None:
        """Clear the cache of a conversation, now or when its reply has finished."""
        with self._wake:
            self._releases.append(conversation)
            self._wake.notify()

    def stop(self, timeout: float = 60.0) -> bool:
        """End the thread; replies in progress fail. Return whether it ended in time."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    # Called in the decode thread

    def _run(self) -> None:
        queue: deque[Job | Push | Drop] = deque()
        with torch.inference_mode():
            try:
                if self._num_threads is not None:
                    torch.set_num_threads(self._num_threads)
                self._model.eval()
                self._weights = WeightSets(self._model)
                self._lanes[""] = self._make_lane("")
                self._layouts = {"": self._weights.layout("")}
            except BaseException as error:
                self._ready = error
                self._started.set()
                return
            self._started.set()
            try:
                self._serve(queue)
            finally:
                with self._wake:
                    self._closing = True
                    queue.extend(self._inbox)
                closed = SamplerError("the sampler was closed while this was under way")
                for item in [*self._under_way(), *queue]:
                    item.done(closed)
                self._flush()

    def _make_lane(self, name: str) -> Lane:
        return self._lane_type(
            self._weights.model(name),
            self._decode,
            max_batch=self._max_batch,
            cache_bytes=self._cache_bytes,
            slot_bytes=self._slot_bytes,
        )

    def _serve(self, queue: deque[Job | Push | Drop]) -> None:
        while True:
            with self._wake:
                while not (self._inbox or queue or self._busy() or self._releases or self._closing):
                    self._wake.wait()
                queue.extend(self._inbox)
                self._inbox.clear()
                releases = list(self._releases)
                self._releases.clear()
                if self._closing:
                    return
            for lane in self._lanes.values():
                for name in releases:
                    lane.forget(name)
            try:
                self._turn(queue)
            except Exception as error:
                self._fail(error)
            self._flush()

    def _turn(self, queue: deque[Job | Push | Drop]) -> None:
        """Between two steps, let jobs leave and join or load new weights; then run one step of every batch."""
        for lane in self._lanes.values():
            lane.evaluate()
            lane.leave_cancelled()
        while queue:
            item = queue[0]
            if isinstance(item, Job):
                if not item.cancelled and not self._admit(item):
                    break
            elif self._busy():
                # Earlier requests keep the old weights; later ones wait.
                break
            else:
                self._change_weights(item)
            queue.popleft()
        while self._joining:
            lane, jobs = next(iter(self._joining.items()))
            lane.join(jobs)
            del self._joining[lane]
        for lane in self._lanes.values():
            if lane.jobs:
                lane.step()

    def _admit(self, job: Job) -> bool:
        """Let a job join, or report to its callback that it cannot; return False while there is no room."""
        lane = self._lanes.get(job.request.weights)
        if lane is None:
            job.done(unknown_weights(job.request.weights, self._lanes))
            return True
        joining = self._joining.get(lane, [])
        if len(self._under_way()) == self._max_batch or len(lane.jobs) + len(joining) == lane.max_batch:
            return False
        if not lane.fits([*joining, job]):
            return False
        self._joining[lane] = [*joining, job]
        return True

    def _under_way(self) -> list[Job]:
        jobs = [*(lane.jobs for lane in self._lanes.values()), *self._joining.values()]
        return list(dict.fromkeys(job for some in jobs for job in some))

    def _busy(self) -> bool:
        return bool(self._joining) or any(lane.jobs for lane in self._lanes.values())

    def _fail(self, error: Exception) -> None:
        """Fail all jobs in progress; queued jobs are tried with clean slots."""
        failed = self._under_way()
        failure = SamplerError(
            f"the sampler failed while decoding {len(failed)} replies: {type(error).__name__}: {error}. If memory ran "
            "out, give a smaller max_batch, cache_bytes or context_length"
        )
        failure.__cause__ = error
        self._joining = {}
        for lane in self._lanes.values():
            lane.clear()
        for job in failed:
            job.done(failure)

    # Weights

    def _change_weights(self, item: Push | Drop) -> None:
        try:
            result = self._take(item.update) if isinstance(item, Push) else self._drop(item.name)
        except Exception as error:
            item.done(error)
        else:
            item.done(result)

    def _take(self, update: WeightUpdate) -> int:
        name = update.name
        if self._weights.apply(update):  # a new model, although the name may be known
            self._remove(name)
            try:
                self._lanes[name] = self._make_lane(name)
            except BaseException:
                self._weights.drop(name)
                raise
            self._share_memory()
        self.version += 1
        self._lanes[name].renew(self.version)
        self._forget_old_steps()
        return self.version

    def _drop(self, name: str) -> int:
        if not name:
            raise ValueError("the weights without a name cannot be dropped: push others, or close the sampler")
        if name not in self._lanes:
            raise unknown_weights(name, self._lanes)
        self._remove(name)
        self._weights.drop(name)
        self._share_memory()
        return self.version

    def _remove(self, name: str) -> None:
        lane = self._lanes.pop(name, None)
        self._layouts.pop(name, None)
        if lane is not None:
            self._prefilled_by_dropped += lane.prefilled

    def _share_memory(self) -> None:
        """Divide the memory of one ``Lane`` among all of them."""
        count = len(self._lanes)
        slot_bytes = self._lanes[""].slot_bytes // count
        for lane in self._lanes.values():
            lane.limit_memory(cache_bytes=self._cache_bytes // count, slot_bytes=slot_bytes)

    def _forget_old_steps(self) -> None:
        """Clear the recorded steps of batches whose weights moved: a push may move weights that others shared."""
        for name, lane in self._lanes.items():
            layout = self._weights.layout(name)
            if self._layouts.get(name) != layout:
                self._layouts[name] = layout
                lane.forget_steps()
