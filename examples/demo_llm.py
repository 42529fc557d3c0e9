"""A pretrained language model learns sums in ten minutes on two cores: SmolLM2-135M-Instruct, GRPO, LoRA.

``make demo-llm`` runs it. There is no fine-tuning before: the model starts from its own way to reply, which is long and
mostly wrong, and gets reward 1 if the last number of its reply is the sum. It is evaluated on sums that it was not
trained on.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers.utils.logging import disable_progress_bar

from examples.demo import new_folder
from rllm_gym.commands.model import download_model
from rllm_gym.commands.view.report import write_report
from rllm_gym.core import Episode
from rllm_gym.engine import compute_pass_at_k, load_episodes
from trainers import TrainConfig, TrainResult, train
from trainers.algorithms import algorithm_options
from trainers.config import ModelConfig, OptimizerConfig, SamplingConfig, ValidationConfig


def sums() -> dict[str, list[dict[str, str]]]:
    """Return the sums of two numbers from 1 to 29, the smaller one first: every fourth is for evaluation alone."""
    rows = [{"prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(1, 30) for b in range(a, 30)]
    return {
        "train": [row for index, row in enumerate(rows) if index % 4],
        "validation": [row for index, row in enumerate(rows) if not index % 4],
    }


def correct(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """Return 1 for a reply whose last number is the sum, else 0."""
    return [float(re.findall(r"\d+", text)[-1:] == [right]) for text, right in zip(completions, answer, strict=True)]


def run_demo(folder: Path, *, seed: int, steps: int, resume: bool = False) -> TrainResult:
    """Train, and evaluate before the first step and at the end."""
    dataset = sums()
    config = TrainConfig(
        str(folder),
        steps=steps,
        seed=seed,
        resume=resume,
        model=ModelConfig(path=str(download_model("smollm2", Path("runs/smollm2")))),
        sampling=SamplingConfig(max_tokens=24),
        algorithm=algorithm_options(group_size=8, groups_per_step=8),
        optimizer=OptimizerConfig(lr=3e-4),
        validation=ValidationConfig(every=steps, tasks=len(dataset["validation"])),
    )
    return train(config, dataset=dataset, reward=correct)


def evaluated(folder: Path, step: int) -> list[Episode]:
    """Return the episodes of an evaluation."""
    return list(load_episodes(folder / "episodes" / f"validation-{step:06d}.jsonl"))


def _table(before: list[Episode], after: list[Episode], number: int) -> Table:
    table = Table(
        "prompt", "reply before", "reply after", title="\nSums that were not trained on", title_justify="left"
    )
    for pair in list(zip(before, after, strict=True))[:: max(1, len(after) // number)]:
        steps = [episode.trajectories[0].steps[0] for episode in pair]
        replies = [
            Text(" ".join(step.model_response.split()), style="green" if episode.success else "red")
            for episode, step in zip(pair, steps, strict=True)
        ]
        table.add_row(str(steps[0].chat_completions[-1]["content"]), *replies)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="demo_llm", description="Train SmolLM2-135M-Instruct on sums with GRPO and LoRA, and show its replies."
    )
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--steps", type=int, default=70, help="number of GRPO steps (default: 70)")
    parser.add_argument("--threads", type=int, default=2, help="number of torch threads (default: 2)")
    parser.add_argument("--output", type=Path, help="default: a new folder under runs/")
    parser.add_argument("--resume", action="store_true", help="continue the run in --output, which was stopped")
    options = parser.parse_args()
    if options.resume and options.output is None:
        parser.error("--resume needs --output, the folder of the run")
    disable_progress_bar()
    console, started = Console(), time.perf_counter()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    folder = options.output or new_folder(Path("runs"), f"demo-llm-seed{options.seed}")
    result = run_demo(folder, seed=options.seed, steps=options.steps, resume=options.resume)
    if result.model is None:
        raise SystemExit(
            f"stopped after step {result.steps}; continue with\n"
            f"python -m examples.demo_llm --seed {options.seed} --steps {options.steps} --output {folder} --resume"
        )
    before, after = evaluated(folder, 0), evaluated(folder, options.steps)
    write_report([folder], folder / "report.html")
    console.print(_table(before, after, 12))
    scores = [compute_pass_at_k(episodes)[1] for episodes in (before, after)]
    console.print(
        f"success on {len(after)} sums that were not trained on, sampled at temperature 1\n"
        f"before  {scores[0]}\n"
        f"after   {scores[1]}\n"
        f"{time.perf_counter() - started:.0f} s in total\n"
        f"report  {folder / 'report.html'}\n"
        f"model   {result.model} (a LoRA adapter)",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()
