"""What a run would do, told without doing it: memory by part, the plan of its batches, its tasks, every option.

No weights are read and nothing is written. What would stop the run at its beginning stops the dry run as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
import yaml

from rllm_gym.chat import ChatRenderer
from rllm_gym.core import TokenSequence
from trainers.algorithms import make_algorithm
from trainers.batching import MicroBatch, Row, make_micro_batches
from trainers.config import ConfigError, TrainConfig, validate
from trainers.memory import BatchShape, MemoryEstimate, estimate_memory, on_gpu
from trainers.metrics import holds_run
from trainers.model import ModelUnusable, choose_device, load_tokenizer
from trainers.model.quantization import check_bitsandbytes
from trainers.optimizers import check_library
from trainers.rollouts import World, open_world
from trainers.settings import to_mapping
from trainers.throughput import TokenCount

# First observations whose length is measured.
_PROMPTS = 16
_WEIGHTS = ("*.safetensors", "*.bin", "*.safetensors.index.json")


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """One training step, if every reply is as long as it may be.

    Attributes:
        episodes: Played in a step, greedy ones included.
        turns: Most turns of an episode.
        prompt: Tokens of the shortest, the mean and the longest first prompt of some training tasks.
        reply: Most tokens sampled in an episode.
        optimizer_steps: In a step, over all passes.
        micro_batches: In one optimizer step, by layout.
        count: Tokens of one optimizer step.
        largest: The micro-batch that needs most memory.
    """

    episodes: int
    turns: int
    prompt: tuple[int, float, int]
    reply: int
    optimizer_steps: int
    micro_batches: dict[str, int]
    count: TokenCount
    largest: BatchShape


@dataclass(frozen=True, slots=True)
class DryRun:
    """What :func:`dry_run` found out.

    Attributes:
        config: Every resolved option.
        device: Where the model would live.
        warnings: Choices that are allowed and rarely meant.
        memory: The estimate.
        available: Bytes of memory the device has.
        plan: One training step.
        train_tasks: How many tasks there are to train on.
        validation_tasks: And to validate on; ``None`` where the environment has none.
    """

    config: TrainConfig
    device: torch.device
    warnings: Sequence[str]
    memory: MemoryEstimate
    available: int
    plan: BatchPlan
    train_tasks: int
    validation_tasks: int | None


def dry_run(config: TrainConfig, *, world: World | None = None) -> DryRun:
    """Find out what a run would need and do.

    Args:
        config: As for :func:`trainers.train`.
        world: Likewise.

    Raises:
        ConfigError: The run could not begin.
    """
    warnings = validate(config)
    if not config.resume and holds_run(Path(config.output)):
        raise ConfigError(
            f"output={config.output!r} already holds a run: go on with it (--resume), or choose another folder"
        )
    device = choose_device(config.model.device)
    check_library(config.optimizer)
    if config.model.tuning == "qlora":
        check_bitsandbytes("model.tuning=qlora")
    _check_weights(config.model.path)
    tokenizer = load_tokenizer(config.model.path)
    world = world or open_world(config.env)
    plan = _plan(config, world, ChatRenderer(tokenizer))
    memory = estimate_memory(
        config.model,
        config.optimizer,
        plan.largest,
        reference=config.algorithm.kl > 0,
        sampler_tokens=config.env.parallel * (plan.prompt[2] + plan.reply),
    )
    available = _available(device)
    if memory.peak > available:
        warnings.append(
            f"{_size(memory.peak)} are more than the {_size(available)} there are; what helps, most first: "
            "model.gradient_checkpointing, a smaller optimizer.tokens_per_microbatch, model.tuning=qlora, "
            "optimizer.name=adamw8bit, a smaller env.parallel"
        )
    if config.optimizer.name.startswith("paged") and not on_gpu(config.model.device):
        warnings.append(
            f"optimizer.name={config.optimizer.name} on a CPU: its state is paged by nothing but the system"
        )
    validation = None if world.validation is None else len(world.validation)
    return DryRun(config, device, warnings, memory, available, plan, len(world.train), validation)


def report(found: DryRun) -> str:
    """For a person to read: memory, plan, tasks, then the options as YAML."""
    return "\n".join([*_memory_lines(found), "", *_plan_lines(found), "", *_option_lines(found)])


def _check_weights(path: str) -> None:
    folder = Path(path)
    if folder.is_dir() and not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        raise ModelUnusable(f"model.path={path!r} holds no weights (*.safetensors)")


def _plan(config: TrainConfig, world: World, renderer: ChatRenderer) -> BatchPlan:
    algorithm, options = make_algorithm(config.algorithm, config.value, config.sampling), config.algorithm
    drawn = algorithm.plan()
    prompts, turns = _first_prompts(config, world, renderer)
    lengths = [len(prompt) for prompt in prompts]
    limits = config.sampling
    reply = min(turns * limits.max_tokens, limits.max_response_tokens or 1 << 30)
    if limits.context_length:
        reply = max(1, min(reply, limits.context_length - max(lengths)))
    groups = -(-options.groups_per_step // options.minibatches)
    learnt = sum(not draw.greedy for draw in drawn)
    rows = list(_longest_rows(prompts, groups, learnt, reply))
    batches = make_micro_batches(
        rows,
        tokens_per_microbatch=config.optimizer.tokens_per_microbatch,
        share_prompts=True,
    )
    count, layouts = TokenCount(), dict[str, int]()
    for batch in batches:
        count.add(batch)
        layout = _layout(batch)
        layouts[layout] = layouts.get(layout, 0) + 1
    largest = max(batches, key=lambda batch: batch.ids_BT.numel())
    size, length = largest.ids_BT.shape
    return BatchPlan(
        episodes=options.groups_per_step * len(drawn),
        turns=turns,
        prompt=(min(lengths), sum(lengths) / len(lengths), max(lengths)),
        reply=reply,
        optimizer_steps=options.epochs * options.minibatches,
        micro_batches=layouts,
        count=count,
        largest=BatchShape(size, length, len(largest.row_N)),
    )


def _first_prompts(config: TrainConfig, world: World, renderer: ChatRenderer) -> tuple[list[tuple[int, ...]], int]:
    """Token ids that the model is shown at first in some training tasks, and most turns of an episode."""
    kwargs = dict(world.train_kwargs)
    env: Any = gymnasium.make(world.env, **kwargs) if isinstance(world.env, str) else world.env(**kwargs)
    try:
        prompts = []
        for index in range(min(_PROMPTS, len(world.train))):
            agent = world.agent()
            agent.reset()
            observation, info = env.reset(seed=index, options={"task": world.train[index]})
            tools = str(info.get("tools", "[]")) if agent.uses_tools else "[]"
            agent.update_from_env(observation, 0.0, False, info)
            prompts.append(renderer.extend(None, list(agent.chat_completions), tools).context_ids)
        turns = int(getattr(env.unwrapped, "max_turns", 1))
    finally:
        env.close()
    if not prompts:
        raise ConfigError(f"env.id={config.env.id!r} has no training tasks")
    return prompts, min(turns, config.env.max_turns or turns)


def _longest_rows(prompts: list[tuple[int, ...]], groups: int, size: int, reply: int) -> Iterator[Row]:
    """A step's episodes with every reply as long as it may be and no two alike."""
    rng = np.random.default_rng(0)
    for group in range(groups):
        prompt = prompts[group % len(prompts)]
        n = len(prompt)
        for _ in range(size):
            ids = (*prompt, *rng.integers(0, 1 << 31, reply).tolist())
            mask = (0,) * n + (1,) * reply
            nothing = (0.0,) * len(ids)
            yield Row(TokenSequence(ids, mask, nothing, mask, nothing, mask), {"adv": np.ones(reply)})


def _layout(batch: MicroBatch) -> str:
    if batch.end_BT is None:
        return "padded"
    count = TokenCount()
    count.add(batch)
    return "trie" if count.computed < count.sequences else "packed"


def _available(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _memory_lines(found: DryRun) -> Iterator[str]:
    memory, shape = found.memory, found.plan.largest
    yield f"memory at most, on {found.device} ({_size(found.available)}); the interpreter and its libraries on top"
    parts = {
        **memory.held,
        f"activations ({shape.rows} x {shape.columns} tokens)": memory.kept,
        **{f"{name}, for a while": size for name, size in memory.passing.items()},
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
    yield "each step, if every reply is as long as it may be"
    greedy = plan.episodes - algorithm.groups_per_step * algorithm.group_size
    drawn = f"{algorithm.groups_per_step} tasks x {algorithm.group_size}" + (f" + {greedy} greedy" if greedy else "")
    yield f"  episodes          {plan.episodes} ({drawn}), at most {plan.turns} turn{'s' * (plan.turns > 1)} each"
    asked = min(_PROMPTS, found.train_tasks)
    yield f"  first prompts     {low} … {high} tokens, {mean:.0f} in the mean of {asked} tasks"
    later = "; what the environment says later is not counted" if plan.turns > 1 else ""
    yield f"  replies           at most {plan.reply} tokens an episode{later}"
    passes = f"{algorithm.epochs} passes x {algorithm.minibatches}" if plan.optimizer_steps > 1 else "one pass"
    yield f"  optimizer steps   {plan.optimizer_steps} ({passes})"
    layouts = ", ".join(f"{number} {layout}" for layout, number in sorted(plan.micro_batches.items()))
    budget = config.optimizer.tokens_per_microbatch
    yield f"  micro-batches     {layouts} in an optimizer step, of at most {budget:,} tokens"
    numbers = plan.count.metrics()
    yield (
        f"  tokens            {plan.count.sequences:,} in an optimizer step; {numbers['sharing']:.0%} saved by what "
        f"sequences share, {numbers['padding']:.0%} of the places are padding"
    )
    validation = "none" if found.validation_tasks is None else f"{found.validation_tasks:,}"
    yield f"  tasks             {found.train_tasks:,} to train on, {validation} to validate on"
    dealt = config.steps * algorithm.groups_per_step
    yield f"  the run           {config.steps:,} steps, {dealt:,} tasks, {config.steps * plan.episodes:,} episodes"


def _option_lines(found: DryRun) -> Iterator[str]:
    yield "every option, as a file for --config"
    yield yaml.safe_dump(to_mapping(found.config), sort_keys=False, allow_unicode=True).rstrip()


def _size(number: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"
