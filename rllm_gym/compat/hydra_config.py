"""Translation of rLLM's Hydra configurations (verl's, with the section ``rllm``) to the options of ``trainers``.

A configuration is any mapping: the ``DictConfig`` of a program with ``@hydra.main``, nested dictionaries, or one with
dotted keys. Each option is translated, or is known to have no effect here (what is about GPUs, processes and memory),
or is an error that names the option to use.
"""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_log = logging.getLogger(__name__)
_SECTIONS = {"actor_rollout_ref", "data", "rllm", "trainer"}

# Options with the same meaning.
_SAME = {
    "actor_rollout_ref.model.path": "model.path",
    "actor_rollout_ref.model.enable_gradient_checkpointing": "model.gradient_checkpointing",
    "actor_rollout_ref.actor.optim.lr": "optimizer.lr",
    "actor_rollout_ref.actor.optim.weight_decay": "optimizer.weight_decay",
    "actor_rollout_ref.actor.grad_clip": "optimizer.max_grad_norm",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "optimizer.tokens_per_microbatch",
    "actor_rollout_ref.actor.ppo_epochs": "algorithm.epochs",
    "actor_rollout_ref.actor.entropy_coeff": "entropy.bonus",
    "actor_rollout_ref.rollout.n": "algorithm.group_size",
    "actor_rollout_ref.rollout.temperature": "sampling.temperature",
    "actor_rollout_ref.rollout.val_kwargs.n": "validation.samples",
    "data.train_batch_size": "algorithm.groups_per_step",
    "data.seed": "seed",
    "rllm.agent.trajectory_timeout": "env.episode_timeout",
    "trainer.default_local_dir": "output",
    "trainer.max_actor_ckpt_to_keep": "checkpoint.keep",
}
_SFT_SAME = {
    "model.partial_pretrain": "model.path",
    "model.enable_gradient_checkpointing": "model.gradient_checkpointing",
    "data.train_files": "demonstrations.file",
    "data.val_files": "validation.file",
    "data.train_batch_size": "demonstrations_per_step",
    "data.max_length": "length.max_length",
    "optim.lr": "optimizer.lr",
    "optim.weight_decay": "optimizer.weight_decay",
    "optim.clip_grad": "optimizer.max_grad_norm",
    "trainer.total_epochs": "epochs",
    "trainer.total_training_steps": "steps",
    "trainer.default_local_dir": "output",
    "trainer.max_ckpt_to_keep": "checkpoint.keep",
}
# Read below, together with others.
_COMBINED = {
    "actor_rollout_ref.actor.": "clip_ratio clip_ratio_low clip_ratio_high loss_agg_mode ppo_mini_batch_size "
    "use_kl_loss kl_loss_coef optim.lr_warmup_steps optim.lr_warmup_steps_ratio optim.warmup_style",
    "actor_rollout_ref.model.": "lora_rank lora_alpha target_modules",
    "actor_rollout_ref.rollout.": "val_kwargs.temperature",
    "algorithm.": "adv_estimator gamma lam norm_adv_by_std_in_grpo use_kl_in_reward kl_ctrl.kl_coef",
    "data.": "max_prompt_length max_response_length",
    "rllm.": "agent.max_steps agent.overlong_filter mask_truncated_samples rejection_sample.enable "
    "rejection_sample.multiplier stepwise_advantage.enable workflow.use_workflow workflow.n_parallel_tasks "
    "workflow.retry_limit",
    "trainer.": "logger total_epochs total_training_steps val_before_train test_freq save_freq resume_mode",
}
_SFT_COMBINED = {
    "data.": "truncation",
    "model.": "lora_rank lora_alpha target_modules",
    "optim.": "warmup_steps_ratio lr_scheduler",
    "trainer.": "logger test_freq save_freq resume_mode",
}
# What is about processes, GPUs and their memory, names of trackers, or is always so. A final dot: the whole section.
_NO_EFFECT = (
    *("ray_init.", "critic.", "fireworks.", "hydra."),
    *("actor_rollout_ref.hybrid_engine", "actor_rollout_ref.ref."),
    *("actor_rollout_ref.model.use_remove_padding", "actor_rollout_ref.model.trust_remote_code"),
    *("actor_rollout_ref.actor.strategy", "actor_rollout_ref.actor.use_dynamic_bsz"),
    *("actor_rollout_ref.actor.ppo_micro_batch_size", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"),
    *("actor_rollout_ref.actor.ulysses_sequence_parallel_size", "actor_rollout_ref.actor.kl_loss_type"),
    *("actor_rollout_ref.actor.fsdp_config.", "actor_rollout_ref.actor.megatron."),
    *("actor_rollout_ref.rollout.name", "actor_rollout_ref.rollout.mode", "actor_rollout_ref.rollout.load_format"),
    *("actor_rollout_ref.rollout.tensor_model_parallel_size", "actor_rollout_ref.rollout.gpu_memory_utilization"),
    *("actor_rollout_ref.rollout.enforce_eager", "actor_rollout_ref.rollout.chat_scheduler"),
    *("actor_rollout_ref.rollout.calculate_log_probs", "actor_rollout_ref.rollout.log_prob_micro_batch_size"),
    *("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",),
    *("actor_rollout_ref.rollout.log_prob_use_dynamic_bsz", "actor_rollout_ref.rollout.val_kwargs.do_sample"),
    *("data.train_files", "data.val_files", "data.val_batch_size", "data.micro_batch_size_per_gpu"),
    *("data.filter_overlong_prompts", "data.filter_overlong_prompts_workers", "data.gen_batch_size", "data.truncation"),
    *("data.multiturn.enable", "data.rllm.tokenize_and_mask_method", "model.trust_remote_code", "model.strategy"),
    *("rllm.agent.name", "rllm.agent.engine_args.", "rllm.env.name", "rllm.accumulate_reasoning"),
    *("trainer.project_name", "trainer.experiment_name", "trainer.default_hdfs_dir", "trainer.critic_warmup"),
    *("trainer.nnodes", "trainer.n_gpus_per_node", "trainer.n_training_gpus_per_node"),
    "ulysses_sequence_parallel_size",
)
# The only value that changes nothing, and what happens with others.
_ALWAYS: dict[str, tuple[tuple[Any, ...], str]] = {
    "actor_rollout_ref.rollout.top_p": ((1,), "training samples from the whole distribution"),
    "actor_rollout_ref.rollout.top_k": ((-1, 0), "training samples from the whole distribution"),
    "actor_rollout_ref.rollout.val_kwargs.top_p": ((1,), "validation samples from the whole distribution"),
    "actor_rollout_ref.rollout.val_kwargs.top_k": ((-1, 0), "validation samples from the whole distribution"),
    "actor_rollout_ref.actor.grad_norm_threshold": ((), "steps with a gradient that is not finite are skipped"),
    "algorithm.clip_advantages": ((False,), "advantages are not clipped"),
    "data.multiturn.messages_key": (("messages",), "rows have the key 'messages'"),
    "rllm.disable_thinking": ((False,), "the chat template decides on thinking"),
    "rllm.stepwise_advantage.mode": (("broadcast",), "every step has the advantage of its trajectory"),
    "rllm.stepwise_advantage.normalize_by_steps": ((False,), "algorithm.aggregation weights the tokens"),
}
_ARGUMENTS = ("rllm.agent.agent_args.", "rllm.env.env_args.")
_FREE = (*_ARGUMENTS, "rllm.compact_filtering.")
_AGGREGATIONS = {
    "token-mean": "token-mean",
    "seq-mean-token-mean": "sequence-mean",
    "seq-mean-token-sum": "constant",
    "seq-mean-token-sum-norm": "constant",
}
_ALGORITHMS = {"gae": "ppo", "reinforce_plus_plus": "reinforce++"}


@dataclass(frozen=True)
class Translation:
    """A translated configuration.

    Attributes:
        options: Nested options of :class:`trainers.TrainConfig`, or of :class:`trainers.SftConfig`.
        agent_args: ``rllm.agent.agent_args``.
        env_args: ``rllm.env.env_args``.
        retry_limit: How often an episode of a workflow is tried.
    """

    options: dict[str, Any]
    agent_args: dict[str, Any]
    env_args: dict[str, Any]
    retry_limit: int = 1


def is_hydra_config(config: Any) -> bool:
    """Return whether a configuration has sections of rLLM's, and not those of ``TrainConfig``."""
    return isinstance(config, Mapping) and any(str(key).split(".")[0] in _SECTIONS for key in config)


def translate(config: Mapping[str, Any], *, workflow: bool, train_rows: int, validation_rows: int) -> Translation:
    """Translate a configuration of reinforcement learning.

    Args:
        config: The configuration.
        workflow: Whether a workflow is trained.
        train_rows, validation_rows: Numbers of rows of the data sets.

    Raises:
        ConfigError: An option is unknown, or its value is; the message lists all of them.
    """
    hydra = _flat(config)
    problems: list[str] = []
    _check_known(hydra, _SAME, _COMBINED, problems)
    options = {ours: hydra[theirs] for theirs, ours in _SAME.items() if hydra.get(theirs) is not None}
    for convert in (_algorithm, _model, _optimizer, _lengths, _rllm):
        options |= convert(hydra, problems)
    if not workflow and hydra.get("rllm.agent.max_steps") is not None:
        options["env.max_turns"] = hydra["rllm.agent.max_steps"]
    batch = max(1, int(options.get("algorithm.groups_per_step", 1)))
    steps = hydra.get("trainer.total_training_steps")
    if steps is None and hydra.get("trainer.total_epochs") is not None:
        steps = max(1, int(hydra["trainer.total_epochs"]) * (train_rows // batch))
    if steps is not None:
        options["steps"] = int(steps)
    options |= _trainer(hydra, problems)
    _raise(problems)
    every = int(hydra.get("trainer.test_freq") or -1)
    if not validation_rows or (every <= 0 and not hydra.get("trainer.val_before_train")):
        options["validation"] = None
    else:
        options |= {
            "validation.tasks": validation_rows,
            "validation.every": every if every > 0 else max(1, int(steps or 1)),
        }
        options["validation.greedy"] = hydra.get("actor_rollout_ref.rollout.val_kwargs.temperature") == 0
    agent_args, env_args = (
        _nested({key.removeprefix(prefix): value for key, value in hydra.items() if key.startswith(prefix)})
        for prefix in _ARGUMENTS
    )
    return Translation(_nested(options), agent_args, env_args, int(hydra.get("rllm.workflow.retry_limit") or 1))


def translate_sft(config: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a configuration of supervised fine-tuning to nested options of ``SftConfig``.

    Raises:
        ConfigError: An option is unknown, or its value is; the message lists all of them.
    """
    hydra = _flat(config)
    problems: list[str] = []
    _check_known(hydra, _SFT_SAME, _SFT_COMBINED, problems)
    options = {ours: hydra[theirs] for theirs, ours in _SFT_SAME.items() if hydra.get(theirs) is not None}
    options |= _adapters(hydra, "model.") | _trainer(hydra, problems)
    truncation = hydra.get("data.truncation", "error")
    options["length.too_long"] = {"left": "cut_left", "right": "cut_right"}.get(truncation, truncation)
    if hydra.get("optim.lr_scheduler") is not None:
        options["optimizer.schedule"] = {"wsd": "linear"}.get(hydra["optim.lr_scheduler"], hydra["optim.lr_scheduler"])
    if "steps" in options:
        options.pop("epochs", None)
        options["optimizer.warmup_steps"] = int(options["steps"] * float(hydra.get("optim.warmup_steps_ratio") or 0))
    if "validation.file" in options and (every := int(hydra.get("trainer.test_freq") or -1)) > 0:
        options["validation.every"] = every
    _raise(problems)
    return _nested(options)


def _algorithm(hydra: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    actor = "actor_rollout_ref.actor."
    options: dict[str, Any] = {}
    name = hydra.get("algorithm.adv_estimator")
    if name is not None:
        name = options["algorithm.name"] = _ALGORITHMS.get(str(name), str(name))
        options["algorithm.loss"] = "clip"
    if name == "grpo" and hydra.get("algorithm.norm_adv_by_std_in_grpo") is not None:
        options["algorithm.normalize_std"] = bool(hydra["algorithm.norm_adv_by_std_in_grpo"])
    if name == "ppo":
        for theirs, ours in (("gamma", "gamma"), ("lam", "gae_lambda")):
            if hydra.get(f"algorithm.{theirs}") is not None:
                options[f"algorithm.{ours}"] = hydra[f"algorithm.{theirs}"]
    for side in ("low", "high"):
        bound = hydra.get(f"{actor}clip_ratio_{side}", hydra.get(f"{actor}clip_ratio"))
        if bound is not None:
            options[f"algorithm.clip_{side}"] = bound
    mode = hydra.get(f"{actor}loss_agg_mode")
    if mode is not None and mode not in _AGGREGATIONS:
        problems.append(f"{actor}loss_agg_mode={mode!r} is not one of {', '.join(_AGGREGATIONS)}")
    elif mode is not None:
        options["algorithm.aggregation"] = _AGGREGATIONS[mode]
    if hydra.get(f"{actor}use_kl_loss"):
        options["algorithm.kl"] = hydra.get(f"{actor}kl_loss_coef", 0.001)
    if hydra.get("algorithm.use_kl_in_reward"):
        options["algorithm.kl_reward"] = hydra.get("algorithm.kl_ctrl.kl_coef", 0.001)
    prompts, size = hydra.get("data.train_batch_size"), hydra.get(f"{actor}ppo_mini_batch_size")
    if prompts and size:
        options["algorithm.minibatches"] = max(1, math.ceil(int(prompts) / int(size)))
    return options


def _model(hydra: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    return _adapters(hydra, "actor_rollout_ref.model.")


def _adapters(hydra: Mapping[str, Any], section: str) -> dict[str, Any]:
    rank = hydra.get(f"{section}lora_rank")
    if not rank:
        return {} if rank is None else {"model.tuning": "full"}
    targets = hydra.get(f"{section}target_modules", "all-linear")
    return {
        "model.tuning": "lora",
        "model.lora.rank": int(rank),
        "model.lora.alpha": float(hydra.get(f"{section}lora_alpha", 16)),
        "model.lora.targets": targets if isinstance(targets, str) else ",".join(targets),
    }


def _optimizer(hydra: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    optim = "actor_rollout_ref.actor.optim."
    style, steps = hydra.get(f"{optim}warmup_style"), hydra.get(f"{optim}lr_warmup_steps")
    options: dict[str, Any] = {} if style is None else {"optimizer.schedule": style}
    if steps is not None and int(steps) >= 0:
        options["optimizer.warmup_steps"] = int(steps)
    elif hydra.get(f"{optim}lr_warmup_steps_ratio"):
        problems.append(f"{optim}lr_warmup_steps_ratio has no effect here: set {optim}lr_warmup_steps")
    elif style is not None:
        options["optimizer.warmup_steps"] = 0
    return options


def _lengths(hydra: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    prompt, response = hydra.get("data.max_prompt_length"), hydra.get("data.max_response_length")
    options: dict[str, Any] = {}
    if response is not None:
        options |= {"sampling.max_tokens": int(response), "sampling.max_response_tokens": int(response)}
        if prompt is not None:
            options["sampling.context_length"] = int(prompt) + int(response)
    return options


def _rllm(hydra: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    reasons = ("max_prompt_length_exceeded", "max_response_length_exceeded", "timeout")
    compact = "rllm.compact_filtering."
    filtered = hydra.get(f"{compact}enable") and any(hydra.get(f"{compact}mask_{why}", True) for why in reasons)
    if filtered and hydra.get(f"{compact}mask_max_turns_exceeded", True):
        _log.warning("%smask_max_turns_exceeded=True has no effect here: such episodes are trained on", compact)
    if filtered or hydra.get("rllm.mask_truncated_samples") or hydra.get("rllm.agent.overlong_filter"):
        options["algorithm.overlong"] = "mask"
    if hydra.get("rllm.rejection_sample.enable"):
        extra = math.ceil(float(hydra.get("rllm.rejection_sample.multiplier") or 1)) - 1
        options |= {"algorithm.drop_zero_variance": True, "algorithm.dynamic_sampling": max(0, extra)}
    if hydra.get("rllm.workflow.use_workflow") and hydra.get("rllm.workflow.n_parallel_tasks") is not None:
        options["env.parallel"] = int(hydra["rllm.workflow.n_parallel_tasks"])
    return options


def _trainer(hydra: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if hydra.get("trainer.logger") is not None:
        named = hydra["trainer.logger"]
        names = [named] if isinstance(named, str) else list(named)
        options["loggers"] = [name for name in names if name != "console"] or None
    mode = hydra.get("trainer.resume_mode")
    if mode is not None:
        if mode not in ("auto", "disable"):
            problems.append(
                f"trainer.resume_mode={mode!r}: a run is resumed from trainer.default_local_dir with 'auto'"
            )
        options["resume"] = mode == "auto"
    every = hydra.get("trainer.save_freq")
    if every is not None:
        options |= {"checkpoint.every": int(every)} if int(every) > 0 else {"checkpoint": None}
    return options


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the options by their dotted names. Reading an OmegaConf mapping resolves its interpolations."""
    flat: dict[str, Any] = {}
    for key in config:
        name, value = f"{prefix}{key}", config[key]
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{name}.")
        else:
            is_list = isinstance(value, Sequence) and not isinstance(value, str)
            flat[name] = list(value) if is_list else value
    return flat


def _check_known(
    hydra: Mapping[str, Any], same: Mapping[str, str], combined: Mapping[str, str], problems: list[str]
) -> None:
    from trainers.config.other_names import instead_of, options_named

    known = {*same, *_ALWAYS, *(prefix + name for prefix, names in combined.items() for name in names.split())}
    for key, value in hydra.items():
        if key in known or (value is None and key in _ALWAYS):
            if key in _ALWAYS and value is not None and value not in _ALWAYS[key][0] and _applies(key, hydra):
                _log.warning("%s=%r has no effect here: %s", key, value, _ALWAYS[key][1])
            continue
        if key.startswith(_FREE) or _without_effect(key):
            continue
        leaf = key.rpartition(".")[2]
        ours = options_named(leaf) or [instead_of(leaf)]
        near = difflib.get_close_matches(key, known, n=1)
        hint = next(filter(None, ours), "")
        hint = f"use {hint}" if options_named(leaf) else hint or (f"did you mean {near[0]}?" if near else "remove it")
        problems.append(f"{key} is not an option of rLLM's that is translated: {hint}")


def _applies(key: str, hydra: Mapping[str, Any]) -> bool:
    return not key.startswith("rllm.stepwise_advantage.") or bool(hydra.get("rllm.stepwise_advantage.enable"))


def _without_effect(key: str) -> bool:
    return any(key == name or (name.endswith(".") and key.startswith(name)) for name in _NO_EFFECT)


def _nested(options: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in options.items():
        *sections, leaf = name.split(".")
        if sections and options.get(sections[0], ...) is None:
            continue  # the section is disabled
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[leaf] = value
    return tree


def _raise(problems: list[str]) -> None:
    from trainers.option_checks import raise_if_any

    raise_if_any(problems)
