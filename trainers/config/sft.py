"""Options of supervised fine-tuning (SFT) as one dataclass, and their validation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from trainers.config.env import EnvConfig, SamplingConfig, check_env
from trainers.config.mapping import switched_by
from trainers.config.model import TinyConfig, check_model
from trainers.config.offline import FilePaths, OfflineConfig, check_offline
from trainers.json_object import JsonObject
from trainers.option_checks import PositiveInt, Range, raise_if_any


@dataclass(frozen=True, kw_only=True)
class DemonstrationOptions:
    """The demonstrations to train on: files, or a policy acting in the environment."""

    successful_only: bool = False
    """Use only episodes that solved their task."""
    train_on: Literal["all", "last"] = "all"
    """Train on every reply of a conversation, or only on the last one."""


@dataclass(frozen=True)
class BestConfig:
    """Selection of the saved episodes with the highest rewards (the earlier one among equals)."""

    count: PositiveInt = 1
    """Number of episodes to use."""
    per: Literal["task", "group"] = "task"
    """Of all episodes of a task, or of those of one group of one training step."""


@dataclass(frozen=True)
class DemonstrationConfig(DemonstrationOptions):
    """Demonstrations of files. With ``policy``, those of a policy acting in the environment: see
    ``--demonstrations.policy MODULE:FUNCTION --help-all``."""

    file: FilePaths = ""
    """Saved episodes, chats (``{"messages": [...]}``) or ``{"prompt": ..., "completion": ...}``, one per row: JSONL,
    JSON or Parquet files, patterns such as ``runs/rl/episodes/*.jsonl``, or ``hf:repo[:config][@split]``; one or
    several."""
    min_reward: float | None = None
    """Use only saved episodes with at least this reward."""
    best: BestConfig | None = None
    """Use only the best saved episodes."""
    distinct: bool = False
    """Use demonstrations with identical tokens only once."""
    strings: Literal["chat", "raw"] = "chat"
    """How to format a prompt and a completion that are plain strings: ``chat`` makes them a user message and
    its reply in the model's chat template; ``raw`` concatenates them unchanged."""


@dataclass(frozen=True)
class PolicyDemonstrationConfig(DemonstrationOptions):
    """Demonstrations of a policy acting in the environment."""

    policy: str = ""
    """``module:function``, called as function(env, rng) with the unwrapped environment before each turn; it returns
    the reply to train on."""
    policy_kwargs: JsonObject = field(default_factory=dict)
    """Additional keyword arguments of the policy."""
    per_task: PositiveInt = 1
    """Number of consecutive episodes of the policy per task. For a random policy, several episodes represent its
    distribution better than one."""


@dataclass(frozen=True)
class StopConfig:
    """Early stopping by the success rate on validation tasks. Test tasks are never used. Off without any of these
    options: then training runs for all steps."""

    metric: Literal["greedy_success", "sampled_success"] = "greedy_success"
    """Success rate on validation tasks at temperature 0, or at temperature 1."""
    at_least: Annotated[float, Range("above 0 and at most 1", lambda value: 0 < value <= 1)] = 0.7
    """Success rate at which training stops."""
    every: PositiveInt = 25
    """Steps between two measurements."""
    tasks: PositiveInt = 128
    """Number of validation tasks."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)


@dataclass(frozen=True)
class SftConfig(OfflineConfig):
    """Options of supervised fine-tuning: training the model to reproduce the replies of demonstrations."""

    output: str = "runs/sft"
    """Output folder of the run; the model is written to its ``model`` folder."""
    demonstrations_per_step: PositiveInt = 16
    """Episodes or chats per optimizer step."""
    env: EnvConfig = field(default_factory=EnvConfig)
    tiny: TinyConfig | None = None
    demonstrations: PolicyDemonstrationConfig | DemonstrationConfig = field(
        default_factory=DemonstrationConfig,
        metadata={"variants": switched_by("policy", DemonstrationConfig, PolicyDemonstrationConfig, "demonstrations")},
    )
    stop: StopConfig | None = None


def validate_sft(config: SftConfig) -> None:
    """Check the options of an SFT run.

    Raises:
        ConfigError: An option is impossible; the message lists all problems.
    """
    problems: list[str] = []
    from_policy = isinstance(config.demonstrations, PolicyDemonstrationConfig)
    if isinstance(config.demonstrations, DemonstrationConfig) and not config.demonstrations.file:
        problems.append("demonstrations: set either demonstrations.file or demonstrations.policy (module:function)")
    if from_policy or config.stop is not None:
        check_env(config.env, problems)
    elif config.env != EnvConfig():
        problems.append("env has no effect with demonstrations.file and without stop; remove it")
    check_model(config.model, problems, required=config.tiny is None)
    if config.tiny is not None and config.model.tuning != "full":
        problems.append(
            f"model.tuning={config.model.tuning} with tiny: adapters cannot train a random model; use model.tuning=full"
        )
    if config.tiny is not None and config.model.path:
        problems.append(f"model.path={config.model.path!r} and tiny, which creates a new model: set only one of them")
    check_offline(config, problems)
    raise_if_any(problems)
