"""On-policy distillation from a teacher: Thinking Machines 2025 (the sampled token's KL divergence), and GKD (Agarwal
et al. 2023) with the reverse KL divergence over the whole vocabulary. Rewards are measured and not trained on; every
other algorithm learns from both with ``teacher`` and ``kl`` or ``kl_reward``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainers.algorithms.advantages import AdvantageBatch, PerToken, zeros
from trainers.algorithms.algorithm import Algorithm
from trainers.algorithms.losses import REINFORCE, Loss
from trainers.algorithms.options import AlgorithmOptions, LossOptions, RatioOptions
from trainers.option_checks import NonNegativeInt, PositiveFloat

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.batching import MicroBatch


_NO_TEACHER = "algorithm.teacher is missing: a Hugging Face folder, a hub id, or http://HOST/v1#NAME"


@dataclass(frozen=True)
class DistillationOptions(RatioOptions):
    """Options of distillation by the sampled tokens."""

    teacher: str = ""
    """The model to learn from: a Hugging Face folder or hub id with the vocabulary of the model, which is loaded
    frozen; or an OpenAI-compatible endpoint that returns ``prompt_logprobs`` as vLLM does, and the model's name there:
    ``http://localhost:8000/v1#NAME``."""
    kl_reward: PositiveFloat = 1.0
    """Factor of the advantages."""

    def check(self, problems: list[str]) -> None:
        super().check(problems)
        if not self.teacher:
            problems.append(_NO_TEACHER)


@dataclass(frozen=True)
class GkdOptions(AlgorithmOptions):
    """Options of distillation over the whole vocabulary, or the teacher's most likely tokens."""

    teacher: str = ""
    """As for ``distillation``; an endpoint only with ``teacher_top_k``."""
    teacher_top_k: NonNegativeInt = 0
    """Number of tokens that are compared, those that the teacher finds most likely, with all others as one; 0 for the
    whole vocabulary. An endpoint of vLLM returns up to 20 unless it was started with ``--max-logprobs``."""

    @property
    def needs_reference(self) -> bool:
        return True

    def check(self, problems: list[str]) -> None:
        super().check(problems)
        if not self.teacher:
            problems.append(_NO_TEACHER)
        if self.teacher_is_endpoint and not self.teacher_top_k:
            problems.append(
                f"algorithm.teacher={self.teacher!r} with algorithm.teacher_top_k=0: only a local model has the "
                "distribution over the whole vocabulary; use algorithm.teacher_top_k=20, or algorithm.name=distillation"
            )


def advantages(batch: AdvantageBatch, options: DistillationOptions) -> PerToken:
    """The teacher's log-prob of each token minus the policy's."""
    return {"adv": [-cost_N for cost_N in batch.cost]}


def no_advantages(batch: AdvantageBatch, options: GkdOptions) -> PerToken:
    """Zero: the loss is the KL divergence from the teacher."""
    return {"adv": zeros(batch)}


def _teacher_kl(logp_N: Tensor, batch: MicroBatch, options: LossOptions) -> tuple[Tensor, Tensor]:
    return batch.targets["teacher_kl"], logp_N.new_zeros(len(logp_N))


DISTILLATION = Algorithm("distillation", DistillationOptions, advantages, loss=REINFORCE)
GKD = Algorithm("gkd", GkdOptions, no_advantages, loss=Loss("teacher-kl", LossOptions, _teacher_kl, teacher_kl=True))
