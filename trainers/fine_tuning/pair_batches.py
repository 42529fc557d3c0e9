"""Microbatches of pairs: log-probs of whole answers, and losses of pairs whose answers are in different
microbatches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from trainers.batching import MicroBatch, Row, make_micro_batches
from trainers.fine_tuning.preference_loss import PreferenceLoss
from trainers.fine_tuning.preferences import TokenPair
from trainers.model import Policy, TokenOutputs

LogProbs = Callable[[MicroBatch], Tensor]
"""A function that computes the log-prob of each sampled token of a microbatch."""


class PairBatches:
    """The pairs of one optimizer step as microbatches. The two answers of a pair are adjacent, so that they are
    usually in the same microbatch and share the computation of their prompt.

    Args:
        pairs: The pairs.
        policy: The model, for its layout options and device.
        tokens_per_microbatch: Maximum number of padded tokens.

    Attributes:
        batches: The microbatches. Their target ``answer`` is the answer of each token: twice the index of its pair,
            plus one for the rejected answer.
        tokens_P2: Number of tokens of each answer.
    """

    def __init__(self, pairs: Sequence[TokenPair], policy: Policy, tokens_per_microbatch: int) -> None:
        self._device = policy.device
        self.tokens_P2 = torch.tensor([pair.num_trained for pair in pairs], dtype=torch.float32, device=policy.device)
        self.batches: list[MicroBatch] = []
        total = self.tokens_P2.sum().item()
        for chunk in _chunks(pairs, tokens_per_microbatch):
            rows = [row for index in chunk for row in _rows(pairs[index], index)]
            share = sum(row.num_sampled for row in rows) / total
            for batch in make_micro_batches(
                rows,
                tokens_per_microbatch=tokens_per_microbatch,
                share_prompts=policy.shares_prompts,
                costs=policy.costs,
            ):
                # Weights are relative to the rows of one call, which are only part of the step's rows.
                self.batches.append(replace(batch, weight_N=batch.weight_N * share).to(policy.device))
        touching: defaultdict[int, int] = defaultdict(int)
        for batch in self.batches:
            for pair in set((batch.targets["answer"].long() // 2).tolist()):
                touching[pair] += 1
        self._touching_P = torch.tensor([touching[index] for index in range(len(pairs))], device=policy.device)

    def answer_sums(self, batch: MicroBatch, logp_N: Tensor) -> Tensor:
        """Sum the log-probs of one microbatch's tokens by answer, ``(P, 2)``."""
        sums_A = torch.zeros(self.tokens_P2.numel(), dtype=logp_N.dtype, device=logp_N.device)
        return sums_A.index_add(0, batch.targets["answer"].long(), logp_N).view(-1, 2)

    @torch.no_grad()
    def logp(self, logprobs: LogProbs, batches: Sequence[MicroBatch] | None = None) -> Tensor:
        """Compute the log-probs ``(P, 2)`` of the answers, over all microbatches or the given ones."""
        sums_P2 = torch.zeros_like(self.tokens_P2)
        for batch in self.batches if batches is None else batches:
            sums_P2 += self.answer_sums(batch, logprobs(batch))
        return sums_P2

    def loss_of(
        self, loss: PreferenceLoss, ref_logp_P2: Tensor, logprobs: LogProbs, measured: dict[str, float]
    ) -> Callable[[TokenOutputs, MicroBatch], Tensor]:
        """Return a function that computes one microbatch's part of the mean loss over all pairs.

        If a pair is split over several microbatches, each of them needs the log-probs of the whole pair. They are
        computed first, without gradient; the gradients of the parts then sum to the gradient of the whole.

        Args:
            loss: The loss.
            ref_logp_P2: Log-probs of the answers under the reference.
            logprobs: Computes the log-probs under the current policy.
            measured: Accumulates the mean metrics over the pairs.
        """
        spread = [batch for batch in self.batches if bool((self._touches(batch) > 1).any())]
        whole_P2 = self.logp(logprobs, spread) if spread else torch.zeros_like(self.tokens_P2)

        def part(outputs: TokenOutputs, batch: MicroBatch) -> Tensor:
            here_P2 = self.answer_sums(batch, outputs.logp_N)
            touched_P = self._touches(batch)
            elsewhere_P2 = torch.where((touched_P > 1)[:, None], whole_P2 - here_P2.detach(), 0.0)
            chosen = touched_P > 0
            logp_P2, ref_P2, tokens_P2 = (here_P2 + elsewhere_P2)[chosen], ref_logp_P2[chosen], self.tokens_P2[chosen]
            loss_P = loss(logp_P2, ref_P2, tokens_P2)
            # The value of a split pair counts once in total, its gradient in each part.
            share_P = 1.0 / (touched_P[chosen] * len(touched_P))
            for name, value_P in loss.metrics(logp_P2, ref_P2, tokens_P2).items():
                measured[name] = measured.get(name, 0.0) + (share_P * value_P).sum().item()
            full = loss_P.sum() / len(touched_P)
            return full - full.detach() + (share_P * loss_P.detach()).sum()

        return part

    def _touches(self, batch: MicroBatch) -> Tensor:
        """Return for each pair 0 if the microbatch has none of its tokens, else the number of microbatches that have
        some.
        """
        touched_P = torch.zeros_like(self._touching_P)
        touched_P[batch.targets["answer"].long() // 2] = 1
        return touched_P * self._touching_P


def _chunks(pairs: Sequence[TokenPair], tokens: int) -> list[list[int]]:
    """Group pairs for common microbatches, longest first: padded, a group has at most ``tokens`` tokens."""
    order = sorted(range(len(pairs)), key=lambda index: -pairs[index].longest)
    chunks: list[list[int]] = []
    sequences = 0
    for index in order:
        more = len(pairs[index].chosen) + len(pairs[index].rejected)
        if chunks and (sequences + more) * pairs[chunks[-1][0]].longest <= tokens:
            chunks[-1].append(index)
            sequences += more
        else:
            chunks.append([index])
            sequences = more
    return chunks


def _rows(pair: TokenPair, index: int) -> list[Row]:
    return [
        Row(tokens.row().sequence, {"answer": np.full(tokens.num_trained, 2.0 * index + side)})
        for side, answer in enumerate((pair.chosen, pair.rejected))
        for tokens in answer
    ]
