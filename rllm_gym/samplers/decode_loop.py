"""The decoding thread: requests join and leave running batches between steps.

This module decides the order of requests and weight updates, and which weights are served under which names.
``batch_type`` decodes the replies of one set of weights; ``torch_sampler`` contains the asynchronous interface for
callers.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from rllm_gym.samplers.decode_batch import DecodeBatch, DecodeJob
from rllm_gym.samplers.protocol import SamplerError, WeightUpdate, unknown_weights
from rllm_gym.samplers.sampler_thread import SamplerThread
from rllm_gym.samplers.weight_sets import WeightSets


@dataclass(eq=False, slots=True)
class WeightSync:
    """A weight update and the callback for its result."""

    update: WeightUpdate
    done: Callable[[int | BaseException], None]


@dataclass(eq=False, slots=True)
class WeightDrop:
    """A request to free weights and the callback for its result."""

    name: str
    done: Callable[[int | BaseException], None]


def current_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Make a GPU the calling thread's current device, on which CUDA graphs are recorded: in a new thread that is the
    first GPU, wherever the model is.
    """
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


class DecodeLoop(SamplerThread):
    """Runs jobs in a separate thread, with one ``DecodeBatch`` for each set of weights. Close it with :meth:`stop`.

    Args:
        model: The decoder.
        decode: Function from ids to text without special tokens.
        flush: Called after each step, from the decode thread, to deliver all finished results at once.
        batch_type: Class that decodes replies.
        max_batch: Maximum number of replies in progress.
        cache_bytes: Maximum memory for kept prefixes.
        slot_bytes: Maximum memory for the replies in progress.
        num_threads: torch threads of this thread; ``None`` leaves torch's setting.
        merge_adapters: Whether LoRA adapters are merged into the weights.

    Attributes:
        version: Number of the last weight sync.
    """

    def __init__(
        self,
        model: Any,
        decode: Callable[[list[int]], str],
        flush: Callable[[], None],
        *,
        batch_type: type[DecodeBatch],
        max_batch: int,
        cache_bytes: int,
        slot_bytes: int | None,
        num_threads: int | None,
        merge_adapters: bool = True,
    ) -> None:
        self._model = model
        self._merge_adapters = merge_adapters
        self._decode = decode
        self._deliver = flush
        self._batch_type = batch_type
        self._max_batch = max_batch
        self._num_threads = num_threads
        self._cache_bytes = cache_bytes
        self._slot_bytes = slot_bytes
        self.version = 0
        self._batches: dict[str, DecodeBatch] = {}
        self._joining: dict[DecodeBatch, list[DecodeJob]] = {}
        self._prefilled_by_dropped = 0
        self._releases: deque[str] = deque()
        super().__init__("rllm-gym-sampler", engine="the decoding thread")

    # Called from any thread

    @property
    def prefilled(self) -> int:
        """Number of prompt tokens computed so far."""
        return self._prefilled_by_dropped + sum(batch.prefilled for batch in list(self._batches.values()))

    def release(self, conversation: str) -> None:
        """Clear the cache of a conversation, now or when its reply has finished."""
        with self._wake:
            self._releases.append(conversation)
            self._wake.notify()

    # Called in the decode thread

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        with torch.inference_mode(), current_device(next(self._model.parameters()).device):
            if self._num_threads is not None:
                torch.set_num_threads(self._num_threads)
            self._model.eval()
            self._weights = WeightSets(self._model, merge_adapters=self._merge_adapters)
            self._batches[""] = self._make_batch("")
            self._layouts = {"": self._weights.layout("")}
            yield

    def _make_batch(self, name: str) -> DecodeBatch:
        return self._batch_type(
            self._weights.model(name),
            self._decode,
            max_batch=self._max_batch,
            cache_bytes=self._cache_bytes,
            slot_bytes=self._slot_bytes,
        )

    def _has_work(self) -> bool:
        return self._busy() or bool(self._releases)

    def _serve(self) -> None:
        while self._releases:
            name = self._releases.popleft()
            for batch in self._batches.values():
                batch.forget(name)
        try:
            self._between_steps()
        except Exception as error:
            self._fail(error)
        self._flush()

    def _flush(self) -> None:
        self._deliver()

    def _in_progress(self) -> list[DecodeJob]:
        return self._running_jobs()

    def _between_steps(self) -> None:
        """Between two steps, let jobs leave and join or load new weights; then run one step of every batch."""
        for batch in self._batches.values():
            batch.eval_mode()
            batch.remove_cancelled()
        queue = self._queue
        while queue:
            item: DecodeJob | WeightSync | WeightDrop = queue[0]
            if isinstance(item, DecodeJob):
                if not item.cancelled and not self._admit(item):
                    break
            elif self._busy():
                if not (isinstance(item, WeightSync) and item.update.in_flight):
                    break  # earlier requests keep the old weights; later ones wait
                queue.popleft()
                suspended = self._suspend()
                self._change_weights(item)
                queue.extendleft(reversed(suspended))
                continue
            else:
                self._change_weights(item)
            queue.popleft()
        while self._joining:
            batch, jobs = next(iter(self._joining.items()))
            batch.add(jobs)
            del self._joining[batch]
        for batch in self._batches.values():
            if batch.jobs:
                batch.step()

    def _admit(self, job: DecodeJob) -> bool:
        """Let a job join, or report to its callback that it cannot; return False while it does not fit."""
        batch = self._batches.get(job.request.weights)
        if batch is None:
            job.done(unknown_weights(job.request.weights, self._batches))
            return True
        joining = self._joining.get(batch, [])
        if len(self._running_jobs()) == self._max_batch or len(batch.jobs) + len(joining) == batch.max_batch:
            return False
        if not batch.fits([*joining, job]):
            return False
        self._joining[batch] = [*joining, job]
        return True

    def _running_jobs(self) -> list[DecodeJob]:
        jobs = [*(batch.jobs for batch in self._batches.values()), *self._joining.values()]
        return list(dict.fromkeys(job for some in jobs for job in some))

    def _busy(self) -> bool:
        return bool(self._joining) or any(batch.jobs for batch in self._batches.values())

    def _suspend(self) -> list[DecodeJob]:
        """Remove the jobs in progress from their batches; the tokens they have sampled stay with them."""
        jobs = self._running_jobs()
        self._joining = {}
        for batch in self._batches.values():
            batch.suspend()
        return jobs

    def _fail(self, error: Exception) -> None:
        """Fail all jobs in progress; queued jobs are tried with clean slots."""
        failed = self._running_jobs()
        failure = SamplerError(
            f"the sampler failed while decoding {len(failed)} replies: {type(error).__name__}: {error}. If memory ran "
            "out, give a smaller max_batch, cache_bytes or context_length"
        )
        failure.__cause__ = error
        self._joining = {}
        for batch in self._batches.values():
            batch.clear()
        for job in failed:
            job.done(failure)

    # Weights

    def _change_weights(self, item: WeightSync | WeightDrop) -> None:
        try:
            result = self._take(item.update) if isinstance(item, WeightSync) else self._drop(item.name)
        except Exception as error:
            item.done(error)
        else:
            item.done(result)

    def _take(self, update: WeightUpdate) -> int:
        name = update.name
        if self._weights.apply(update):  # a new model, although the name may be known
            self._remove(name)
            try:
                self._batches[name] = self._make_batch(name)
            except BaseException:
                self._weights.drop(name)
                raise
            self._share_memory()
        self.version += 1
        self._batches[name].set_version(self.version)
        self._forget_old_steps()
        return self.version

    def _drop(self, name: str) -> int:
        if not name:
            raise ValueError("the default weights (name='') cannot be dropped: load others, or close the sampler")
        if name not in self._batches:
            raise unknown_weights(name, self._batches)
        self._remove(name)
        self._weights.drop(name)
        self._share_memory()
        return self.version

    def _remove(self, name: str) -> None:
        batch = self._batches.pop(name, None)
        self._layouts.pop(name, None)
        if batch is not None:
            self._prefilled_by_dropped += batch.prefilled

    def _share_memory(self) -> None:
        """Divide the memory of one ``DecodeBatch`` among all of them."""
        count = len(self._batches)
        slot_bytes = self._batches[""].slot_bytes // count
        for batch in self._batches.values():
            batch.limit_memory(cache_bytes=self._cache_bytes // count, slot_bytes=slot_bytes)

    def _forget_old_steps(self) -> None:
        """Clear the recorded steps of batches whose weights moved: a weight sync may move weights that others share."""
        for name, batch in self._batches.items():
            layout = self._weights.layout(name)
            if self._layouts.get(name) != layout:
                self._layouts[name] = layout
                batch.forget_steps()
