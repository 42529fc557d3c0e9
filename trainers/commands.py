"""Commands ``rllm-gym train``, ``sft``, ``dpo`` and ``merge``: read options, run, print the location of the result."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllm_gym.commands.errors import CommandError
from rllm_gym.envs import DATASET_ID
from trainers.algorithms.registry import ALGORITHMS
from trainers.config import ConfigError, DpoConfig, SftConfig, TrainConfig, validate
from trainers.config.mapping import Config
from trainers.config_loading import read_command_line

if TYPE_CHECKING:
    from trainers.run.run_folder import RunResult

_EXIT_OK, _EXIT_TERMINATED = 0, 143

_MODEL_OPTIONS = """
  --model.path PATH                         a model's folder or its name on the Hugging Face hub
  --model.tuning lora                       or full, or qlora
  --optimizer.lr RATE"""
_RUN_OPTIONS = """
  --resume                                  continue the run in --output
  --push-to-hub USER/NAME                   upload the model to a private repository of the Hugging Face hub
  --config FILE                             options from a YAML file, or from a recipe of this package"""

_TRAIN = f"""Train a model by reinforcement learning (GRPO by default) in an environment.

  --env.id ID                               the environment; rllm-gym list shows all
  --env.kwargs.NAME VALUE                   an argument of the environment
  --dataset FILE                            or rows with prompts, and
  --reward MODULE:FUNCTION ...              reward functions with TRL's signature; --reward-weights N ... for several
  --validation-dataset FILE                 held-out rows; without it, one tenth of --dataset{_MODEL_OPTIONS}
  --model.dtype float32                     or bfloat16
  --sampling.max-tokens N                   longest reply in tokens
  --algorithm.name NAME                     {", ".join(ALGORITHMS)};
                                            or my_module:MY_ALGORITHM
  --algorithm.group-size N                  episodes of a task in a step
  --algorithm.groups-per-step N
  --steps N
  --validation.every N                      steps between validations on tasks that are not trained on
  --checkpoint.every N                      steps between checkpoints
  --output FOLDER                           metrics, checkpoints and the model (runs/train){_RUN_OPTIONS}
  --dry-run                                 estimate memory and print every option without running
  --help-all                                all options, with those of the chosen algorithm, sampler and tuning

examples:
  rllm-gym train --env.id rllm/Math-v0 --model.path Qwen/Qwen2.5-0.5B-Instruct --sampling.max-tokens 512
  rllm-gym train --dataset rows.jsonl --reward my_module:correct --model.path MODEL
  rllm-gym train --config frozen_lake_full --model.path runs/base/model --output runs/rl --resume
"""

_SFT = f"""Fine-tune a model on demonstrations.

  --demonstrations.file FILE                saved episodes, chats {{"messages": [...]}}, or prompts with completions
  --demonstrations.policy MODULE:FUNCTION   or the episodes of a policy in --env.id{_MODEL_OPTIONS}
  --epochs N                                or --steps N
  --validation.fraction FRACTION            share of the demonstrations that is held out
  --output FOLDER                           metrics, checkpoints and the model (runs/sft){_RUN_OPTIONS}
  --help-all                                all options

examples:
  rllm-gym sft --model.path Qwen/Qwen2.5-0.5B-Instruct --demonstrations.file chats.jsonl --epochs 2
  rllm-gym sft --config frozen_lake_sft --output runs/base
"""

_DPO = f"""Train a model on preferences: pairs of a better and a worse answer (direct preference optimization).

  --preferences.file FILE                   rows {{"prompt", "chosen", "rejected"}}, or episodes{_MODEL_OPTIONS}
  --epochs N                                or --steps N
  --validation.fraction FRACTION            share of the prompts that is held out
  --output FOLDER                           metrics, checkpoints and the model (runs/dpo){_RUN_OPTIONS}
  --help-all                                all options

examples:
  rllm-gym dpo --model.path Qwen/Qwen2.5-0.5B-Instruct --preferences.file pairs.jsonl --validation.fraction 0.1
  rllm-gym dpo --model.path runs/base/model --preferences.file runs/rl/episodes/*.jsonl --output runs/dpo
"""

_MERGE = """Merge an adapter into its base model, so that transformers, vLLM and others load the result without PEFT.

Both the adapter and --output are required:
  rllm-gym merge runs/rl/model --output merged
  rllm-gym merge runs/rl/model --output merged --dtype bfloat16
"""


def train(argv: Sequence[str] | None = None) -> int:
    """Run ``rllm-gym train``. Returns the exit status: 143 after SIGTERM (resume with ``--resume``)."""
    words, repo = _hub_repo(argv)
    is_dry_run = "--dry-run" in words  # an option of this call, not of the run's configuration
    words = [word for word in _dataset_words(words) if word != "--dry-run"]
    config = _read(TrainConfig, words, "rllm-gym train", _TRAIN, has_more=True)
    try:
        validate(config)  # again in the run, but before torch is imported, which takes seconds
    except ConfigError as error:
        raise CommandError(str(error)) from error
    if is_dry_run:
        return _dry_run(config)
    from trainers.loop import train as run

    return _run(run, config, repo)


def sft(argv: Sequence[str] | None = None) -> int:
    """Run ``rllm-gym sft``. Returns the exit status: 143 after SIGTERM (resume with ``--resume``)."""
    words, repo = _hub_repo(argv)
    config = _read(SftConfig, words, "rllm-gym sft", _SFT, has_more=True)
    from trainers.fine_tuning.sft import sft as run

    return _run(run, config, repo)


def dpo(argv: Sequence[str] | None = None) -> int:
    """Run ``rllm-gym dpo``. Returns the exit status: 143 after SIGTERM (resume with ``--resume``)."""
    words, repo = _hub_repo(argv)
    config = _read(DpoConfig, words, "rllm-gym dpo", _DPO, has_more=True)
    from trainers.fine_tuning.dpo import dpo as run

    return _run(run, config, repo)


def merge(argv: Sequence[str] | None = None) -> int:
    """Run ``rllm-gym merge``. Returns the exit status."""
    from trainers.config.merge import MergeConfig

    words: list[str] = []
    adapter: list[str] = []
    takes_value = False
    for word in sys.argv[1:] if argv is None else argv:
        (words if word.startswith("-") or takes_value else adapter).append(word)
        takes_value = word.startswith("--") and "=" not in word and word not in ("--nf4", "--no-nf4", "--help")
    config = _read(MergeConfig, [*words, *(["--adapter", *adapter] if adapter else [])], "rllm-gym merge", _MERGE)
    from transformers.utils.logging import disable_progress_bar

    from trainers.model.merge import merge_adapter

    disable_progress_bar()
    try:
        merged = merge_adapter(config)
    except ConfigError as error:
        raise CommandError(str(error)) from error
    dtype = str(merged.dtype).removeprefix("torch.")
    print(f"model    {merged.output} ({merged.parameters:,} weights in {dtype})\nbase     {merged.base}")
    print(f"check    logits differ by at most {merged.max_logit_difference:.1e} from the base with the adapter")
    if merged.quantized and not config.nf4:
        print(
            "note     the adapter was trained on an NF4 base and merged into the unquantized base, whose weights "
            "differ slightly; use --nf4 to merge into the dequantized NF4 weights"
        )
    return _EXIT_OK


def _read(
    config_type: type[Config], argv: Sequence[str] | None, program: str, description: str, *, has_more: bool = False
) -> Config:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        words = sys.argv[1:] if argv is None else argv
        return read_command_line(config_type, words, program=program, description=description, has_more=has_more)
    except ConfigError as error:
        raise CommandError(str(error)) from error


def _hub_repo(argv: Sequence[str] | None) -> tuple[list[str], str | None]:
    """Return the command line without ``--push-to-hub REPO``, which is an option of this call, and the repository."""
    words = list(sys.argv[1:] if argv is None else argv)
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == "--push-to-hub":
            rest = words[index + 1 :] if equals else words[index + 2 :]
            repo = value or "".join(words[index + 1 : index + 2])
            if not repo or repo.startswith("-"):
                raise CommandError("--push-to-hub has no value; write --push-to-hub USER/NAME")
            return words[:index] + rest, repo
    return words, None


def _with_hub(repo: str, action: str, **arguments: Any) -> None:
    """Call a method of the Hugging Face hub's client on a repository."""
    from huggingface_hub import HfApi

    try:
        getattr(HfApi(), action)(repo_id=repo, **arguments)
    except Exception as error:  # of the client, and of its HTTP library
        raise CommandError(
            f"--push-to-hub {repo}: {error}; log in with `hf auth login` or set HF_TOKEN (to upload a trained model "
            "later: `hf upload REPO FOLDER`)"
        ) from error


def _dashed(word: str) -> str:
    """Return an option with dashes in its name, as other words are."""
    name, equals, value = word.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if word.startswith("--") else word


def _dataset_words(words: Sequence[str]) -> list[str]:
    """Replace ``--dataset`` and ``--reward`` by the options of the environment that they are arguments of."""
    words = [_dashed(word) for word in words]
    given = {word.partition("=")[0] for word in words}
    if "--config" not in given and ("--dataset" in given) != ("--reward" in given):
        raise CommandError(
            "--dataset and --reward belong together: --dataset rows.jsonl --reward my_module:function; an environment "
            "of the package is chosen by --env.id instead"
        )
    has_validation = "--validation-dataset" in given
    options = {
        "--dataset": ["--env.id", DATASET_ID, "--env.kwargs.dataset" + ".train" * has_validation],
        "--reward": ["--env.kwargs.reward"],
        "--reward-weights": ["--env.kwargs.reward_weights"],
        "--validation-dataset": ["--env.kwargs.dataset.validation"],
    }
    return [
        replaced
        for word in words
        for name, equals, value in [word.partition("=")]
        for replaced in ([*options[name], *([value] if equals else [])] if name in options else [word])
    ]


def _dry_run(config: TrainConfig) -> int:
    from rllm_gym.engine import EnvironmentUnavailable
    from trainers.dry_run import dry_run, report

    try:
        print(report(dry_run(config)))
    except (ConfigError, EnvironmentUnavailable) as error:
        raise CommandError(str(error)) from error
    return _EXIT_OK


def _run(
    run: Callable[[Any], RunResult],
    config: TrainConfig | SftConfig | DpoConfig,
    repo: str | None,
) -> int:
    """Run, print where the result is, and return the exit status. Only rank 0 prints, and uploads the model."""
    from transformers.utils.logging import disable_progress_bar

    from rllm_gym.engine import EnvironmentUnavailable
    from rllm_gym.samplers import SamplerError
    from trainers.learner import TrainingDiverged
    from trainers.loop import NoTrainableEpisodes
    from trainers.process_group import ProcessLost
    from trainers.run.checkpoint import CheckpointError

    disable_progress_bar()  # transformers' bars for loading and saving; the run has its own display
    is_main_process = os.environ.get("RANK", "0") == "0"
    if repo and is_main_process:
        _with_hub(repo, "create_repo", private=True, exist_ok=True)  # a missing token must not be found after training
    try:
        result = run(config)
    except (
        ConfigError,
        CheckpointError,
        TrainingDiverged,
        NoTrainableEpisodes,
        EnvironmentUnavailable,
        SamplerError,
        ProcessLost,
    ) as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise CommandError(f"{error}; free disk space for {config.output} and continue with --resume") from error
    except KeyboardInterrupt:
        if is_main_process and (Path(config.output) / "checkpoints").is_dir():
            print("continue with the same command and --resume", file=sys.stderr)
        raise
    if is_main_process:
        _print_result(config, result)
        if repo and result.model is not None:
            _with_hub(repo, "upload_folder", folder_path=str(result.model))
            print(f"uploaded https://huggingface.co/{repo}")
    return _EXIT_TERMINATED if result.interrupted else _EXIT_OK


def _print_result(config: TrainConfig | SftConfig | DpoConfig, result: RunResult) -> None:
    if result.interrupted:
        how = "continue with the same command and --resume" if config.checkpoint else "no checkpoint to continue from"
        print(f"stopped after step {result.steps}; {how}")
        return
    if isinstance(config, SftConfig) and config.stop is not None:
        reached = "reached" if getattr(result, "stopped", False) else "NOT reached"
        print(f"target success rate {reached} after {result.steps} steps")
    for key, value in result.validation.items():
        print(f"{key:<28} {value:.3f}")
    print(f"model    {result.model}\nmetrics  {result.output}/metrics.jsonl (rllm-gym report {result.output})")
