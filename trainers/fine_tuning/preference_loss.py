"""Preference losses and their metrics.

P pairs; an answer's log-prob is the sum over its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, relu

from trainers.config import DpoConfig


@dataclass(frozen=True, slots=True)
class PreferenceLoss:
    """The loss of each pair.

    Args:
        config: The loss and its parameters.
    """

    config: DpoConfig

    @property
    def normalized(self) -> bool:
        """Whether an answer's log-prob is the mean over its tokens instead of their sum."""
        values = self.config.length_normalized
        return self.config.loss == "ipo" if values is None else values

    def __call__(self, logp_P2: Tensor, ref_logp_P2: Tensor, tokens_P2: Tensor) -> Tensor:
        """Compute the loss of each pair.

        ``(1 − ε) f(h) + ε f(−h)`` (ε: Mitchell 2023) with the log-ratios to the reference
        ``h = (log π − log π_ref)(chosen) − (log π − log π_ref)(rejected)`` and f:

        - ``sigmoid``: ``−log σ(β h)`` (Rafailov et al. 2023, equation 7);
        - ``ipo``: ``(h − 1 / (2 β))²`` (Azar et al. 2023, equation 17);
        - ``hinge``: ``max(0, 1 − β h)`` (Zhao et al. 2023, with the reference of Liu et al. 2023).

        Args:
            logp_P2: Sum of the log-probs of the chosen and of the rejected answer's tokens.
            ref_logp_P2: The same under the reference.
            tokens_P2: Number of tokens of each answer.

        Returns:
            The loss of each pair, ``(P,)``.
        """
        config = self.config
        ratio_P2 = logp_P2 - ref_logp_P2
        if self.normalized:
            ratio_P2 = ratio_P2 / tokens_P2
        margin_P = ratio_P2[:, 0] - ratio_P2[:, 1]
        smoothing = config.label_smoothing
        loss_P = (1 - smoothing) * self._loss(margin_P) + smoothing * self._loss(-margin_P)
        if config.rpo_alpha:
            loss_P = loss_P - config.rpo_alpha * logp_P2[:, 0] / tokens_P2[:, 0]
        return loss_P

    def _loss(self, margin_P: Tensor) -> Tensor:
        beta = self.config.beta
        if self.config.loss == "sigmoid":
            return -logsigmoid(beta * margin_P)
        if self.config.loss == "ipo":
            return (margin_P - 1 / (2 * beta)) ** 2
        return relu(1 - beta * margin_P)

    @torch.no_grad()
    def metrics(self, logp_P2: Tensor, ref_logp_P2: Tensor, tokens_P2: Tensor) -> dict[str, Tensor]:
        """Compute for each pair the implicit rewards ``β log(π / π_ref)``, whether the chosen answer's reward is the
        larger one, and the log-probs of the answers."""
        ratio_P2 = logp_P2 - ref_logp_P2
        if self.normalized:
            ratio_P2 = ratio_P2 / tokens_P2
        reward_P2 = self.config.beta * ratio_P2
        margin_P = reward_P2[:, 0] - reward_P2[:, 1]
        # While the model equals the reference, neither answer is preferred: count 0.5, not 0.
        right_P = (margin_P > 0).to(margin_P.dtype) + 0.5 * (margin_P == 0).to(margin_P.dtype)
        return {
            "rewards/chosen": reward_P2[:, 0],
            "rewards/rejected": reward_P2[:, 1],
            "rewards/margins": margin_P,
            "rewards/accuracies": right_P,
            "logps/chosen": logp_P2[:, 0],
            "logps/rejected": logp_P2[:, 1],
            "nll_loss": -logp_P2[:, 0] / tokens_P2[:, 0],
        }
