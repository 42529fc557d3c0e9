"""Decode the replies of one set of weights: slots, computed prefixes, and one step for all replies.

A request goes through these states: it joins, its prompt is computed from the longest available prefix, one token is
sampled per step, and when it is finished its keys and values are kept for the conversation's next turn.
``decode_loop`` decides when requests join.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from rllm_gym.samplers.cuda_graphs import CudaGraphSteps
from rllm_gym.samplers.kv_slots import KVSlots
from rllm_gym.samplers.prefix_cache import CachedPrefix, PrefixCache
from rllm_gym.samplers.protocol import Completion, SamplerError, SamplingRequest
from rllm_gym.samplers.token_sampling import draw_tokens

_BLOCK = 16
_PREFILL_TOKENS = 4096  # maximum number of new tokens in one pass
_STOP_MARGIN = 8
_NAN_FINISH = "nan"
_SEED_BITS = (1 << 128) - 1


@dataclass(eq=False, slots=True)
class DecodeJob:
    """One request and the callback for its result.

    Attributes:
        done: Called from the decode thread with the completion or the exception; ``flush`` follows.
        sampled: Called from the decode thread with each token but the last; ``flush`` follows.
        ids: The tokens sampled so far: some, if the job was suspended and joins again.
        version: Version of the weights that sampled the first token.
    """

    request: SamplingRequest
    limit: int
    stops: frozenset[int]
    done: Callable[[Completion | BaseException], None]
    sampled: Callable[[int], None] | None = None
    cancelled: bool = False
    keep: bool = True
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str = ""
    version: int | None = None
    source: CachedPrefix = field(init=False)

    @property
    def context(self) -> tuple[int, ...]:
        """The prompt and the tokens sampled so far."""
        return self.request.ids + tuple(self.ids)

    @property
    def max_length(self) -> int:
        """Number of tokens of the prompt and the longest reply together."""
        return len(self.request.ids) + self.limit

    @property
    def window(self) -> int:
        """Number of last tokens that can hold a stop string, at one byte or more per token."""
        return 4 * max(map(len, self.request.params.stop)) + _STOP_MARGIN


class DecodeBatch:
    """Decodes the replies of one model in one batch. Used by one thread.

    Args:
        model: The decoder.
        decode: Function from ids to text without special tokens.
        max_batch: Maximum number of replies in progress.
        cache_bytes: Maximum memory for kept prefixes.
        slot_bytes: Maximum memory for the replies in progress; ``None`` for the default.

    Attributes:
        jobs: The replies in progress, by slot.
        version: Version of the weights.
        prefilled: Number of prompt tokens computed so far.
    """

    _block = _BLOCK

    def __init__(
        self,
        model: nn.Module,
        decode: Callable[[list[int]], str],
        *,
        max_batch: int,
        cache_bytes: int,
        slot_bytes: int | None,
    ) -> None:
        self._model = model
        self._decode = decode
        self._max_batch = max_batch
        self._kv = KVSlots(model, max_batch, slot_bytes)
        self.slot_bytes = self._kv.max_bytes
        self._device = self._kv.device
        self._static = CudaGraphSteps.of(self._kv, max_batch)
        self._prefixes = PrefixCache(self._block, cache_bytes)
        self.jobs: list[DecodeJob] = []
        self.version = 0
        self.prefilled = 0
        self._unnamed = 0
        self._make_tables(max_batch)

    def _make_tables(self, rows: int) -> None:
        self._ints = torch.zeros(4, rows, dtype=torch.long, device=self._device)
        self._floats = torch.ones(2, rows, dtype=torch.float32, device=self._device)
        self._uniform = torch.ones(rows, 64, dtype=torch.float64, device=self._device)
        self._slot_numbers = torch.arange(rows, device=self._device)

    # Called by the decode loop

    @property
    def max_batch(self) -> int:
        """Maximum number of replies in progress."""
        return self._max_batch

    def fits(self, more: list[DecodeJob]) -> bool:
        """Return whether these jobs fit the slot memory with those in progress; a single job is always allowed."""
        jobs = [*self.jobs, *more]
        return len(jobs) == 1 or self._kv.fits(len(jobs), max(job.max_length for job in jobs))

    def eval_mode(self) -> None:
        """Turn off dropout: a trainer may share this model."""
        if self._model.training:
            self._model.eval()

    def remove_cancelled(self) -> None:
        """Remove the jobs that were cancelled."""
        gone = [slot for slot, job in enumerate(self.jobs) if job.cancelled]
        if gone:
            for slot in gone:
                self._prefixes.remove(self.jobs[slot].source)
            self._compact(gone)

    def forget(self, conversation: str) -> None:
        """Clear what is kept of a conversation, and keep nothing of its reply in progress."""
        self._prefixes.drop(conversation)
        for job in self.jobs:
            if job.request.conversation == conversation:
                job.keep = False

    def set_version(self, version: int) -> None:
        """Clear everything that was computed with the old weights."""
        self._prefixes.clear()
        self.version = version

    def forget_steps(self) -> None:
        """Clear the recorded steps: the weights have moved, or other modules take part."""
        if self._static is not None:
            self._static.forget()

    def suspend(self) -> None:
        """Remove all jobs; they can join again with :meth:`add`."""
        for job in self.jobs:
            self._prefixes.remove(job.source)
        self.jobs = []

    def limit_memory(self, *, cache_bytes: int, slot_bytes: int) -> None:
        """Change the memory limits. No reply may be in progress."""
        self._prefixes.limit(cache_bytes)
        self._kv.max_bytes = slot_bytes
        self._kv.free()

    def clear(self) -> None:
        """Clear the replies in progress and everything cached."""
        self.jobs = []
        self._prefixes.clear()

    # Joining

    def add(self, jobs: list[DecodeJob]) -> None:
        """Give jobs the slots after the running ones, compute their prompts, and sample a token of each."""
        begin = len(self.jobs)
        leaders: dict[tuple[int, ...], list[DecodeJob]] = {}
        for job in jobs:
            leaders.setdefault(job.context, []).append(job)
        hashes = {ids: self._prefixes.hashes(ids) for ids in leaders}
        found = {ids: self._prefixes.find(ids, len(ids) - 1, hashes[ids]) for ids in leaders}
        order = sorted(leaders, key=lambda ids: len(ids) - found[ids][1])
        followers = [(number, job) for number, ids in enumerate(order) for job in leaders[ids][1:]]
        self.jobs.extend(leaders[ids][0] for ids in order)
        self.jobs.extend(job for _, job in followers)
        self._kv.reserve(len(self.jobs), self._longest() + 1)
        self._start(begin)
        for slot, ids in enumerate(order, begin):
            self.jobs[slot].source.hashes = hashes[ids]
            source, length = found[ids]
            if source is not None:
                self._copy_prefix(source, length, slot)
        logits_NV = self._prefill(begin, order, [found[ids][1] for ids in order])
        for slot, (number, job) in enumerate(followers, begin + len(order)):
            self._kv.put(slot, *self._kv.view(begin + number, len(job.context)))
        if followers:
            rows = [*range(len(order)), *(number for number, _ in followers)]
            logits_NV = logits_NV[torch.tensor(rows, device=self._device)]
        self._append_tokens(logits_NV, begin, len(self.jobs))

    def _start(self, begin: int) -> None:
        """Set up the rows of the jobs that joined, from ``begin`` on."""
        jobs = self.jobs[begin:]
        longest = max(job.limit for job in jobs)
        if longest >= self._uniform.shape[1]:
            # One more than is sampled: with fixed shapes, the rows of finished replies are read too.
            wider = torch.ones(self._uniform.shape[0], longest + 1, dtype=torch.float64, device=self._device)
            wider[:, : self._uniform.shape[1]] = self._uniform
            self._uniform = wider
        uniform = np.ones((len(jobs), longest))
        ints, floats = [], []
        for row, job in enumerate(jobs):
            params = job.request.params
            if params.temperature > 0:
                # 1 - u is never 0, so that a token of probability 0 is never sampled.
                generator = np.random.Generator(np.random.PCG64(job.request.seed & _SEED_BITS))
                uniform[row, : job.limit] -= generator.random(job.limit)
            # The last token (set by the next draw), its position, number of tokens sampled, top_k.
            ints.append((0, len(job.context) - 1, len(job.ids), params.top_k))
            floats.append((params.temperature, params.top_p))
            job.source = CachedPrefix(job.context, slot=begin + row)
            if job.version is None:
                job.version = self.version
        rows = slice(begin, len(self.jobs))
        self._uniform[rows, :longest] = torch.from_numpy(uniform).to(self._device)
        self._ints[:, rows] = torch.tensor(ints, device=self._device).T
        self._floats[:, rows] = torch.tensor(floats, device=self._device).T

    def _copy_prefix(self, source: CachedPrefix, length: int, slot: int) -> None:
        if source.kept is not None:
            keys, values = source.kept
            self._kv.put(slot, keys[:, :, :length], values[:, :, :length])
        else:
            self._kv.put(slot, *self._kv.view(source.slot, length))

    def _prefill(self, begin: int, prompts: list[tuple[int, ...]], lengths: list[int]) -> Tensor:
        """Compute the rest of each prompt, sorted by its length; return logits ``[N, V]`` of the last tokens."""
        logits = []
        first = 0
        while first < len(prompts):
            last = first + 1
            # Rows of similar length share a pass: padding at most doubles the work.
            base = len(prompts[first]) - lengths[first]
            while last < len(prompts):
                rest = len(prompts[last]) - lengths[last]
                if rest > max(2 * base, 32) or rest * (last + 1 - first) > _PREFILL_TOKENS:
                    break
                last += 1
            logits.append(self._prefill_rows(begin + first, prompts[first:last], lengths[first:last]))
            first = last
        for slot in range(begin, begin + len(prompts)):
            job = self.jobs[slot]
            self._prefixes.add(job.source)
        return torch.cat(logits)

    def _prefill_rows(self, begin: int, prompts: list[tuple[int, ...]], lengths: list[int]) -> Tensor:
        """Compute prompts in adjacent slots, padded on the left so that all end in the last column."""
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
        return max(len(job.request.ids) + len(job.ids) for job in self.jobs)

    # Stepping

    def step(self) -> None:
        """Sample one token for every running reply."""
        count = len(self.jobs)
        tokens, positions = self._ints[0, :count], self._ints[1, :count]
        longest = self._longest()
        if self._static is not None and self._kv.is_plain:
            self._append_tokens(self._static.logits(tokens, positions, longest), 0, count)
            return
        self._kv.reserve(count, longest)
        span = min(-(-longest // 16) * 16, self._kv.length)
        slots_N1 = self._slot_numbers[:count].unsqueeze(1)
        logits_NV = self._kv.forward(tokens.unsqueeze(1), positions.unsqueeze(1), slots_N1, span)[:, -1]
        self._append_tokens(logits_NV, 0, count)

    def _append_tokens(self, logits_NV: Tensor, begin: int, end: int) -> None:
        """Sample a token for each row ``begin … end``, and remove the finished replies."""
        ints = self._ints[:, begin:end]
        jobs = self.jobs[begin:end]
        cut = any(job.request.params.top_k or job.request.params.top_p < 1 for job in jobs)
        tokens_N, logp_N = self._draw(logits_NV, begin, end, cut)
        ints[0] = tokens_N
        ints[1:3] += 1
        leaving = []
        # One transfer: float64 holds every token id exactly.
        tokens, logps = torch.stack([tokens_N.double(), logp_N.double()]).tolist()
        for slot, job, number, logp in zip(range(begin, end), jobs, tokens, logps, strict=True):
            ids, token = job.ids, int(number)
            ids.append(token)
            job.logprobs.append(logp)
            if logp != logp:  # NaN
                job.finish = _NAN_FINISH
            elif token in job.stops or (job.request.params.stop and self._meets_stop(job)):
                job.finish = "stop"
            elif len(ids) >= job.limit:
                job.finish = "length"
            else:
                if job.sampled is not None:
                    job.sampled(token)
                continue
            leaving.append(slot)
        if leaving:
            for slot in leaving:
                self._finish(slot)
            self._compact(leaving)

    def _draw(self, logits_NV: Tensor, begin: int, end: int, cut: bool) -> tuple[Tensor, Tensor]:
        ints, floats = self._ints[:, begin:end], self._floats[:, begin:end]
        uniform_N = self._uniform[begin:end].gather(1, ints[2].unsqueeze(1)).squeeze(1)
        greedy = any(job.request.params.temperature == 0 for job in self.jobs[begin:end])
        return draw_tokens(
            logits_NV, floats[0], uniform_N, floats[1] if cut else None, ints[3] if cut else None, greedy=greedy
        )

    def _meets_stop(self, job: DecodeJob) -> bool:
        tail = self._decode(job.ids[-job.window :])
        return any(stop in tail for stop in job.request.params.stop)

    def _finish(self, slot: int) -> None:
        job = self.jobs[slot]
        if job.finish == _NAN_FINISH:
            self._prefixes.remove(job.source)
            job.done(
                SamplerError("the model returns NaN log-probs: its weights have diverged; go back to a checkpoint")
            )
            return
        self._keep_prefix(slot, job)
        text = self._decode(job.ids)
        cut = min((text.find(stop) for stop in job.request.params.stop if stop in text), default=None)
        job.done(
            Completion(
                tuple(job.ids),
                tuple(job.logprobs),
                text if cut is None else text[:cut],
                job.finish,
                self.version if job.version is None else job.version,
            )
        )

    def _keep_prefix(self, slot: int, job: DecodeJob) -> None:
        """Keep the keys and values of a slot for the conversation's next turn."""
        self._prefixes.remove(job.source)
        if not job.keep:
            return
        # The last sampled token has not been through the model.
        ids = job.request.ids + tuple(job.ids[:-1])
        kept = self._kv.take(slot, len(ids))
        size = len(ids) * self._kv.bytes_per_token
        self._prefixes.keep(self._name(job), CachedPrefix(ids, kept=kept, size=size, hashes=job.source.hashes))

    def _name(self, job: DecodeJob) -> object:
        if job.request.conversation:
            return job.request.conversation
        self._unnamed += 1
        return self._unnamed

    def _compact(self, leaving: list[int]) -> None:
        """Move the last rows into the slots that became free, so that the running rows stay adjacent."""
        remaining = len(self.jobs) - len(leaving)
        gaps = [slot for slot in leaving if slot < remaining]
        gone = set(leaving)
        movers = [slot for slot in range(remaining, len(self.jobs)) if slot not in gone]
        if gaps:
            sources = torch.tensor(movers, device=self._device)
            targets = torch.tensor(gaps, device=self._device)
            longest = 0
            for source, target in zip(movers, gaps, strict=True):
                job = self.jobs[source]
                self.jobs[target] = job
                job.source.slot = target
                longest = max(longest, len(job.request.ids) + len(job.ids))
            self._kv.move(sources, targets, longest)
            self._ints[:, targets] = self._ints[:, sources]
            self._floats[:, targets] = self._floats[:, sources]
            self._uniform[targets] = self._uniform[sources]
        del self.jobs[remaining:]
