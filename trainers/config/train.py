"""Options of reinforcement learning as one dataclass, and their validation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trainers.algorithms.options import AlgorithmOptions, ValueOptions
from trainers.algorithms.registry import SELECTORS, algorithm_options, options_type, owners_of
from trainers.config.asynchrony import AsynchronyConfig, check_asynchrony
from trainers.config.checkpoint import CheckpointConfig
from trainers.config.entropy import EntropyConfig
from trainers.config.env import EnvConfig, SamplingConfig, check_env
from trainers.config.loggers import check_loggers
from trainers.config.mapping import Variants
from trainers.config.model import MODEL_VARIANTS, LoraModelConfig, ModelConfig, check_model
from trainers.config.optimizer import OptimizerConfig
from trainers.config.roles import OpponentsConfig, Roles, check_roles, opponent_warnings
from trainers.config.sampler import check_sampler
from trainers.option_checks import Fraction, NonNegativeInt, PositiveInt, check_ranges, raise_if_any
from trainers.sampler_backends import SamplerOptions
from trainers.sampler_backends import registry as sampler_registry


@dataclass(frozen=True)
class CurriculumConfig:
    """Repetition of earlier training tasks. ``curriculum: null`` (``--curriculum none``), the default, for none."""

    replay_fraction: Fraction = 0.3
    """Fraction of each step's groups that repeat earlier training tasks."""
    replay_by: Literal["unsolved", "difficulty"] = "unsolved"
    """Which tasks they repeat. ``unsolved``: those whose group did not succeed as a whole. ``difficulty``: any, the
    sooner the closer the success rate of its last group was to one half; solved and hopeless ones now and then."""


@dataclass(frozen=True)
class ValidationConfig:
    """Validation on tasks that are not trained on. ``validation: null`` (``--validation none``) for none."""

    every: PositiveInt = 10
    """Steps between validations. There is always one before the first step, and one after the last."""
    tasks: PositiveInt = 64
    """Number of validation tasks."""
    samples: PositiveInt = 1
    """Episodes per task at the training temperature, for success rate and pass@k."""
    greedy: bool = False
    """Run one additional episode per task at temperature 0."""
    best: str = "validation/success"
    """The metric that chooses the best model: the one with the largest value is written to ``best_model``, and its
    checkpoint is kept regardless of age. Empty for none."""


@dataclass(frozen=True)
class TrainConfig:
    """Options of reinforcement learning of one model on one environment."""

    output: str = "runs/train"
    """Output folder of the run: metrics, TensorBoard logs, checkpoints, the final model."""
    steps: PositiveInt = 100
    """Number of training steps: rollout, update, weight sync."""
    seed: int = 0
    """Seed of the tasks, the environments' dynamics, the sampled tokens and the initial weights of the adapters."""
    resume: bool = False
    """Resume from the newest complete checkpoint in ``output``; start from the beginning if there is none."""
    deterministic: bool = False
    """On a CPU, with one torch thread: bitwise identical results on every run and across a resume; slower."""
    env: EnvConfig = field(default_factory=EnvConfig)
    roles: Roles = field(default_factory=dict)
    """Options of the roles of the workflow ``env.agent``, by name: ``adapter``, ``max_tokens`` and ``copies`` of
    each. Roles that are not mentioned use the shared weights and are trained. On the command line
    ``--roles.NAME.adapter own`` sets one option, and ``--roles JSON`` replaces all roles of the file."""
    model: ModelConfig = field(default_factory=LoraModelConfig, metadata={"variants": MODEL_VARIANTS})
    sampler: SamplerOptions = field(
        default_factory=SamplerOptions,
        metadata={"variants": Variants(sampler_registry.options_type, ("backend",), sampler_registry.owners_of)},
    )
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    algorithm: AlgorithmOptions = field(
        default_factory=algorithm_options, metadata={"variants": Variants(options_type, SELECTORS, owners_of)}
    )
    """Options of the algorithm ``algorithm.name`` and of its loss."""
    entropy: EntropyConfig = field(default_factory=EntropyConfig)
    curriculum: CurriculumConfig | None = None
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    validation: ValidationConfig | None = field(default_factory=ValidationConfig)
    checkpoint: CheckpointConfig | None = field(default_factory=CheckpointConfig)
    asynchrony: AsynchronyConfig = field(default_factory=AsynchronyConfig)
    save_episodes_every: NonNegativeInt = 0
    """Steps between training episodes written to the run's folder; 0 for none."""
    loggers: tuple[str, ...] | None = ("tensorboard",)
    """Trackers that get the metrics and completions, besides the files in ``output``: ``tensorboard``, ``wandb``,
    ``trackio`` and ``mlflow``, configured by their environment variables such as ``WANDB_PROJECT``;
    ``none`` disables them."""
    progress: bool = True
    """Show a live display of the run if the output is a terminal."""

    @property
    def opponents(self) -> OpponentsConfig:
        """The role that uses frozen copies of the policy, and its options."""
        return OpponentsConfig.of_roles(self.roles)


def validate(config: TrainConfig) -> list[str]:
    """Check the options of a run against each other.

    Returns:
        Warnings about choices that are allowed but rarely intended.

    Raises:
        ConfigError: An option is impossible or would have no effect; the message lists all problems.
    """
    problems: list[str] = []
    algorithm, model = config.algorithm, config.model

    check_env(config.env, problems)
    check_roles(config.roles, config.opponents, model, problems)
    check_model(model, problems, required=True)
    check_sampler(config.sampler, config.model, problems, deterministic=config.deterministic)
    if config.sampling.temperature == 0:
        problems.append("sampling.temperature=0 is greedy: all episodes of a group would be identical; use 1.0")
    check_ranges(config, problems)
    algorithm.check(problems)
    fraction = config.curriculum.replay_fraction if config.curriculum is not None else 0.0
    if 0 < fraction < 1 and not round(algorithm.groups_per_step * fraction):
        problems.append(
            f"curriculum.replay_fraction={fraction} of algorithm.groups_per_step={algorithm.groups_per_step} is less "
            "than half a group, so none is repeated; increase one of them"
        )
    best = config.validation.best if config.validation is not None else ""
    if best and not best.startswith("validation/"):
        problems.append(f"validation.best={best!r} is not a validation metric; their names begin with validation/")
    check_loggers(config.loggers, problems)
    check_asynchrony(
        config.asynchrony,
        problems,
        deterministic=config.deterministic,
        has_opponents=bool(config.opponents.role),
        backend=config.sampler.backend,
    )
    if config.deterministic and model.device not in ("auto", "cpu"):
        problems.append(f"model.device={model.device!r} with deterministic=True: only the CPU is bitwise reproducible")
    raise_if_any(problems)
    return [*_warmup_warnings(config), *opponent_warnings(config.opponents, config.steps)]


def _warmup_warnings(config: TrainConfig) -> list[str]:
    warmup, steps = config.optimizer.warmup_steps, config.steps
    if warmup < steps:
        return []
    effect = "the learning rate never reaches its peak"
    if isinstance(config.algorithm, ValueOptions):
        effect = "only the value head is trained, and the model stays as it is"
    return [f"optimizer.warmup_steps={warmup} with steps={steps}: {effect}; use more steps or fewer of warm-up"]
