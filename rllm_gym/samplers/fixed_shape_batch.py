"""Deterministic decoding: every number is a function of the request and the weights alone, bit for bit.

Floating-point sums depend on the shapes they are computed in. Here all shapes are fixed: prompts are computed alone, in
chunks of 64 tokens at fixed positions; every decoding step has the same number of rows, possibly most of them empty,
and as many positions as the row's own length requires. Only whole chunks of prompts are kept between turns, which any
other request would have computed identically; so the result does not depend on the cache, the order of arrival, or the
rest of the batch. A check at the start confirms that rows do not depend on their position.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rllm_gym.samplers.decode_batch import DecodeBatch, DecodeJob
from rllm_gym.samplers.prefix_cache import CachedPrefix

_CHUNK = 64
_TRIALS = 12


class FixedShapeDecodeBatch(DecodeBatch):
    """A :class:`~rllm_gym.samplers.decode_batch.DecodeBatch` with fixed shapes.

    It needs one torch thread: threads split sums, and the splits depend on the number of threads.
    """

    _block = _CHUNK

    def _make_tables(self, rows: int) -> None:
        # The tables have a row for each row of a step, occupied or not.
        self._rows = self._find_rows()
        self._max_batch = min(self._max_batch, self._rows)
        super()._make_tables(self._rows)

    def fits(self, more: list[DecodeJob]) -> bool:
        return True  # the rows are allocated whether they are occupied or not

    def _find_rows(self) -> int:
        """Return a number of rows for which equal rows give equal results at any position; 1 in the worst case."""
        # Multiples of 32: vector loops over whole tensors then have no remainder, which other code would compute.
        least = -(-self._max_batch // 32) * 32
        for rows in (least, -(-least // 64) * 64, -(-least // 128) * 128):
            self._kv.max_slots = rows
            self._kv.reserve(rows, 2 * _CHUNK)
            if self._rows_agree(rows):
                return rows
        return 1

    def _rows_agree(self, rows: int) -> bool:
        slots_N1 = torch.arange(rows, device=self._device).unsqueeze(1)
        for position in range(_TRIALS):
            ids_N1 = torch.full((rows, 1), position + 1, device=self._device)
            logits_NV = self._kv.forward(ids_N1, torch.full_like(ids_N1, position), slots_N1, _CHUNK)[:, -1]
            prob_NV = torch.log_softmax(logits_NV.float(), dim=-1).exp()
            if not (
                torch.equal(logits_NV, logits_NV[:1].expand_as(logits_NV)) and bool((prob_NV == prob_NV[:1]).all())
            ):
                return False
        return True

    # Joining

    def add(self, jobs: list[DecodeJob]) -> None:
        begin = len(self.jobs)
        self.jobs.extend(jobs)
        longest = max(len(job.context) for job in jobs)
        self._kv.reserve(self._rows, _span(longest + 1))
        self._start(begin)
        # The last token of a prompt goes through a step, like a sampled token.
        self._ints[0, begin : len(self.jobs)] = torch.tensor([job.context[-1] for job in jobs])
        for slot, job in enumerate(jobs, begin):
            ids = job.context
            hashes = self._prefixes.hashes(ids)
            source, length = self._prefixes.find(ids, len(ids) - 1, hashes)
            length -= length % _CHUNK
            if source is not None and length:
                self._copy_prefix(source, length, slot)
            for start in range(length, len(ids) - 1, _CHUNK):
                self._compute_chunk(slot, ids, start)
            # Only whole chunks that were computed as a prompt may be shared.
            full_chunks = (len(ids) - 1) // _CHUNK
            job.source = CachedPrefix(ids[: full_chunks * _CHUNK], slot=slot, hashes=hashes[:full_chunks])
            self._prefixes.add(job.source)

    def _compute_chunk(self, slot: int, ids: tuple[int, ...], start: int) -> None:
        """Compute keys and values of tokens ``start … start + 64``, except the prompt's last: a step computes it."""
        end = min(start + _CHUNK, len(ids) - 1)
        pad = [0] * (_CHUNK - (end - start))
        tokens = list(ids[start:end]) + pad
        slots = [slot] * (end - start) + [self._kv.slots] * len(pad)
        positions = list(range(start, start + _CHUNK))
        ids_1Q, slots_1Q, positions_1Q = torch.tensor([[tokens], [slots], [positions]], device=self._device)
        self._kv.forward(ids_1Q, positions_1Q, slots_1Q, _span(start + _CHUNK), first=slot)
        self.prefilled += end - start

    # Stepping

    def step(self) -> None:
        count = len(self.jobs)
        spans = [_span(len(job.request.ids) + len(job.ids)) for job in self.jobs]
        self._kv.reserve(self._rows, max(spans))
        logits_NV = torch.empty(0)
        for span in sorted(set(spans)):
            takes_part = torch.zeros(self._rows, dtype=torch.bool)
            takes_part[:count] = torch.tensor([own == span for own in spans])
            takes_part = takes_part.to(self._device)
            tokens, positions = torch.where(takes_part, self._ints[:2], 0)
            slots = torch.where(takes_part, self._slot_numbers, self._kv.slots)
            logits = self._kv.forward(tokens.unsqueeze(1), positions.unsqueeze(1), slots.unsqueeze(1), span)[:, -1]
            if logits_NV.numel():
                logits_NV = torch.where(takes_part.unsqueeze(1), logits, logits_NV)
            else:
                logits_NV = logits
        self._append_tokens(logits_NV, 0, count)

    def _draw(self, logits_NV: Tensor, begin: int, end: int, cut: bool) -> tuple[Tensor, Tensor]:
        # Use all rows, so that sampling has a fixed shape too.
        tokens_N, logp_N = super()._draw(logits_NV, 0, self._rows, cut)
        return tokens_N[begin:end], logp_N[begin:end]

    def _keep_prefix(self, slot: int, job: DecodeJob) -> None:
        self._prefixes.remove(job.source)
        ids: tuple[int, ...] = job.source.ids
        if not job.keep or not ids:
            return
        kept: Any = self._kv.take(slot, len(ids))
        size = len(ids) * self._kv.bytes_per_token
        self._prefixes.keep(self._name(job), CachedPrefix(ids, kept=kept, size=size, hashes=job.source.hashes))


def _span(length: int) -> int:
    """Return the number of positions for a row of this length: 64, 128, 256, … so that few shapes occur."""
    span = _CHUNK
    while span < length:
        span *= 2
    return span
