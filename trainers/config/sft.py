"""Supervised fine-tuning as one dataclass, and the check of its options against each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trainers.config.checks import default, positive, raise_if_any
from trainers.config.env import EnvConfig, SamplingConfig, check_env, check_sampling
from trainers.config.json_object import JsonObject
from trainers.config.model import ModelConfig, TinyConfig, check_model
from trainers.config.optimizer import OptimizerConfig, check_optimizer, learning_rate_warnings


@dataclass(frozen=True)
class DemonstrationConfig:
    """What the supervised fine-tuning imitates: a file, or a policy acting in the environment."""

    file: str = ""
    """JSONL of saved episodes, or of chats (`{"messages": [...]}` per line)."""
    policy: str = ""
    """`module:function`, called as function(env, rng) with the unwrapped environment before each turn; it returns the
    reply to imitate."""
    policy_kwargs: JsonObject = field(default_factory=dict)
    """Further keyword arguments of the policy."""
    per_task: int = 1
    """Episodes the policy plays of each task, one after the other: several replies where the policy is random say more
    of what it would do than one."""
    successful_only: bool = False
    """Imitate only episodes that solved their task."""


@dataclass(frozen=True)
class StopConfig:
    """The rule that ends the fine-tuning early: good enough on validation tasks. It never sees a test task."""

    metric: Literal["none", "greedy_success", "sampled_success"] = "none"
    """Success rate on validation tasks at temperature 0, or at 1; `none` trains for all steps."""
    at_least: float = 0.7
    """The rate that ends it."""
    every: int = 25
    """Steps between two measurements."""
    tasks: int = 128
    """Validation tasks measured on."""


@dataclass(frozen=True)
class SftConfig:
    """Supervised fine-tuning on demonstrations: the model learns to say what they say, where they say it."""

    output: str = "runs/sft"
    """Folder of the run; the model is written to its `model` folder."""
    steps: int = 250
    """Most optimizer steps."""
    demonstrations_per_step: int = 16
    """Episodes or chats per optimizer step."""
    seed: int = 0
    threads: int = 1
    """Threads of torch."""
    env: EnvConfig = field(default_factory=EnvConfig)
    model: ModelConfig = field(default_factory=lambda: ModelConfig(tuning="full"))
    tiny: TinyConfig = field(default_factory=TinyConfig)
    demonstrations: DemonstrationConfig = field(default_factory=DemonstrationConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=2e-3))
    stop: StopConfig = field(default_factory=StopConfig)
    progress: bool = True


def validate_sft(config: SftConfig) -> list[str]:
    """As :func:`validate`, for supervised fine-tuning."""
    problems: list[str] = []
    demonstrations, stop, tiny = config.demonstrations, config.stop, config.tiny
    from_policy = bool(demonstrations.policy)
    if from_policy == bool(demonstrations.file):
        problems.append("demonstrations: give either a file or a policy (module:function), and not both")
    if from_policy or stop.metric != "none":
        check_env(config.env, problems)
    elif config.env != EnvConfig():
        problems.append("env does nothing with demonstrations.file and no stop.metric; leave it out")
    if not from_policy and demonstrations.policy_kwargs:
        problems.append("demonstrations.policy_kwargs does nothing without demonstrations.policy; leave it out")
    if not from_policy and demonstrations.per_task != 1:
        problems.append("demonstrations.per_task does nothing without demonstrations.policy; leave it out")
    positive(demonstrations, "demonstrations.", ("per_task",), problems)
    if stop.metric == "none":
        for name in ("at_least", "every", "tasks"):
            if getattr(stop, name) != default(stop, name):
                problems.append(f"stop.{name} does nothing without stop.metric; leave it out")
        if config.sampling != SamplingConfig():
            problems.append("sampling does nothing without stop.metric: nothing is sampled; leave it out")
    else:
        positive(stop, "stop.", ("every", "tasks"), problems)
        if not 0 < stop.at_least <= 1:
            problems.append(f"stop.at_least={stop.at_least} is a success rate, in (0, 1]")
    check_model(config.model, problems, required=not tiny.enabled)
    if tiny.enabled and config.model.path:
        problems.append("tiny.enabled makes a new model, and model.path names another; give one of them")
    if not tiny.enabled and tiny != TinyConfig():
        problems.append("tiny.* does nothing without tiny.enabled; leave it out")
    check_sampling(config.sampling, problems)
    check_optimizer(config.optimizer, problems, tuning=config.model.tuning)
    positive(config, "", ("steps", "demonstrations_per_step", "threads"), problems)
    raise_if_any(problems)
    return learning_rate_warnings(config.model, config.optimizer)
