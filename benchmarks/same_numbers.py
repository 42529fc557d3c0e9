"""Compare the metrics of short seeded runs at a commit and in the working tree: did a change alter what is trained?

Seven runs of a few steps (SFT, GRPO in full fine-tuning and with LoRA, PPO, ReMax, GSPO on maths with a KL term and
several optimizer steps, DPO), each deterministic, on models and episodes of the same side. Every number of every row
of ``metrics.jsonl`` must be equal, except times, speeds and memory. Exits with 1 if one is not.

    python benchmarks/same_numbers.py main            # writes benchmarks/results/same_numbers.md
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "same_numbers.md"
NOT_COMPARED = ("time/", "throughput/", "memory/")

_SMALL = "--steps 3 --algorithm.group-size 4 --algorithm.groups-per-step 4 --validation.tasks 8 --validation.every 2"
_RL = f"--model.path sft/model --deterministic --save-episodes-every 1 {_SMALL}"
_MATH = "--env.id rllm/Math-v0 --env.kwargs.difficulty 0 --model.tuning full --sampling.max-tokens 16"
RUNS = {
    "sft": ("sft", "--config frozen_lake_sft --stop none --steps 60 --demonstrations-per-step 32"),
    "grpo": ("train", f"--config frozen_lake_full {_RL}"),
    "lora": ("train", f"--config frozen_lake_lora {_RL} --curriculum.replay-by difficulty"),
    "ppo": ("train", f"--config frozen_lake_ppo_full {_RL.replace('--steps 3', '--steps 8')}"),
    "remax": ("train", f"--config frozen_lake_lora {_RL} --algorithm.name remax --algorithm.dynamic-sampling 1"),
    "maths": (
        "train",
        f"{_MATH} {_RL} --algorithm.loss gspo --algorithm.kl 0.1 --algorithm.minibatches 2 --algorithm.epochs 2 "
        "--algorithm.old-logprobs trainer --algorithm.format-penalty 0.5 --algorithm.drop-zero-variance false "
        "--entropy.bonus 0.01",
    ),
    "dpo": (
        "dpo",
        "--model.path sft/model --preferences.file grpo/episodes/*.jsonl --validation.fraction 0.3 --steps 3 "
        "--pairs-per-step 4 --optimizer.lr 1e-3",
    ),
}
"""The command and the options of each run by name, which is also its folder. Later ones use the results of earlier."""


def run_all() -> None:
    """Run all in the current folder, with the packages of ``PYTHONPATH``."""
    from trainers import commands

    for name, (command, words) in RUNS.items():
        status = getattr(commands, command)([*words.split(), "--output", name, "--no-progress"])
        if status:
            raise SystemExit(f"{name} ended with {status}")


def measure(source: Path, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Run all with the packages of ``source`` in ``folder``, and return the rows of each run without times."""
    folder.mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    subprocess.run([sys.executable, __file__, "--run"], cwd=folder, env=environment, check=True)
    rows = {name: (folder / name / "metrics.jsonl").read_text().splitlines() for name in RUNS}
    return {
        name: [
            {key: value for key, value in json.loads(line).items() if not key.startswith(NOT_COMPARED)}
            for line in lines
        ]
        for name, lines in rows.items()
    }


def differences(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    """Return the values of two runs that are not equal."""
    if len(before) != len(after):
        return [f"{len(before)} rows before, {len(after)} after"]
    return [
        f"step {old.get('step')}, {key}: {old.get(key)!r} before, {new.get(key)!r} after"
        for old, new in zip(before, after, strict=True)
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", help="commit to compare the working tree with")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run_all()
        return 0
    if arguments.base is None:
        parser.error("name a commit, for example main")
    commit = _git("rev-parse", "--short", arguments.base)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _git("worktree", "add", "--detach", str(folder / "base"), commit)
        try:
            before = measure(folder / "base", folder / "before")
        finally:
            _git("worktree", "remove", "--force", str(folder / "base"))
        after = measure(ROOT, folder / "after")
    table = ["| run | rows | numbers | different |", "|---|---|---|---|"]
    found = {run: differences(before[run], after[run]) for run in RUNS}
    for run, different in found.items():
        numbers = sum(len(row) for row in after[run])
        table.append(f"| {run} | {len(after[run])} | {numbers} | {len(different)} |")
    lines = [f"{run}: {text}" for run, different in found.items() for text in different[:20]]
    head = _git("rev-parse", "--short", "HEAD")
    text = "\n".join([f"Seeded runs at {commit} (before) and {head} (after).", "", *table, "", *lines]).strip()
    print(text)
    RESULT.write_text(f"# Equal numbers before and after a change\n\n{text}\n")
    return int(any(found.values()))


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
