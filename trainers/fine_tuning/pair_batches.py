"""Pairs as micro-batches: the log-probs of whole answers, and losses of pairs whose answers lie in different ones."""

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
"""The log-prob of each sampled token of a micro-batch."""


class PairBatches:
    """The pairs of one optimizer step as micro-batches. The two answers of a pair come after each other, so that they
    mostly share one, and with it the computation of their prompt.

    Args:
        pairs: The pairs.
        policy: Says how they may be laid out, and where.
        tokens_per_microbatch: Padded tokens at most.

    Attributes:
        batches: The micro-batches; the target ``answer`` says of each token which answer it belongs to: twice the
            number of its pair, and one more for the rejected one.
        tokens_P2: Tokens of each answer.
    """

    def __init__(self, pairs: Sequence[TokenPair], policy: Policy, tokens_per_microbatch: int) -> None:
        self._device = policy.device
        self.tokens_P2 = torch.tensor([pair.num_learnt for pair in pairs], dtype=torch.float32, device=policy.device)
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
                # Weights are shares in the mean over the rows given, and these are only part of the step's.
                self.batches.append(replace(batch, weight_N=batch.weight_N * share).to(policy.device))
        touching: defaultdict[int, int] = defaultdict(int)
        for batch in self.batches:
            for pair in set((batch.targets["answer"].long() // 2).tolist()):
                touching[pair] += 1
        self._touching_P = torch.tensor([touching[index] for index in range(len(pairs))], device=policy.device)

    def answer_sums(self, batch: MicroBatch, logp_N: Tensor) -> Tensor:
        """Sums ``(P, 2)`` of log-probs by answer, over the tokens of one micro-batch."""
        sums_A = torch.zeros(self.tokens_P2.numel(), dtype=logp_N.dtype, device=logp_N.device)
        return sums_A.index_add(0, batch.targets["answer"].long(), logp_N).view(-1, 2)

    @torch.no_grad()
    def logp(self, logprobs: LogProbs, batches: Sequence[MicroBatch] | None = None) -> Tensor:
        """Log-probs ``(P, 2)`` of the answers, over all micro-batches or those given."""
        sums_P2 = torch.zeros_like(self.tokens_P2)
        for batch in self.batches if batches is None else batches:
            sums_P2 += self.answer_sums(batch, logprobs(batch))
        return sums_P2

    def loss_of(
        self, loss: PreferenceLoss, ref_logp_P2: Tensor, logprobs: LogProbs, measured: dict[str, float]
    ) -> Callable[[TokenOutputs, MicroBatch], Tensor]:
        """The part of one micro-batch in the mean loss over all pairs.

        Where a pair is spread over several micro-batches, each of them needs the log-probs of all. They are computed
        before, without gradient; the gradients of the parts then add up to that of the whole.

        Args:
            loss: The loss.
            ref_logp_P2: Log-probs of the answers by the reference.
            logprobs: Those of the present policy.
            measured: Means over the pairs, added up here.
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
            # The value of a spread pair is counted once, its gradient in each part.
            share_P = 1.0 / (touched_P[chosen] * len(touched_P))
            for name, value_P in loss.metrics(logp_P2, ref_P2, tokens_P2).items():
                measured[name] = measured.get(name, 0.0) + (share_P * value_P).sum().item()
            whole = loss_P.sum() / len(touched_P)
            return whole - whole.detach() + (share_P * loss_P.detach()).sum()

        return part

    def _touches(self, batch: MicroBatch) -> Tensor:
        """By pair: 0 where the micro-batch has nothing of it, else how many micro-batches have something of it."""
        touched_P = torch.zeros_like(self._touching_P)
        touched_P[batch.targets["answer"].long() // 2] = 1
        return touched_P * self._touching_P


def _chunks(pairs: Sequence[TokenPair], tokens: int) -> list[list[int]]:
    """Pairs that go through the model together, longest first: padded, they have at most so many tokens."""
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
        Row(tokens.row().sequence, {"answer": np.full(tokens.num_learnt, 2.0 * index + side)})
        for side, answer in enumerate((pair.chosen, pair.rejected))
        for tokens in answer
    ]
