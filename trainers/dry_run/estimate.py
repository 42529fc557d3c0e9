"""Report what a run would do without running it: memory by part, batches, tasks and every option.

No weights are read and nothing is written. Errors that would stop the run at its start are raised here as well.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

import torch
import yaml

from rllm_gym.chat import ChatRenderer
from trainers.algorithms import make_algorithm
from trainers.config import ConfigError, RoleAssignment, TrainConfig, validate
from trainers.config.mapping import to_mapping
from trainers.config.optimizer import TOKENS_PER_MICROBATCH
from trainers.config.roles import BASE
from trainers.dry_run.empty_rollouts import AgentSequences, NotMeasured, collect_empty_rollouts
from trainers.dry_run.memory import (
    BatchShape,
    MemoryEstimate,
    SamplerShape,
    estimate_memory,
    model_shape,
    on_gpu,
)
from trainers.learner.optimizers import check_library
from trainers.model import ModelUnusable, choose_device, load_tokenizer
from trainers.model.quantization import check_bitsandbytes
from trainers.run.run_folder import check_folder
from trainers.run.setup import open_env, with_size_defaults
from trainers.sampler_backends import find_backend
from trainers.train_env import TrainEnv

_log = logging.getLogger(__name__)

# Number of training tasks whose lengths are measured.
_TASKS = 8
_USED = 0.9
"""Fraction of the free memory that the estimate may reach: libraries and fragmentation need some."""
_LEAST_TOKENS = 4096
_WEIGHTS = ("*.safetensors", "*.bin", "*.safetensors.index.json")


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """One training step, assuming that every reply has its maximum length.

    Attributes:
        episodes: Number of episodes per step, including greedy ones.
        turns: Largest number of turns of the measured episodes, whose replies are empty.
        prompt: Minimum, mean and maximum number of tokens of the first prompts of the measured training tasks.
        reply: Maximum number of sampled tokens per episode.
        longest: Number of tokens of the longest conversation.
        agents: Maximum number of agents per episode.
        optimizer_steps: Number of optimizer steps per step, over all passes.
        largest: Shape of the microbatch that needs most memory, as if its sequences were padded: those with common
            prefixes take no more.
    """

    episodes: int
    turns: int
    prompt: tuple[int, float, int]
    reply: int
    longest: int
    agents: int
    optimizer_steps: int
    largest: BatchShape


@dataclass(frozen=True, slots=True)
class DryRun:
    """Result of :func:`dry_run`.

    Attributes:
        config: Every resolved option.
        device: The device of the model.
        warnings: Choices that are allowed but rarely intended.
        memory: Memory estimate.
        available: Memory of the device in bytes.
        plan: One training step.
        train_tasks: Number of training tasks.
        validation_tasks: Number of validation tasks; ``None`` if the environment has none.
        roles: Description of the weights that each role of the workflow uses.
    """

    config: TrainConfig
    device: torch.device
    warnings: Sequence[str]
    memory: MemoryEstimate
    available: int
    plan: BatchPlan
    train_tasks: int
    validation_tasks: int | None
    roles: Mapping[str, str] = field(default_factory=dict)


def dry_run(config: TrainConfig, *, env: TrainEnv | None = None) -> DryRun:
    """Determine what a run would need and do.

    Args:
        config: As for :func:`trainers.train`.
        env: As for :func:`trainers.train`.

    Raises:
        ConfigError: The run could not start.
    """
    if env is not None:
        config = replace(config, env=env.named(config.env))
    warnings = validate(config)
    check_folder(config)
    device = choose_device(config.model.device)
    check_library(config.optimizer)
    if config.model.tuning == "qlora":
        check_bitsandbytes("model.tuning=qlora")
    for package, install in find_backend(config.sampler.backend).packages.items():
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"sampler.backend={config.sampler.backend} needs {package}: {install}; or use torch")
    _check_weights(config.model.path)
    tokenizer = load_tokenizer(config.model.path)
    env, assignment = open_env(config, env)
    config = with_size_defaults(config, model_shape(config.model), env)
    episodes = collect_empty_rollouts(env, ChatRenderer(tokenizer), assignment, _TASKS)
    available = _available(device)
    options = config.algorithm
    for candidate in _candidates(config):
        plan = _plan(candidate, assignment, episodes)
        tokens = config.env.parallel * plan.agents * plan.longest
        memory = estimate_memory(
            candidate.model,
            candidate.optimizer,
            plan.largest,
            reference=options.needs_reference and not options.teacher,
            teacher="" if options.teacher_is_endpoint else options.teacher,
            sampler=_sampler(config, device, available, tokens, _num_weight_sets(config, assignment, env)),
            adapters=assignment.adapters(env.roles) or ("",),
            opponents=config.opponents.pool if config.opponents.role else 0,
        )
        if memory.peak <= _USED * _free(device):
            break
    config = candidate
    if memory.peak > available:
        warnings.append(
            f"the estimated peak memory {_size(memory.peak)} exceeds the available {_size(available)}; the options "
            "that reduce it most come first: model.gradient_checkpointing, a smaller optimizer.tokens_per_microbatch, "
            "model.tuning=qlora, optimizer.name=adamw8bit, a smaller env.parallel"
        )
    validation = None if env.validation is None else len(env.validation)
    roles = {name: _served_as(assignment, name) for name in env.roles}
    return DryRun(config, device, warnings, memory, available, plan, len(env.train), validation, roles)


def fit_to_memory(config: TrainConfig, env: TrainEnv | None = None) -> TrainConfig:
    """Return the options with microbatches and gradient checkpointing where they are not given: chosen by the free
    memory of the only GPU, otherwise the defaults.

    Raises:
        ConfigError: The run could not start.
    """
    defaults = next(iter(_candidates(config)))
    if defaults == config or not on_gpu(config.model.device) or os.environ.get("WORLD_SIZE", "1") != "1":
        return defaults
    try:
        found = dry_run(config, env=env).config
    except (ModelUnusable, NotMeasured) as error:
        if isinstance(error, ModelUnusable) and "cannot be estimated" not in str(error):
            raise
        _log.warning("the memory of an update is not known before it (%s); using the defaults", error)
        return defaults
    chosen = found.optimizer.tokens_per_microbatch, found.model.gradient_checkpointing
    if chosen != (defaults.optimizer.tokens_per_microbatch, defaults.model.gradient_checkpointing):
        _log.warning(
            "chosen by free memory: optimizer.tokens_per_microbatch=%s, model.gradient_checkpointing=%s", *chosen
        )
    return replace(
        config,
        optimizer=replace(config.optimizer, tokens_per_microbatch=chosen[0]),
        model=replace(config.model, gradient_checkpointing=chosen[1]),
    )


def _candidates(config: TrainConfig) -> Iterator[TrainConfig]:
    """Yield the options with all values that are not given, in the order of their speed."""
    tokens, checkpointing = config.optimizer.tokens_per_microbatch, config.model.gradient_checkpointing
    for recompute in (False, True) if checkpointing is None else (checkpointing,):
        # Few tokens per pass keep a GPU less busy than recomputation.
        least = _LEAST_TOKENS if checkpointing is None and not recompute else 1024
        sizes = [TOKENS_PER_MICROBATCH >> halved for halved in range(5)] if tokens is None else [tokens]
        for size in sizes:
            if size >= least or tokens is not None:
                yield replace(
                    config,
                    optimizer=replace(config.optimizer, tokens_per_microbatch=size),
                    model=replace(config.model, gradient_checkpointing=recompute),
                )


def report(found: DryRun) -> str:
    """Format the result for people: memory, plan, tasks, then the options as YAML."""
    return "\n".join([*_memory_lines(found), "", *_plan_lines(found), "", *_option_lines(found)])


def _check_weights(path: str) -> None:
    folder = Path(path)
    if folder.is_dir() and not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        raise ModelUnusable(f"model.path={path!r} contains no weights (*.safetensors)")


def _plan(config: TrainConfig, assignment: RoleAssignment, episodes: Sequence[Sequence[AgentSequences]]) -> BatchPlan:
    options, sampling, tokens = config.algorithm, config.sampling, config.optimizer.tokens_per_microbatch
    assert tokens is not None
    requests = make_algorithm(options).rollout_plan()
    stochastic = sum(not request.greedy for request in requests)
    max_turns = config.env.max_turns or 1 << 30
    longest = replies = num_trained = columns = sampled = 0
    for episode in episodes:
        reply = 0
        for part in episode:
            limit = assignment.role(part.role).max_tokens or sampling.reply_limit
            left = sampling.max_response_tokens or min(part.turns, max_turns) * limit
            reply += min(part.turns * limit, left)
            for sequence in part.sequences:
                marked = min(limit * sum(mask for mask, _ in groupby(sequence.mask)), left)
                left -= marked
                length = min(sequence.mask.count(0) + marked, sampling.context_length or 1 << 30)
                longest = max(longest, length)
                if part.trained:
                    num_trained, columns, sampled = num_trained + 1, max(columns, length), max(sampled, marked)
        replies = max(replies, reply)
    if not num_trained:
        raise ConfigError("no trained role generated a reply in the previewed tasks: there is nothing to train on")
    groups = -(-options.groups_per_step // options.minibatches)
    rows = min(max(1, tokens // columns), -(-groups * stochastic * num_trained // len(episodes)))
    prompts = [part.sequences[0].mask.index(1) for episode in episodes for part in episode]
    return BatchPlan(
        episodes=options.groups_per_step * len(requests),
        turns=min(max(sum(part.turns for part in episode) for episode in episodes), max_turns),
        prompt=(min(prompts), sum(prompts) / len(prompts), max(prompts)),
        reply=replies,
        longest=longest,
        agents=max(map(len, episodes)),
        optimizer_steps=options.epochs * min(options.minibatches, options.groups_per_step),
        largest=BatchShape(rows, columns, rows * sampled),
    )


def _available(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _free(device: torch.device) -> float:
    """Return the free bytes by which options are chosen; on a CPU they are not."""
    return float(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else math.inf


def _num_weight_sets(config: TrainConfig, assignment: RoleAssignment, train_env: TrainEnv) -> int:
    """Return the number of weight sets served at a time, without the base."""
    served = [name for name in assignment.served(train_env.roles) if name != BASE] or [""]
    return len(served) + (config.opponents.pool if config.opponents.role else 0)


def _served_as(assignment: RoleAssignment, role: str) -> str:
    if role == assignment.opponents.role:
        options = assignment.opponents
        return f"frozen copies, at most {options.pool}, a new one every {options.every} steps"
    if assignment.role(role).adapter == "base":
        return "the model before training"
    served_by = "its own weights" if assignment.role(role).adapter == "own" else "the shared weights"
    return served_by if assignment.trainable(role) else f"{served_by}, not trained on this role"


def _sampler(config: TrainConfig, device: torch.device, available: int, tokens: int, sets: int) -> SamplerShape | None:
    """Return what the sampler needs of the same memory."""
    backend = find_backend(config.sampler.backend)
    if backend.cache_memory is None:
        return None
    cache = backend.cache_memory(config.sampler, device.type == "cuda", available)
    sleeps = cache.can_sleep and not config.asynchrony.steps_ahead
    return SamplerShape(tokens, cache.limit, merges=not cache.preallocated, sets=sets, sleeps=sleeps)


def _memory_lines(found: DryRun) -> Iterator[str]:
    memory, shape = found.memory, found.plan.largest
    yield f"maximum memory on {found.device} ({_size(found.available)} available), without interpreter and libraries"
    parts = {
        **memory.resident,
        f"activations ({shape.rows} x {shape.columns} tokens)": memory.activations,
        **{f"{name} (temporary)": size for name, size in memory.transient.items()},
    }
    for name, size in parts.items():
        if size:
            yield f"  {name:<44} {_size(size):>10}"
    yield f"  {'peak':<44} {_size(memory.peak):>10}"
    for warning in found.warnings:
        yield f"  WARNING {warning}"


def _plan_lines(found: DryRun) -> Iterator[str]:
    plan, config = found.plan, found.config
    algorithm = config.algorithm
    low, mean, high = plan.prompt
    yield "per step, if every reply has its maximum length; measured on some tasks with empty replies"
    greedy = plan.episodes - algorithm.groups_per_step * algorithm.group_size
    episodes = f"{algorithm.groups_per_step} tasks x {algorithm.group_size}" + (f" + {greedy} greedy" if greedy else "")
    yield f"  episodes          {plan.episodes} ({episodes}), {plan.turns} turn{'s' * (plan.turns > 1)} each"
    num_previewed = min(_TASKS, found.train_tasks)
    yield f"  first prompts     {low} … {high} tokens, mean {mean:.0f} over {num_previewed} tasks"
    yield f"  replies           at most {plan.reply} tokens per episode; the longest conversation has {plan.longest}"
    per_pass = plan.optimizer_steps // algorithm.epochs
    passes = f"{algorithm.epochs} passes x {per_pass}" if plan.optimizer_steps > 1 else "one pass"
    yield f"  optimizer steps   {plan.optimizer_steps} ({passes})"
    yield f"  micro-batches     at most {config.optimizer.tokens_per_microbatch:,} tokens"
    for role, weights in found.roles.items():
        yield f"  {'role ' + role:<17} {weights}"
    validation = "none" if found.validation_tasks is None else f"{found.validation_tasks:,}"
    yield f"  tasks             {found.train_tasks:,} for training, {validation} for validation"
    tasks = config.steps * algorithm.groups_per_step
    yield f"  total             {config.steps:,} steps, {tasks:,} tasks, {config.steps * plan.episodes:,} episodes"


def _option_lines(found: DryRun) -> Iterator[str]:
    yield "all options, as a file for --config"
    yield yaml.safe_dump(to_mapping(found.config), sort_keys=False, allow_unicode=True).rstrip()


def _size(number: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"
