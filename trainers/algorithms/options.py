"""Options of algorithms and losses. Each has exactly the options that it reads; shared ones are inherited.

:func:`trainers.algorithms.registry.options_type` combines the options of an algorithm with those of its loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from trainers.option_checks import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, UnitFloat

Aggregation = Literal["token-mean", "sequence-mean", "constant"]
"""How the losses of tokens are weighted; see :attr:`AlgorithmOptions.aggregation`."""
OldLogprobs = Literal["auto", "sampler", "trainer"]
"""See :attr:`RatioOptions.old_logprobs`."""


def check_parts(owner: str, functions: Mapping[str, object], aggregation: object) -> None:
    """Check the parts of an algorithm or a loss when it is created.

    Raises:
        TypeError: One of its functions cannot be called.
        ValueError: The aggregation is unknown.
    """
    for name, function in functions.items():
        if not callable(function):
            raise TypeError(f"{name}={function!r} of {owner} is not a function")
    if aggregation is not None and aggregation not in get_args(Aggregation):
        known = ", ".join(map(repr, get_args(Aggregation)))
        raise ValueError(f"aggregation={aggregation!r} of {owner} is not one of {known}")


def option_if(exists: Callable[[Mapping[str, Any]], bool], setting: str, default: Any) -> Any:
    """Return the default of an option that exists only with some values of others; otherwise it is a constant.

    Args:
        exists: Called with the values of all options, which may be words of the command line.
        setting: The values with which the option exists, for messages.
        default: Its value if it is not set.
    """
    return field(default=default, metadata={"exists": exists, "setting": setting})


def ratio_bound(default: float) -> Any:
    """Return the default of an option of a loss that does nothing but limit the ratio to the old log-probs. It does not
    exist where that ratio is always 1."""
    setting = "algorithm.old_logprobs=auto or sampler, or several optimizer steps per batch"
    return option_if(lambda values: not _ratio_is_1(values), setting, default)


def _ratio_is_1(values: Mapping[str, Any]) -> bool:
    return values.get("old_logprobs") == "trainer" and str(values["epochs"]) == str(values["minibatches"]) == "1"


def _has_kl(values: Mapping[str, Any]) -> bool:
    return any(_is_weight(values[name]) for name in ("kl", "kl_reward"))


def _is_weight(value: Any) -> bool:
    """Return whether a weight is not 0."""
    try:
        return float(value) != 0
    except (TypeError, ValueError):
        return True  # an error when it is read


@dataclass(frozen=True)
class Options:
    """The base of all options of algorithms and losses."""

    def check(self, problems: list[str]) -> None:
        """Append a message to ``problems`` for each invalid value that the types of the options do not exclude; see
        :mod:`trainers.option_checks`. Subclasses also call ``super().check(problems)``."""


@dataclass(frozen=True)
class AlgorithmOptions(Options):
    """What is sampled per task, how rewards become advantages, and the loss. These options every algorithm reads; what
    it does not have reads as its default, 0 or empty.

    Options of the loss limit the ratio to the old log-probs; see ``old_logprobs``.
    """

    name: str = ""
    """The algorithm, or ``my_module:MY_ALGORITHM`` for a ``trainers.algorithms.Algorithm`` of your own. The other
    options depend on it and on the loss; ``--algorithm.name NAME --help-all`` shows them."""
    group_size: PositiveInt = 8
    """Stochastic episodes per task."""
    groups_per_step: PositiveInt = 16
    """Tasks per step."""
    aggregation: Aggregation = "token-mean"
    """``token-mean`` weights every sampled token of the whole batch equally; ``sequence-mean`` every episode (with
    roles: every agent's part of it), however many tokens and branches it has; ``constant`` divides each episode's sum
    by the maximum number of tokens (``sampling.max_response_tokens``, else ``sampling.max_tokens``). The default is
    that of the algorithm or, if it has none, of the loss."""
    epochs: PositiveInt = 1
    """Passes over each batch of episodes."""
    minibatches: PositiveInt = 1
    """Optimizer steps per pass, at most one per group that is trained on."""
    overlong: Literal["keep", "mask"] = "keep"
    """``mask`` excludes episodes that were truncated by a token or time limit: their reward does not evaluate the
    sampled text."""

    # Options of some algorithms, which define a field of the name.

    @property
    def loss(self) -> str:
        return ""

    @property
    def old_logprobs(self) -> OldLogprobs:
        return "sampler"

    @property
    def kl(self) -> float:
        return 0.0

    @property
    def kl_reward(self) -> float:
        return 0.0

    @property
    def teacher(self) -> str:
        return ""

    @property
    def teacher_top_k(self) -> int:
        return 0

    @property
    def format_penalty(self) -> float:
        return 0.0

    @property
    def dynamic_sampling(self) -> int:
        return 0

    @property
    def length_penalty(self) -> float:
        return 0.0

    @property
    def reference_sync(self) -> tuple[float, float] | None:
        return None

    @property
    def needs_reference(self) -> bool:
        """Whether the log-probs under the reference model are needed."""
        return self.kl > 0 or self.kl_reward > 0

    @property
    def teacher_is_endpoint(self) -> bool:
        """Whether the teacher is behind an endpoint."""
        return self.teacher.startswith(("http://", "https://"))

    def check(self, problems: list[str]) -> None:
        super().check(problems)
        if self.teacher_is_endpoint and not self.teacher.rpartition("#")[0]:
            problems.append(f"algorithm.teacher={self.teacher!r} has no name of a model; write {self.teacher}#NAME")


@dataclass(frozen=True)
class RatioOptions(AlgorithmOptions):
    """Options of algorithms with a choice of losses, which limit the ratio to the old log-probs."""

    loss: str = ""
    """The loss, or ``my_module:MY_LOSS`` for a ``trainers.algorithms.Loss`` of your own."""
    old_logprobs: OldLogprobs = "auto"
    """The old log-probs, to which the loss limits the ratio. ``sampler``: those the tokens were sampled with; the ratio
    then also covers sampling ahead and rounding differences between sampler and trainer (verl's bypass mode).
    ``trainer``: those of the trainer before the update; the loss is also weighted with their ratio to the sampler's,
    limited by ``importance_cap`` and ``importance_mode``, by default truncated to 2 (decoupled PPO with truncated
    importance sampling). This takes another forward pass if there are several optimizer steps per batch.
    ``auto``: the sampler's, until rounding alone would limit more than 1 % of the tokens; from then on the
    trainer's."""


@dataclass(frozen=True)
class RewardOptions(RatioOptions):
    """Options of algorithms that learn from rewards."""

    kl: NonNegativeFloat = 0.0
    """Weight of the KL divergence from the reference model in the loss (estimator k3); 0 for none. The reference is
    ``teacher`` or, without one, the model with adapters disabled (in full fine-tuning a frozen copy)."""
    kl_reward: NonNegativeFloat = 0.0
    """Weight of the KL divergence from the reference model (estimator k1: the log-ratio) in the reward of every
    token; 0 for none."""
    teacher: str = option_if(_has_kl, "algorithm.kl=WEIGHT or algorithm.kl_reward=WEIGHT", "")
    """A model to learn from, which takes the place of the reference: a Hugging Face folder or hub id with the
    vocabulary of the model, which is loaded frozen; or an OpenAI-compatible endpoint that returns ``prompt_logprobs``
    as vLLM does, and the model's name there: ``http://localhost:8000/v1#NAME``."""
    format_penalty: NonNegativeFloat = 0.0
    """Subtracted from the reward to train on, multiplied by the fraction of the episode's turns whose reply could not
    be parsed; ``reward/mean`` does not include it."""


@dataclass(frozen=True)
class GroupOptions(RewardOptions):
    """Options of algorithms whose advantages are differences within a group: a group whose episodes all got the same
    reward has none.
    """

    drop_zero_variance: bool = True
    """Drop groups whose episodes all got the same reward: they carry no policy gradient, and with the KL term or the
    entropy bonus they would only dilute the other groups."""
    dynamic_sampling: NonNegativeInt = 0
    """Maximum number of additional rollout rounds per step, each with as many new tasks as there were groups whose
    episodes all got the same reward (DAPO); 0 for none. Without ``drop_zero_variance`` those groups are trained on,
    too."""
    length_penalty: NonNegativeFloat = 0.0
    """Weight of a reward for short replies relative to those of the group (Kimi k1.5): half of it is added to the
    group's shortest episode and subtracted from its longest; failed episodes are not rewarded for being short. 0 for
    none. ``reward/mean`` does not include it."""
    reference_sync: tuple[float, float] | None = option_if(
        lambda values: _has_kl(values) and not values["teacher"],
        "algorithm.kl=WEIGHT or algorithm.kl_reward=WEIGHT without a teacher",
        None,
    )
    """Moves the reference of the KL divergence towards the policy: after every how many steps, and by which fraction.
    ``512 0.6`` is TRL's ``sync_ref_model``, ``1 0.01`` a moving average; none to keep the model before training."""

    def check(self, problems: list[str]) -> None:
        super().check(problems)
        every, *fraction = self.reference_sync or (1.0, 1.0)
        if not (every >= 1 and every % 1 == 0 and len(fraction) == 1 and 0 < fraction[0] <= 1):
            problems.append(
                f"algorithm.reference_sync={self.reference_sync} must be steps and a fraction up to 1: 512 0.6"
            )


@dataclass(frozen=True)
class GroupRelativeOptions(GroupOptions):
    """Options of algorithms that compare the sampled episodes of a group with each other, which needs at least two."""

    def check(self, problems: list[str]) -> None:
        super().check(problems)
        if self.group_size < 2:
            problems.append(f"algorithm.group_size={self.group_size}: {self.name} needs at least 2 episodes per task")


@dataclass(frozen=True)
class DiscountOptions(RewardOptions):
    """Options of algorithms that assign credit to single turns or tokens."""

    gamma: UnitFloat = 1.0
    """Discount per decision: per turn or per token, whichever the algorithm assigns credit to."""


@dataclass(frozen=True)
class ValueOptions(RewardOptions):
    """Options of algorithms with a value head: a linear layer on the model's last hidden states that predicts the
    return. Only the head is trained on it, and nothing else in the first ``optimizer.warmup_steps`` steps.
    """

    value_lr: PositiveFloat = 1e-3
    """Peak learning rate of the value head; warm-up and decay are the optimizer's. One step of Adam changes a value
    by about this rate times the hidden size of the model. If it is too high, ``value/explained_variance`` is far below
    0."""


@dataclass(frozen=True)
class LossOptions(Options):
    """The base of the options of losses. Those that limit the ratio have :func:`ratio_bound` as default."""
