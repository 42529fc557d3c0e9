"""What is sampled for a task, how rewards become advantages, the loss, and how curiosity is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainers.config.checks import idle, positive


@dataclass(frozen=True)
class AlgorithmConfig:
    """What is sampled for a task, how rewards become advantages, and the loss."""

    name: Literal["grpo", "rloo", "remax", "reinforce"] = "grpo"
    """`grpo`: reward minus the mean of the group. `rloo`: minus the mean of the others. `remax`: minus the reward of
    the greedy episode. `reinforce`: minus the mean of the batch."""
    group_size: int = 8
    """Stochastic episodes per task."""
    groups_per_step: int = 16
    """Tasks per step."""
    normalize_std: bool = False
    """Divide GRPO's advantages by the standard deviation of the group, as the original does."""
    drop_zero_variance: bool = True
    """Leave groups out whose episodes all got the same reward: they carry no gradient, and with the KL term or the
    entropy bonus they would only dilute those that do."""
    loss: Literal["clip", "reinforce"] = "clip"
    """`clip`: PPO's clipped ratio to the sampler's log-probs. `reinforce`: the ratio as a truncated weight."""
    clip_low: float = 0.2
    """A ratio below 1 - clip_low gets no gradient where the advantage is negative."""
    clip_high: float = 0.28
    """A ratio above 1 + clip_high gets no gradient where the advantage is positive."""
    ratio_cap: float = 2.0
    """Largest importance weight of `loss=reinforce`."""
    aggregation: Literal["token-mean", "sequence-mean"] = "token-mean"
    """`token-mean` weighs every sampled token of the whole batch alike; `sequence-mean` every episode's sequence."""
    epochs: int = 1
    """Passes over each batch of episodes."""
    minibatches: int = 1
    """Optimizer steps per pass."""
    kl: float = 0.0
    """Weight of the KL to the reference in the loss; 0 for none. The reference is the model with adapters off, or, in
    full fine-tuning, a frozen copy."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Schulman's estimators: k1 = log-ratio, k2 = half its square, k3 = exp(-x) - 1 + x."""
    format_penalty: float = 0.0
    """Taken from the reward, times the share of the episode's turns whose reply could not be parsed."""


@dataclass(frozen=True)
class EntropyConfig:
    """Keeping the policy from collapsing early: an entropy bonus, fixed or steered towards a target."""

    bonus: float = 0.0
    """Weight of the mean token entropy in the objective: fixed, or where it starts if there is a target."""
    target: float | None = None
    """Mean entropy per sampled token to hold, in nats; the weight then grows by `rate` while entropy is below it and
    shrinks while it is above. None for a fixed weight."""
    target_until: float = 0.7
    """The target falls linearly to 0 over this share of the steps."""
    rate: float = 0.15
    """Relative change of the weight per step."""
    max_bonus: float = 0.1
    """Largest weight the target may lead to."""


def check_algorithm(algorithm: AlgorithmConfig, problems: list[str]) -> None:
    positive(algorithm, "algorithm.", ("group_size", "groups_per_step", "epochs", "minibatches", "ratio_cap"), problems)

    grouped = algorithm.name in ("grpo", "rloo")
    if grouped and algorithm.group_size < 2:
        problems.append(f"algorithm.group_size={algorithm.group_size}: {algorithm.name} compares at least 2 episodes")
    if algorithm.name != "grpo":
        idle(algorithm, "algorithm.", ("normalize_std",), f"with algorithm.name={algorithm.name}", problems)
    if algorithm.name == "reinforce":
        idle(
            algorithm,
            "algorithm.",
            ("drop_zero_variance",),
            "with algorithm.name=reinforce, which has no groups",
            problems,
        )
    if algorithm.loss == "clip":
        idle(algorithm, "algorithm.", ("ratio_cap",), "with algorithm.loss=clip", problems)
    else:
        idle(algorithm, "algorithm.", ("clip_low", "clip_high"), f"with algorithm.loss={algorithm.loss}", problems)
    if algorithm.kl == 0:
        idle(algorithm, "algorithm.", ("kl_estimator",), "without algorithm.kl", problems)
    for name in ("kl", "format_penalty", "clip_low", "clip_high"):
        if not getattr(algorithm, name) >= 0:
            problems.append(f"algorithm.{name}={getattr(algorithm, name)!r} must be 0 or more")
    if algorithm.clip_low >= 1:
        problems.append(f"algorithm.clip_low={algorithm.clip_low} never clips: a ratio is above 0; use less than 1")
    if algorithm.minibatches > algorithm.groups_per_step:
        problems.append(
            f"algorithm.minibatches={algorithm.minibatches} is more than a step's {algorithm.groups_per_step} groups"
        )


def check_entropy(entropy: EntropyConfig, problems: list[str]) -> None:
    if not entropy.bonus >= 0:
        problems.append(f"entropy.bonus={entropy.bonus} must be 0 or more")
    if entropy.target is None:
        idle(entropy, "entropy.", ("target_until", "rate", "max_bonus"), "without entropy.target", problems)
    else:
        if not entropy.target > 0:
            problems.append(f"entropy.target={entropy.target} must be above 0; leave it out for none")
        if not 0 < entropy.target_until <= 1:
            problems.append(f"entropy.target_until={entropy.target_until} is a share of the steps, in (0, 1]")
        if not 0 < entropy.rate < 1:
            problems.append(f"entropy.rate={entropy.rate} is a relative change, in (0, 1)")
        if not 0 < entropy.bonus <= entropy.max_bonus:
            problems.append(
                f"entropy.bonus={entropy.bonus} is where the weight starts: with a target it must be in "
                f"(0, entropy.max_bonus={entropy.max_bonus}], for instance 0.003"
            )
