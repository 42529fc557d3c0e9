"""The thread that decodes: requests join and leave a running batch between steps.

What lives here owns the slots, the kept prefixes and the order of things. It knows ids and weights; how callers wait
is ``torch_sampler``'s.

A request goes through: queued → (a free slot) → its prompt computed, from the longest beginning at hand → one token a
step → finished, its keys and values kept aside for the conversation's next turn.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rllm_gym.samplers.draw import draw_tokens
from rllm_gym.samplers.kv_slots import KVSlots
from rllm_gym.samplers.merged_weights import MergedWeights
from rllm_gym.samplers.prefix_store import PrefixStore, Source
from rllm_gym.samplers.protocol import Completion, Request, SamplerError, WeightUpdate
from rllm_gym.samplers.static_steps import StaticSteps

_BLOCK = 16
_PREFILL_TOKENS = 4096  # most new tokens in one pass
_STOP_MARGIN = 8
_BROKEN = "nan"
_SEED_BITS = (1 << 128) - 1


@dataclass(eq=False, slots=True)
class Job:
    """One request and who waits for it.

    Attributes:
        done: Called from the decode thread with the completion or the exception; ``flush`` follows.
    """

    request: Request
    limit: int
    stops: frozenset[int]
    done: Callable[[Completion | BaseException], None]
    cancelled: bool = False
    keep: bool = True
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str = ""
    source: Source = field(init=False)

    @property
    def most(self) -> int:
        """Tokens of the prompt and the longest reply together."""
        return len(self.request.ids) + self.limit

    @property
    def window(self) -> int:
        """Last tokens that can hold a stop string, each at least one byte of it."""
        return 4 * max(map(len, self.request.params.stop)) + _STOP_MARGIN


@dataclass(eq=False, slots=True)
class Push:
    """New weights, and who waits for them."""

    update: WeightUpdate
    done: Callable[[int | BaseException], None]


class DecodeLoop:
    """Runs jobs in a thread of its own. Closed with :meth:`stop`.

    Args:
        model: The decoder.
        decode: Ids to text, special tokens left out.
        flush: Called after each step, from the decode thread: what is done can be delivered, all at once.
        max_batch: Most replies under way at once.
        cache_bytes: Most memory for kept prefixes.
        slot_bytes: Most memory for the replies under way.
        num_threads: torch threads of this thread; ``None`` leaves torch's setting.
    """

    _block = _BLOCK

    def __init__(
        self,
        model: Any,
        decode: Callable[[list[int]], str],
        flush: Callable[[], None],
        *,
        max_batch: int,
        cache_bytes: int,
        slot_bytes: int | None,
        num_threads: int | None,
    ) -> None:
        self._model = model
        self._decode = decode
        self._flush = flush
        self._max_batch = max_batch
        self._num_threads = num_threads
        self._cache_bytes = cache_bytes
        self._slot_bytes = slot_bytes
        self.version = 0
        self.prefilled = 0
        self._inbox: deque[Job | Push] = deque()
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

    # From any thread --------------------------------------------------------------------------------------

    def put(self, items: list[Job | Push]) -> None:
        """Queue jobs or a push, in order.

        Raises:
            SamplerError: The loop is stopped.
        """
        with self._wake:
            if self._closing:
                raise SamplerError("this sampler is closed; make a new one")
            self._inbox.extend(items)
            self._wake.notify()

    def release(self, conversation: str) -> None:
        """Forget a conversation, now or when its reply is done."""
        with self._wake:
            self._releases.append(conversation)
            self._wake.notify()

    def stop(self, timeout: float = 60.0) -> bool:
        """End the thread; what is under way fails. True if it ended in time."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    # The thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        queue: deque[Job | Push] = deque()
        with torch.inference_mode():
            try:
                if self._num_threads is not None:
                    torch.set_num_threads(self._num_threads)
                self._model.eval()
                self._setup()
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
                for item in [*self._jobs, *self._joining, *queue]:
                    item.done(closed)
                self._flush()

    def _serve(self, queue: deque[Job | Push]) -> None:
        while True:
            with self._wake:
                while not (self._inbox or queue or self._jobs or self._releases or self._closing):
                    self._wake.wait()
                queue.extend(self._inbox)
                self._inbox.clear()
                releases = list(self._releases)
                self._releases.clear()
                if self._closing:
                    return
            for name in releases:
                self._forget(name)
            try:
                self._turn(queue)
            except Exception as error:
                self._fail(error)
            self._flush()

    def _setup(self) -> None:
        self._weights = MergedWeights(self._model)
        self._layout = self._weights.layout
        self._kv = KVSlots(self._model, self._max_batch, self._slot_bytes)
        self._device = self._kv.device
        self._static = StaticSteps.of(self._kv, self._max_batch)
        self._store = PrefixStore(self._block, self._cache_bytes)
        self._jobs: list[Job] = []
        self._joining: list[Job] = []
        self._ints = torch.zeros(4, self._max_batch, dtype=torch.long, device=self._device)
        self._floats = torch.ones(2, self._max_batch, dtype=torch.float32, device=self._device)
        self._uniform = torch.ones(self._max_batch, 64, dtype=torch.float64, device=self._device)
        self._slot_numbers = torch.arange(self._max_batch, device=self._device)
        self._unnamed = 0

    def _turn(self, queue: deque[Job | Push]) -> None:
        """Between two steps: leave, join, or take new weights; then one step."""
        if self._model.training:
            # The trainer may share this model; dropout is not for sampling.
            self._model.eval()
        self._leave_cancelled()
        joining: list[Job] = []
        longest = max((job.most for job in self._jobs), default=0)
        while queue:
            item = queue[0]
            if isinstance(item, Push):
                # What was asked for before keeps the old weights; what comes after waits.
                if self._jobs or joining:
                    break
                self._take_weights(item)
            elif not item.cancelled:
                count = len(self._jobs) + len(joining) + 1
                if count > self._max_batch or not self._fits(count, max(longest, item.most)):
                    break
                longest = max(longest, item.most)
                joining.append(item)
            queue.popleft()
        self._joining = joining
        if joining:
            self._join(joining)
            self._joining = []
        if self._jobs:
            self._step()

    def _fits(self, count: int, longest: int) -> bool:
        """Whether so many replies of at most so many tokens fit the memory for slots; one alone always may try."""
        return count == 1 or self._kv.fits(count, longest)

    def _take_weights(self, push: Push) -> None:
        try:
            self._weights.apply(push.update)
        except Exception as error:
            push.done(error)
            return
        self._store.clear()
        if self._static is not None and self._weights.layout != self._layout:
            self._static.forget()
            self._layout = self._weights.layout
        self.version += 1
        push.done(self.version)

    def _fail(self, error: Exception) -> None:
        """Everything under way fails; what is queued is tried with clean slots."""
        failed = dict.fromkeys([*self._jobs, *self._joining])
        failure = SamplerError(
            f"the sampler failed while decoding {len(failed)} replies: {type(error).__name__}: {error}. If memory ran "
            "out, give a smaller max_batch, cache_bytes or context_length"
        )
        failure.__cause__ = error
        self._jobs, self._joining = [], []
        self._store.clear()
        for job in failed:
            job.done(failure)

    def _forget(self, name: str) -> None:
        self._store.drop(name)
        for job in self._jobs:
            if job.request.conversation == name:
                job.keep = False

    # Joining ----------------------------------------------------------------------------------------------

    def _join(self, jobs: list[Job]) -> None:
        """Give jobs slots behind the running ones and compute their prompts."""
        begin = len(self._jobs)
        leaders: dict[tuple[int, ...], list[Job]] = {}
        for job in jobs:
            leaders.setdefault(job.request.ids, []).append(job)
        hashes = {ids: self._store.hashes(ids) for ids in leaders}
        found = {ids: self._store.find(ids, len(ids) - 1, hashes[ids]) for ids in leaders}
        order = sorted(leaders, key=lambda ids: len(ids) - found[ids][1])
        followers = [(number, job) for number, ids in enumerate(order) for job in leaders[ids][1:]]
        self._jobs.extend(leaders[ids][0] for ids in order)
        self._jobs.extend(job for _, job in followers)
        self._kv.reserve(len(self._jobs), self._longest() + 1)
        self._start(begin)
        for slot, ids in enumerate(order, begin):
            self._jobs[slot].source.hashes = hashes[ids]
            source, length = found[ids]
            if source is not None:
                self._copy_prefix(source, length, slot)
        logits_NV = self._prefill(begin, order, [found[ids][1] for ids in order])
        for slot, (number, job) in enumerate(followers, begin + len(order)):
            self._kv.put(slot, *self._kv.view(begin + number, len(job.request.ids)))
        if followers:
            rows = [*range(len(order)), *(number for number, _ in followers)]
            logits_NV = logits_NV[torch.tensor(rows, device=self._device)]
        self._absorb(logits_NV, begin, len(self._jobs))

    def _start(self, begin: int) -> None:
        """Set up the rows of the jobs that joined at ``begin`` and behind."""
        jobs = self._jobs[begin:]
        longest = max(job.limit for job in jobs)
        if longest >= self._uniform.shape[1]:
            # One more than is drawn: where shapes are fixed, the rows of replies that ended are read along.
            wider = torch.ones(self._uniform.shape[0], longest + 1, dtype=torch.float64, device=self._device)
            wider[:, : self._uniform.shape[1]] = self._uniform
            self._uniform = wider
        uniform = np.ones((len(jobs), longest))
        ints, floats = [], []
        for row, job in enumerate(jobs):
            params = job.request.params
            if params.temperature > 0:
                # 1 - u: never 0, so that a token without probability is never drawn.
                generator = np.random.Generator(np.random.PCG64(job.request.seed & _SEED_BITS))
                uniform[row, : job.limit] -= generator.random(job.limit)
            # The last token (drawn soon), its position, tokens drawn, top_k.
            ints.append((0, len(job.request.ids) - 1, 0, params.top_k))
            floats.append((params.temperature, params.top_p))
            job.source = Source(job.request.ids, slot=begin + row)
        rows = slice(begin, len(self._jobs))
        self._uniform[rows, :longest] = torch.from_numpy(uniform).to(self._device)
        self._ints[:, rows] = torch.tensor(ints, device=self._device).T
        self._floats[:, rows] = torch.tensor(floats, device=self._device).T

    def _copy_prefix(self, source: Source, length: int, slot: int) -> None:
        if source.kept is not None:
            keys, values = source.kept
            self._kv.put(slot, keys[:, :, :length], values[:, :, :length])
        else:
            self._kv.put(slot, *self._kv.view(source.slot, length))

    def _prefill(self, begin: int, prompts: list[tuple[int, ...]], lengths: list[int]) -> Tensor:
        """Compute the rest of each prompt; logits ``[N, V]`` of their last tokens. Rows come by growing rest."""
        logits = []
        first = 0
        while first < len(prompts):
            last = first + 1
            # Rows of like length share a pass: padding at most doubles the work.
            base = len(prompts[first]) - lengths[first]
            while last < len(prompts):
                rest = len(prompts[last]) - lengths[last]
                if rest > max(2 * base, 32) or rest * (last + 1 - first) > _PREFILL_TOKENS:
                    break
                last += 1
            logits.append(self._prefill_rows(begin + first, prompts[first:last], lengths[first:last]))
            first = last
        for slot in range(begin, begin + len(prompts)):
            job = self._jobs[slot]
            self._store.add(job.source)
        return torch.cat(logits)

    def _prefill_rows(self, begin: int, prompts: list[tuple[int, ...]], lengths: list[int]) -> Tensor:
        """Compute prompts in neighbouring slots, padded on the left so that all end in the last column."""
        width = max(len(ids) - length for ids, length in zip(prompts, lengths, strict=True))
        rows, positions, slots = [], [], []
        for slot, (ids, length) in enumerate(zip(prompts, lengths, strict=True), begin):
            rest = len(ids) - length
            pad = [0] * (width - rest)
            rows.append(pad + list(ids[length:]))
            positions.append(pad + list(range(length, len(ids))))
            slots.append([self._kv.slots] * len(pad) + [slot] * rest)
            self.prefilled += rest
        ids_NQ, positions_NQ, slots_NQ = torch.tensor([rows, positions, slots], device=self._device)
        chunk = max(_PREFILL_TOKENS // len(prompts), 1)
        longest = max(map(len, prompts))
        logits = torch.empty(0)
        for column in range(0, width, chunk):
            end = min(column + chunk, width)
            logits = self._kv.forward(
                ids_NQ[:, column:end],
                positions_NQ[:, column:end],
                slots_NQ[:, column:end],
                longest,
                first=begin,
            )
        return logits[:, -1]

    def _longest(self) -> int:
        return max(len(job.request.ids) + len(job.ids) for job in self._jobs)

    # Stepping ---------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """One token for every running reply."""
        count = len(self._jobs)
        tokens, positions = self._ints[0, :count], self._ints[1, :count]
        longest = self._longest()
        if self._static is not None and self._kv.is_plain:
            self._absorb(self._static.logits(tokens, positions, longest), 0, count)
            return
        self._kv.reserve(count, longest)
        span = min(-(-longest // 16) * 16, self._kv.length)
        slots_N1 = self._slot_numbers[:count].unsqueeze(1)
        logits_NV = self._kv.forward(tokens.unsqueeze(1), positions.unsqueeze(1), slots_N1, span)[:, -1]
        self._absorb(logits_NV, 0, count)

    def _absorb(self, logits_NV: Tensor, begin: int, end: int) -> None:
        """Draw a token for each row ``begin … end``, and let the finished leave."""
        ints = self._ints[:, begin:end]
        jobs = self._jobs[begin:end]
        cut = any(job.request.params.top_k or job.request.params.top_p < 1 for job in jobs)
        tokens_N, logp_N = self._draw(logits_NV, begin, end, cut)
        ints[0] = tokens_N
        ints[1:3] += 1
        leaving = []
        for slot, job, token, logp in zip(range(begin, end), jobs, tokens_N.tolist(), logp_N.tolist(), strict=True):
            ids = job.ids
            ids.append(token)
            job.logprobs.append(logp)
            if logp != logp:  # NaN
                job.finish = _BROKEN
            elif token in job.stops or (job.request.params.stop and self._meets_stop(job)):
                job.finish = "stop"
            elif len(ids) >= job.limit:
                job.finish = "length"
            else:
                continue
            leaving.append(slot)
        if leaving:
            for slot in leaving:
                self._finish(slot)
            self._close_gaps(leaving)

    def _draw(self, logits_NV: Tensor, begin: int, end: int, cut: bool) -> tuple[Tensor, Tensor]:
        ints, floats = self._ints[:, begin:end], self._floats[:, begin:end]
        uniform_N = self._uniform[begin:end].gather(1, ints[2].unsqueeze(1)).squeeze(1)
        greedy = any(job.request.params.temperature == 0 for job in self._jobs[begin:end])
        return draw_tokens(
            logits_NV, floats[0], uniform_N, floats[1] if cut else None, ints[3] if cut else None, greedy=greedy
        )

    def _meets_stop(self, job: Job) -> bool:
        tail = self._decode(job.ids[-job.window :])
        return any(stop in tail for stop in job.request.params.stop)

    def _finish(self, slot: int) -> None:
        job = self._jobs[slot]
        if job.finish == _BROKEN:
            self._store.remove(job.source)
            job.done(
                SamplerError("the model gives NaN for log-probs: its weights have diverged; go back to a checkpoint")
            )
            return
        self._set_aside(slot, job)
        text = self._decode(job.ids)
        cut = min((text.find(stop) for stop in job.request.params.stop if stop in text), default=None)
        job.done(
            Completion(
                tuple(job.ids), tuple(job.logprobs), text if cut is None else text[:cut], job.finish, self.version
            )
        )

    def _set_aside(self, slot: int, job: Job) -> None:
        """Keep the keys and values of a slot for the conversation's next turn."""
        self._store.remove(job.source)
        if not job.keep:
            return
        # The last token drawn has not been through the model.
        ids = job.request.ids + tuple(job.ids[:-1])
        kept = self._kv.take(slot, len(ids))
        size = len(ids) * self._kv.bytes_per_token
        self._store.keep(self._name(job), Source(ids, kept=kept, size=size, hashes=job.source.hashes))

    def _name(self, job: Job) -> object:
        if job.request.conversation:
            return job.request.conversation
        self._unnamed += 1
        return self._unnamed

    def _close_gaps(self, leaving: list[int]) -> None:
        """Move the last rows into the slots that became free, so that the running ones stay neighbours."""
        remaining = len(self._jobs) - len(leaving)
        gaps = [slot for slot in leaving if slot < remaining]
        gone = set(leaving)
        movers = [slot for slot in range(remaining, len(self._jobs)) if slot not in gone]
        if gaps:
            sources = torch.tensor(movers, device=self._device)
            targets = torch.tensor(gaps, device=self._device)
            longest = 0
            for source, target in zip(movers, gaps, strict=True):
                job = self._jobs[source]
                self._jobs[target] = job
                job.source.slot = target
                longest = max(longest, len(job.request.ids) + len(job.ids))
            self._kv.move(sources, targets, longest)
            self._ints[:, targets] = self._ints[:, sources]
            self._floats[:, targets] = self._floats[:, sources]
            self._uniform[targets] = self._uniform[sources]
        del self._jobs[remaining:]

    def _leave_cancelled(self) -> None:
        gone = [slot for slot, job in enumerate(self._jobs) if job.cancelled]
        if gone:
            for slot in gone:
                self._store.remove(self._jobs[slot].source)
            self._close_gaps(gone)
