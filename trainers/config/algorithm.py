"""Options of the algorithm: sampling per task, advantages, loss and entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainers.config.checks import default, idle, positive


@dataclass(frozen=True)
class AlgorithmConfig:
    """What is sampled per task, how rewards become advantages, and the loss.

    For every loss, the "old" log-probs are the sampler's: those the tokens were sampled with. The ratios therefore
    account for several updates on one batch, for sampling ahead of the update, and for numerical differences between
    sampler and trainer.
    """

    name: Literal["grpo", "dr-grpo", "rloo", "remax", "reinforce", "reinforce++", "rebn", "ppo"] = "grpo"
    """``grpo``: reward minus the mean of the group. ``dr-grpo``: the same, never divided by the standard deviation, and
    with the same constant weight for every token. ``rloo``: reward minus the mean of the other episodes of the group.
    ``remax``: reward minus the reward of the greedy episode. ``reinforce``: reward minus the mean of the batch.
    ``reinforce++``: discounted returns per token, whitened over the batch. ``rebn``: discounted returns per turn,
    whitened over the batch. ``ppo``: generalized advantage estimation with a value head."""
    group_size: int = 8
    """Stochastic episodes per task."""
    groups_per_step: int = 16
    """Tasks per step."""
    normalize_std: bool = False
    """Divide GRPO's advantages by the standard deviation of the group, as in the original paper."""
    drop_zero_variance: bool = True
    """Drop groups whose episodes all got the same reward: they carry no policy gradient, and with the KL term or the
    entropy bonus they would only dilute the other groups."""
    dynamic_sampling: int = 0
    """Maximum number of additional rollout rounds per step, each with as many new tasks as there were groups whose
    episodes all got the same reward (DAPO); 0 for none."""
    gamma: float = 1.0
    """Discount per turn (``rebn``, ``ppo`` by turns) or per token (``reinforce++``, ``ppo`` by tokens). The other
    algorithms compare whole episodes, and later turns of different episodes share no baseline: they accept only 1."""
    gae_level: Literal["turn", "token"] = "turn"
    """What PPO's value head estimates the value of: the state before each turn, or before each sampled token."""
    gae_lambda: float = 1.0
    """Lambda of GAE: 1 uses the returns alone, with the value head as a baseline; 0 relies on the value head alone.
    Less than 1 helps once ``value/explained_variance`` is well above 0; before that it adds bias."""
    whiten: bool = True
    """Normalize PPO's advantages to mean 0 and standard deviation 1 over the batch."""
    loss: Literal["clip", "gspo", "cispo", "dppo", "reinforce"] = "clip"
    """``clip``: PPO's clipped ratio. ``gspo``: the clipped ratio of the whole sequence. ``cispo``: the clipped ratio as
    a weight, so that every token keeps a gradient. ``dppo``: drops tokens by how far their probability changed.
    ``reinforce``: the ratio as a truncated weight."""
    clip_low: float | None = None
    """A ratio below 1 - clip_low gets no gradient where the advantage is negative (``cispo``: the smallest weight).
    None for the loss's own default: 0.2, ``gspo`` 3e-4, ``cispo`` 1, which is no bound."""
    clip_high: float | None = None
    """A ratio above 1 + clip_high gets no gradient where the advantage is positive (``cispo``: the largest weight).
    None for the loss's own default: 0.28, ``gspo`` 4e-4, ``cispo`` 4."""
    dual_clip: float | None = None
    """With a negative advantage, ratios above this value get no gradient either; 3 is common."""
    dppo_threshold: float = 0.2
    """Largest difference between a token's probability and the sampler's before ``loss=dppo`` drops the token."""
    importance_cap: float | None = None
    """Largest ratio to the sampler's probabilities that is used in full; see ``importance_mode``. None for no limit,
    and for 2 with ``loss=reinforce``."""
    importance_mode: Literal["token-truncate", "token-mask", "sequence-mask"] = "token-truncate"
    """``token-truncate``: a larger ratio is truncated to the cap. ``token-mask``: a token whose ratio is outside
    [1/cap, cap] is masked. ``sequence-mask``: a sequence whose ratio (geometric mean per token) is outside that range
    is masked as well."""
    aggregation: Literal["token-mean", "sequence-mean", "constant"] | None = None
    """``token-mean`` weights every sampled token of the whole batch equally; ``sequence-mean`` the sequence of every
    episode; ``constant`` divides each sequence's sum by the maximum number of tokens (``sampling.max_response_tokens``,
    else ``sampling.max_tokens``). None for ``constant`` with ``dr-grpo``, ``sequence-mean`` with ``gspo``, else
    ``token-mean``."""
    epochs: int = 1
    """Passes over each batch of episodes."""
    minibatches: int = 1
    """Optimizer steps per pass."""
    kl: float = 0.0
    """Weight of the KL divergence from the reference model; 0 for none. The reference is the model with adapters
    disabled or, in full fine-tuning, a frozen copy."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where the KL divergence is applied: as a term of the loss, or subtracted from the reward of every token."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Schulman's estimators: k1 = log-ratio, k2 = half its square, k3 = exp(-x) - 1 + x."""
    kl_straight_through: bool = False
    """In the loss: use the estimator's value with the gradient of k2, whose mean is the gradient of the KL
    divergence."""
    overlong: Literal["keep", "mask"] = "keep"
    """``mask`` excludes episodes that were truncated by a token or time limit: their reward does not evaluate the
    sampled text."""
    overlong_penalty: float = 0.0
    """Subtracted from the reward of an episode as long as ``sampling.max_response_tokens``; less within the buffer
    before it."""
    overlong_buffer: int = 0
    """Number of tokens before the limit over which the penalty grows from 0 to ``overlong_penalty``."""
    format_penalty: float = 0.0
    """Subtracted from the reward, multiplied by the fraction of the episode's turns whose reply could not be parsed."""


@dataclass(frozen=True)
class EntropyConfig:
    """Entropy bonus against early collapse of the policy: fixed, or controlled towards a target."""

    bonus: float = 0.0
    """Weight of the mean token entropy in the objective; with a target, the initial weight."""
    target: float | None = None
    """Target for the mean entropy per sampled token, in nats. The weight grows by ``rate`` per step while the entropy
    is below the target and shrinks while it is above. None for a fixed weight."""
    target_until: float = 0.7
    """The target decreases linearly to 0 over this fraction of the steps."""
    rate: float = 0.15
    """Relative change of the weight per step."""
    max_bonus: float = 0.1
    """Upper limit of the weight if a target is set."""


_COMPARING = ("drop_zero_variance", "dynamic_sampling")

READ_BY_ALGORITHM: dict[str, tuple[str, ...]] = {
    "grpo": ("normalize_std", *_COMPARING),
    "dr-grpo": _COMPARING,
    "rloo": _COMPARING,
    "remax": _COMPARING,
    "reinforce": (),
    "reinforce++": ("gamma",),
    "rebn": ("gamma",),
    "ppo": ("gamma", "gae_level", "gae_lambda", "whiten"),
}
"""Options that only some algorithms read, by algorithm. Options in none of the three tables are always read."""

READ_BY_LOSS: dict[str, tuple[str, ...]] = {
    "clip": ("clip_low", "clip_high", "dual_clip"),
    "gspo": ("clip_low", "clip_high"),
    "cispo": ("clip_low", "clip_high"),
    "dppo": ("dppo_threshold",),
    "reinforce": (),
}
"""Options that only some losses read, by loss."""

READ_WITH: dict[str, str] = {
    "kl_in": "kl",
    "kl_estimator": "kl",
    "kl_straight_through": "kl",
    "importance_mode": "importance_cap",
    "overlong_buffer": "overlong_penalty",
}
"""Options that are read only if another option is set."""


_EXPLANATIONS = {
    "gamma": ", which compares complete episodes and has no baseline for later turns (rebn, reinforce++ and ppo "
    "support discounting)",
}
"""Additional explanation for the error message about an option without effect."""


def check_algorithm(algorithm: AlgorithmConfig, problems: list[str]) -> None:
    _check_idle(algorithm, problems)
    _check_ranges(algorithm, problems)
    if algorithm.name in ("grpo", "dr-grpo", "rloo") and algorithm.group_size < 2:
        problems.append(
            f"algorithm.group_size={algorithm.group_size}: {algorithm.name} needs at least 2 episodes per task"
        )
    if algorithm.dynamic_sampling and not algorithm.drop_zero_variance:
        problems.append(
            f"algorithm.dynamic_sampling={algorithm.dynamic_sampling} replaces groups whose rewards are all equal, but "
            "algorithm.drop_zero_variance=False keeps them; set only one of the two"
        )
    if algorithm.minibatches > algorithm.groups_per_step:
        problems.append(
            f"algorithm.minibatches={algorithm.minibatches} must be at most "
            f"algorithm.groups_per_step={algorithm.groups_per_step}"
        )


def _check_idle(algorithm: AlgorithmConfig, problems: list[str]) -> None:
    """Report options that are set although the algorithm, the loss or other options make them ineffective."""
    for table, chosen, option in (
        (READ_BY_ALGORITHM, algorithm.name, "name"),
        (READ_BY_LOSS, algorithm.loss, "loss"),
    ):
        for name in dict.fromkeys(name for row in table.values() for name in row if name not in table[chosen]):
            reason = f"with algorithm.{option}={chosen}{_EXPLANATIONS.get(name, '')}"
            idle(algorithm, "algorithm.", (name,), reason, problems)
    for name, needed in READ_WITH.items():
        capped = needed == "importance_cap" and algorithm.loss == "reinforce"  # ``reinforce`` has a default cap
        if getattr(algorithm, needed) == default(algorithm, needed) and not capped:
            idle(algorithm, "algorithm.", (name,), f"without algorithm.{needed}", problems)
    if algorithm.kl and algorithm.kl_straight_through:
        straight = ("kl_straight_through",)
        if algorithm.kl_in == "reward":
            idle(algorithm, "algorithm.", straight, "with kl_in=reward, which has no gradient", problems)
        elif algorithm.kl_estimator == "k2":
            idle(algorithm, "algorithm.", straight, "with kl_estimator=k2, which has this gradient already", problems)
    flat = algorithm.kl_in == "loss" and algorithm.kl_estimator == "k1" and not algorithm.kl_straight_through
    if algorithm.kl and flat:
        problems.append(
            "algorithm.kl_estimator=k1 in the loss has no effect: its gradient is 0 on average; use k2, k3, "
            "kl_straight_through=True or kl_in=reward"
        )
    if algorithm.loss == "cispo" and algorithm.importance_cap and algorithm.importance_mode == "token-truncate":
        problems.append(
            "algorithm.importance_cap has no effect with loss=cispo, which truncates the weight at 1 + clip_high; set "
            "clip_high, or importance_mode=token-mask or sequence-mask"
        )


def _check_ranges(algorithm: AlgorithmConfig, problems: list[str]) -> None:
    positive(
        algorithm,
        "algorithm.",
        ("group_size", "groups_per_step", "epochs", "minibatches", "dppo_threshold"),
        problems,
    )
    for name in ("kl", "format_penalty", "overlong_penalty", "overlong_buffer", "clip_low", "clip_high"):
        value = getattr(algorithm, name)
        if value is not None and not value >= 0:
            problems.append(f"algorithm.{name}={value!r} must be 0 or more")
    for name in ("gamma", "gae_lambda"):
        if not 0 <= getattr(algorithm, name) <= 1:
            problems.append(f"algorithm.{name}={getattr(algorithm, name)!r} must be in [0, 1]")
    for name in ("dual_clip", "importance_cap"):
        value = getattr(algorithm, name)
        if value is not None and not value > 1:
            problems.append(f"algorithm.{name}={value!r} must be above 1 (a ratio); remove it for no limit")
    if algorithm.dynamic_sampling < 0:
        problems.append(
            f"algorithm.dynamic_sampling={algorithm.dynamic_sampling} must be 0 (disabled) or a number of rounds"
        )
    if algorithm.loss != "cispo" and algorithm.clip_low is not None and algorithm.clip_low >= 1:
        problems.append(
            f"algorithm.clip_low={algorithm.clip_low} never clips, since ratios are positive; use a value below 1"
        )


def check_entropy(entropy: EntropyConfig, problems: list[str]) -> None:
    if not entropy.bonus >= 0:
        problems.append(f"entropy.bonus={entropy.bonus} must be 0 or more")
    if entropy.target is None:
        idle(entropy, "entropy.", ("target_until", "rate", "max_bonus"), "without entropy.target", problems)
    else:
        if not entropy.target > 0:
            problems.append(f"entropy.target={entropy.target} must be above 0; remove it for a fixed weight")
        if not 0 < entropy.target_until <= 1:
            problems.append(f"entropy.target_until={entropy.target_until} must be in (0, 1]: a fraction of the steps")
        if not 0 < entropy.rate < 1:
            problems.append(f"entropy.rate={entropy.rate} must be in (0, 1): a relative change per step")
        if not 0 < entropy.bonus <= entropy.max_bonus:
            problems.append(
                f"entropy.bonus={entropy.bonus} must be in (0, entropy.max_bonus={entropy.max_bonus}] if "
                "entropy.target is set, since it is the initial weight; for example 0.003"
            )
