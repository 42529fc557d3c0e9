"""Every option of training, as frozen dataclasses. Reading them from YAML and the command line lives in `settings`.

An option that would do nothing under the other settings is an error, not a silence: see :func:`validate`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import tyro


def _read_json_object(words: list[str]) -> dict[str, Any]:
    try:
        value = json.loads(words[0])
    except ValueError as error:
        raise ValueError(f"{words[0]!r} is not JSON ({error}); write for example '{{\"size\": 4}}'") from error
    if not isinstance(value, dict):
        raise ValueError(f"{words[0]!r} is JSON, but no object; write for example '{{\"size\": 4}}'")
    return value


JsonObject = Annotated[
    Mapping[str, Any],
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="JSON",
        instance_from_str=_read_json_object,
        is_instance=lambda value: isinstance(value, Mapping),
        str_from_instance=lambda value: [json.dumps(dict(value))],
    ),
]
"""Keyword arguments of something else: a YAML mapping, or JSON on the command line."""


@dataclass(frozen=True)
class EnvConfig:
    """Which environment the model acts in, and as which agent."""

    id: str = ""
    """Gymnasium id of the environment; `rllm-gym list` shows those that come with this package. `module:id` imports
    the module first, for environments of your own."""
    kwargs: JsonObject = field(default_factory=dict)
    """Keyword arguments of the environment, for training, validation and test alike."""
    train_kwargs: JsonObject = field(default_factory=dict)
    """Further ones for training. `split="train"` is added where the environment takes a `split`."""
    validation_kwargs: JsonObject = field(default_factory=dict)
    """Further ones for validation. `split="validation"` is added where the environment takes a `split`."""
    agent: str = ""
    """Agent class as `module:Class`; empty for the one that fits the environment."""
    agent_kwargs: JsonObject = field(default_factory=dict)
    """Keyword arguments of the agent."""
    workers: Literal["thread", "process"] = "thread"
    """Where environments live. Threads are faster; processes survive environments that crash or hang."""
    max_turns: int | None = None
    """Fewer turns than the environment allows; none keeps the environment's own limit."""
    step_timeout: float = 60.0
    """Seconds one step, reset or close of the environment may take."""
    episode_timeout: float = 600.0
    """Seconds a whole episode may take."""
    retries: int = 2
    """Fresh environments tried after the world broke, before the episode is dropped and counted."""
    parallel: int = 128
    """Episodes under way at once."""


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters; used with `model.tuning=lora`."""

    rank: int = 32
    """Rank of the adapters."""
    alpha: float = 32.0
    """The adapters' output is scaled by alpha / rank."""
    targets: str = "all-linear"
    """`all-linear`, or names of modules separated by commas."""


@dataclass(frozen=True)
class ModelConfig:
    """The model that is trained."""

    path: str = ""
    """A Hugging Face folder or hub id. Required, except where a tiny model is made (`rllm-gym sft --tiny.enabled`)."""
    tuning: Literal["full", "lora"] = "lora"
    """`lora` trains low-rank adapters on all linear layers; `full` trains every weight."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    dtype: Literal["float32", "bfloat16"] = "float32"
    """`bfloat16` computes in bfloat16; trained weights stay float32. On CPUs float32 is faster."""
    device: str = "auto"
    """`auto` takes a GPU where there is one; else `cpu`, `cuda`, `cuda:1` …"""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""


@dataclass(frozen=True)
class SamplingConfig:
    """How replies are drawn while training."""

    temperature: float = 1.0
    """Above 0. The log-probs trained on are those at this temperature."""
    max_tokens: int = 64
    """Longest reply of one turn, in tokens."""
    max_response_tokens: int | None = None
    """Most tokens sampled in one episode, over all its turns; none for what the context leaves."""
    context_length: int | None = None
    """Longest conversation in tokens; none for what the model was made for."""


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


@dataclass(frozen=True)
class CurriculumConfig:
    """Which tasks come up."""

    replay_fraction: float = 0.0
    """Share of each step's groups taken from earlier training tasks that are not solved yet."""
    replay_solved_at: float = 1.0
    """A task counts as solved once this share of its group succeeded."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with warm-up and linear decay."""

    lr: float = 2e-4
    """Peak learning rate. LoRA wants about ten times the rate of full fine-tuning."""
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.0
    warmup_steps: int = 5
    """Steps of linear warm-up."""
    final_lr_fraction: float = 0.1
    """The rate falls linearly to this share of the peak."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    tokens_per_microbatch: int = 16384
    """Padded tokens that go through the model at once: less needs less memory and gives the same gradient."""
    tokens_per_chunk: int = 4096
    """Sampled tokens whose logits exist at once."""
    max_bad_steps: int = 5
    """Steps in a row that teach nothing because something is broken, before the run stops: loss or gradient are not
    finite (each is skipped and counted), or not one episode came to an end."""


@dataclass(frozen=True)
class ValidationConfig:
    """Measuring on tasks that are not trained on."""

    every: int = 10
    """Steps between validations; 0 for none. The last step is always followed by one."""
    tasks: int = 64
    """How many validation tasks."""
    samples: int = 1
    """Episodes per task at the training temperature, for success and pass@k."""
    greedy: bool = False
    """One more episode per task at temperature 0."""
    save_episodes: bool = True
    """Write the validation episodes beside the run, for the report."""


@dataclass(frozen=True)
class CheckpointConfig:
    """What survives a crash."""

    every: int = 10
    """Steps between checkpoints; 0 for none."""
    keep: int = 2
    """Newest checkpoints kept."""


@dataclass(frozen=True)
class TrainConfig:
    """Reinforcement learning of one model on one environment."""

    output: str = "runs/train"
    """Folder of the run: metrics, TensorBoard logs, checkpoints, the final model."""
    steps: int = 100
    """Training steps: rollout, update, push."""
    seed: int = 0
    """Decides the tasks, the dynamics, the sampled tokens and the adapters' first weights."""
    resume: bool = False
    """Go on from the newest whole checkpoint in `output`; from the start if there is none."""
    deterministic: bool = False
    """On a CPU: the same bits on every run and across a resume, at some speed."""
    threads: int = 1
    """Threads of torch. One is safe on a busy machine; as many as idle cores is faster for larger models."""
    env: EnvConfig = field(default_factory=EnvConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    entropy: EntropyConfig = field(default_factory=EntropyConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    save_episodes_every: int = 0
    """Steps between training episodes written beside the run; 0 for none."""
    progress: bool = True
    """A live display of the run, where the output is a terminal."""


@dataclass(frozen=True)
class TinyConfig:
    """A tiny model made on the spot; see :func:`trainers.tiny_model.make_tiny_model`."""

    enabled: bool = False
    """Make one in the run's folder and start from it, in place of `model.path`."""
    architecture: Literal["qwen2", "llama"] = "qwen2"
    hidden_size: int = 96
    num_layers: int = 2
    num_heads: int = 3
    intermediate_size: int | None = None
    """Width of the feed-forward layers; none for twice the hidden size."""
    vocab_size: int = 512
    init_std: float = 0.08
    rope_theta: float = 10_000.0
    """Base of the rotary position embedding; short texts are told apart better with a small one."""
    seed: int = 0


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


class ConfigError(ValueError):
    """An option that is unknown, impossible, or would do nothing; names it and the way out."""


def validate(config: TrainConfig) -> list[str]:
    """Check the options of a run against each other.

    Returns:
        Warnings: choices that are allowed and rarely meant.

    Raises:
        ConfigError: An option is impossible or would do nothing; all of them are listed.
    """
    problems: list[str] = []
    algorithm, entropy, model = config.algorithm, config.entropy, config.model

    def idle(section: object, prefix: str, names: tuple[str, ...], unless: str) -> None:
        """Options that were set although nothing reads them."""
        for name in names:
            if getattr(section, name) != _default(section, name):
                problems.append(f"{prefix}{name}={getattr(section, name)!r} does nothing {unless}; leave it out")

    _check_env(config.env, problems)
    _check_model(model, problems, required=True)
    _check_sampling(config.sampling, problems)
    _check_optimizer(config.optimizer, problems)
    if config.sampling.temperature == 0:
        problems.append("sampling.temperature=0 is greedy: every episode of a group would be the same; use 1.0")
    _positive(config, "", ("steps", "threads"), problems)
    _positive(
        algorithm, "algorithm.", ("group_size", "groups_per_step", "epochs", "minibatches", "ratio_cap"), problems
    )

    grouped = algorithm.name in ("grpo", "rloo")
    if grouped and algorithm.group_size < 2:
        problems.append(f"algorithm.group_size={algorithm.group_size}: {algorithm.name} compares at least 2 episodes")
    if algorithm.name != "grpo":
        idle(algorithm, "algorithm.", ("normalize_std",), f"with algorithm.name={algorithm.name}")
    if algorithm.name == "reinforce":
        idle(algorithm, "algorithm.", ("drop_zero_variance",), "with algorithm.name=reinforce, which has no groups")
    if algorithm.loss == "clip":
        idle(algorithm, "algorithm.", ("ratio_cap",), "with algorithm.loss=clip")
    else:
        idle(algorithm, "algorithm.", ("clip_low", "clip_high"), f"with algorithm.loss={algorithm.loss}")
    if algorithm.kl == 0:
        idle(algorithm, "algorithm.", ("kl_estimator",), "without algorithm.kl")
    for name in ("kl", "format_penalty", "clip_low", "clip_high"):
        if not getattr(algorithm, name) >= 0:
            problems.append(f"algorithm.{name}={getattr(algorithm, name)!r} must be 0 or more")
    if algorithm.clip_low >= 1:
        problems.append(f"algorithm.clip_low={algorithm.clip_low} never clips: a ratio is above 0; use less than 1")
    if algorithm.minibatches > algorithm.groups_per_step:
        problems.append(
            f"algorithm.minibatches={algorithm.minibatches} is more than a step's {algorithm.groups_per_step} groups"
        )

    if not entropy.bonus >= 0:
        problems.append(f"entropy.bonus={entropy.bonus} must be 0 or more")
    if entropy.target is None:
        idle(entropy, "entropy.", ("target_until", "rate", "max_bonus"), "without entropy.target")
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
    if not 0 <= config.curriculum.replay_fraction < 1:
        problems.append(f"curriculum.replay_fraction={config.curriculum.replay_fraction} must be in [0, 1)")
    if config.curriculum.replay_fraction == 0:
        idle(config.curriculum, "curriculum.", ("replay_solved_at",), "without curriculum.replay_fraction")
    if config.validation.every == 0:
        idle(config.validation, "validation.", ("tasks", "samples", "greedy", "save_episodes"), "without validations")
    elif config.validation.every < 0:
        problems.append(f"validation.every={config.validation.every} must be 0 (never) or more")
    else:
        _positive(config.validation, "validation.", ("tasks", "samples"), problems)
    if config.checkpoint.every == 0:
        idle(config.checkpoint, "checkpoint.", ("keep",), "without checkpoints")
        if config.resume:
            problems.append("resume=True with checkpoint.every=0: nothing would be left to resume from next time")
    elif config.checkpoint.every < 0 or config.checkpoint.keep < 1:
        problems.append("checkpoint.every must be 0 (never) or more, and checkpoint.keep at least 1")
    if config.save_episodes_every < 0:
        problems.append(f"save_episodes_every={config.save_episodes_every} must be 0 (never) or more")
    if config.deterministic:
        if config.threads != 1:
            problems.append(f"threads={config.threads} with deterministic=True: sums of several threads differ; use 1")
        if model.device not in ("auto", "cpu"):
            problems.append(f"model.device={model.device!r} with deterministic=True: only the CPU repeats bit for bit")
    _raise(problems)
    return _learning_rate_warnings(config.model, config.optimizer)


def validate_sft(config: SftConfig) -> list[str]:
    """As :func:`validate`, for supervised fine-tuning."""
    problems: list[str] = []
    demonstrations, stop, tiny = config.demonstrations, config.stop, config.tiny
    from_policy = bool(demonstrations.policy)
    if from_policy == bool(demonstrations.file):
        problems.append("demonstrations: give either a file or a policy (module:function), and not both")
    if from_policy or stop.metric != "none":
        _check_env(config.env, problems)
    elif config.env != EnvConfig():
        problems.append("env does nothing with demonstrations.file and no stop.metric; leave it out")
    if not from_policy and demonstrations.policy_kwargs:
        problems.append("demonstrations.policy_kwargs does nothing without demonstrations.policy; leave it out")
    if not from_policy and demonstrations.per_task != 1:
        problems.append("demonstrations.per_task does nothing without demonstrations.policy; leave it out")
    _positive(demonstrations, "demonstrations.", ("per_task",), problems)
    if stop.metric == "none":
        for name in ("at_least", "every", "tasks"):
            if getattr(stop, name) != _default(stop, name):
                problems.append(f"stop.{name} does nothing without stop.metric; leave it out")
        if config.sampling != SamplingConfig():
            problems.append("sampling does nothing without stop.metric: nothing is sampled; leave it out")
    else:
        _positive(stop, "stop.", ("every", "tasks"), problems)
        if not 0 < stop.at_least <= 1:
            problems.append(f"stop.at_least={stop.at_least} is a success rate, in (0, 1]")
    _check_model(config.model, problems, required=not tiny.enabled)
    if tiny.enabled and config.model.path:
        problems.append("tiny.enabled makes a new model, and model.path names another; give one of them")
    if not tiny.enabled and tiny != TinyConfig():
        problems.append("tiny.* does nothing without tiny.enabled; leave it out")
    _check_sampling(config.sampling, problems)
    _check_optimizer(config.optimizer, problems)
    _positive(config, "", ("steps", "demonstrations_per_step", "threads"), problems)
    _raise(problems)
    return _learning_rate_warnings(config.model, config.optimizer)


def _check_env(env: EnvConfig, problems: list[str]) -> None:
    if not env.id:
        problems.append("env.id is missing: which environment? `rllm-gym list` shows them")
    if env.agent and ":" not in env.agent:
        problems.append(f"env.agent={env.agent!r} must have the form module:Class")
    if env.agent_kwargs and not env.agent:
        problems.append("env.agent_kwargs without env.agent: name the agent they belong to")
    if env.max_turns is not None and env.max_turns < 1:
        problems.append(f"env.max_turns={env.max_turns} must be at least 1")
    _positive(env, "env.", ("step_timeout", "episode_timeout", "parallel"), problems)
    if env.retries < 0:
        problems.append(f"env.retries={env.retries} must be 0 or more")


def _check_model(model: ModelConfig, problems: list[str], *, required: bool) -> None:
    if required and not model.path:
        problems.append("model.path is missing: a Hugging Face folder or hub id (`rllm-gym sft` makes a tiny one)")
    if model.tuning == "full" and model.lora != LoraConfig():
        problems.append("model.lora does nothing with model.tuning=full; leave it out, or use model.tuning=lora")
    _positive(model.lora, "model.lora.", ("rank", "alpha"), problems)


def _check_sampling(sampling: SamplingConfig, problems: list[str]) -> None:
    if not sampling.temperature >= 0:
        problems.append(f"sampling.temperature={sampling.temperature} must be above 0")
    _positive(sampling, "sampling.", ("max_tokens", "max_response_tokens", "context_length"), problems)


def _check_optimizer(optimizer: OptimizerConfig, problems: list[str]) -> None:
    names = ("lr", "max_grad_norm", "tokens_per_microbatch", "tokens_per_chunk", "max_bad_steps")
    _positive(optimizer, "optimizer.", names, problems)
    if optimizer.warmup_steps < 0:
        problems.append(f"optimizer.warmup_steps={optimizer.warmup_steps} must be 0 or more")
    if not optimizer.weight_decay >= 0:
        problems.append(f"optimizer.weight_decay={optimizer.weight_decay} must be 0 or more")
    if not 0 <= optimizer.final_lr_fraction <= 1:
        problems.append(f"optimizer.final_lr_fraction={optimizer.final_lr_fraction} must be in [0, 1]")
    for name in ("beta1", "beta2"):
        if not 0 <= getattr(optimizer, name) < 1:
            problems.append(f"optimizer.{name}={getattr(optimizer, name)} must be in [0, 1)")


def _learning_rate_warnings(model: ModelConfig, optimizer: OptimizerConfig) -> list[str]:
    if model.tuning == "lora" and optimizer.lr < 1e-6:
        return [f"optimizer.lr={optimizer.lr:g} with LoRA learns nothing one could see; usual are 1e-5 … 1e-3"]
    return []


def _default(section: object, name: str) -> Any:
    return getattr(type(section)(), name)


def _positive(section: object, prefix: str, names: tuple[str, ...], problems: list[str]) -> None:
    for name in names:
        value = getattr(section, name)
        if value is not None and not value > 0:
            problems.append(f"{prefix}{name}={value!r} must be above 0")


def _raise(problems: list[str]) -> None:
    if problems:
        raise ConfigError("the configuration cannot be used:\n" + "\n".join(f"  - {problem}" for problem in problems))
