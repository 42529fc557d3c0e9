"""Reinforcement learning of a pretrained model (SmolLM2-135M-Instruct) on three tasks, beside TRL's ``GRPOTrainer``.

    rllm-gym model smollm2 --output runs/smollm2
    python -m benchmarks.real_model [--folder runs/real-model] [--parallel 2] [--write]

Each run is a process with one torch thread: three seeds, fixed beforehand, on each task, from the pretrained weights,
with LoRA and the defaults of ``rllm-gym train`` except for those in ``SETTINGS``. ``sums`` and ``arithmetic`` have
one turn, and the reward is whether the last number of the reply is the answer; ``second try`` is
``rllm/MathMultiTurn-v0``, which says what was wrong. Validation problems are never trained on. TRL trains on the same
rows of the first two, with the same reward, model, adapters, batches, lengths and learning rate, for seed 0;
``SETTINGS`` are the options that both have, everything else is as each library sets it. TRL needs an interpreter of its
own (``--peer-python``).

CPU seconds are those of the process without its evaluations. A run with a result in the folder is not repeated, so that
the benchmark can be interrupted. The targets: in each task the median of the seeds rises by 0.40, and no seed by less
than 0.20.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "real_model.md"
SEEDS = (0, 1, 2)
LEAST_MEDIAN_RISE, LEAST_RISE = 0.40, 0.20
SETTINGS = {
    "steps": 60,
    "validate_every": 10,
    "group_size": 8,
    "groups_per_step": 8,
    "max_tokens": 24,
    "lr": 3e-4,
    "lora_rank": 32,
    "lora_alpha": 32,
}
MULTI_TURN = {"id": "rllm/MathMultiTurn-v0", "difficulty": 0, "answer_format": "last_number", "max_turns": 2}
TASKS = ("sums", "arithmetic", "second try")
VALIDATION_TASKS = 100
PROBLEMS = 1000
# Time limit of a run in seconds.
DEADLINE = 3 * 3600


def rows_of(task: str) -> dict[str, list[dict[str, str]]]:
    """Return the rows of a single-turn task: training and validation."""
    if task == "sums":
        pairs = [(a, b) for a in range(1, 30) for b in range(a, 30)]
        rows = [{"prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in pairs]
        chosen = {"train": [row for index, row in enumerate(rows) if index % 4], "validation": rows[::4]}
    else:
        chosen = {split: _problems(split) for split in ("train", "validation")}
    return {**chosen, "validation": chosen["validation"][:VALIDATION_TASKS]}


def _problems(split: str) -> list[dict[str, str]]:
    import gymnasium

    import rllm_gym  # noqa: F401 - registers the environments

    options: dict[str, Any] = {"families": ["arithmetic"], "difficulty": 0, "answer_format": "last_number"}
    env: Any = gymnasium.make("rllm/Math-v0", split=split, num_tasks=PROBLEMS, **options)
    rows = {}
    for index in range(PROBLEMS):
        prompt, _ = env.reset(options={"task": index})
        rows[prompt] = {"prompt": prompt, "answer": env.unwrapped.task.data["gold"]}
    env.close()
    return list(rows.values())


def correct(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """Return 1 for each completion whose last number is the answer."""
    return [float(re.findall(r"-?\d+", text)[-1:] == [right]) for text, right in zip(completions, answer, strict=True)]


def train_ours(job: Mapping[str, Any]) -> list[dict[str, float]]:
    """Train, and return the points of the curve."""
    import torch

    from trainers import TrainConfig, train
    from trainers.algorithms import algorithm_options
    from trainers.callbacks import Callback
    from trainers.config import (
        EnvConfig,
        LoraConfig,
        LoraModelConfig,
        OptimizerConfig,
        SamplingConfig,
        ValidationConfig,
    )

    torch.set_num_threads(1)
    points: list[dict[str, float]] = []
    spent, last = 0.0, time.process_time()

    class Curve(Callback):
        def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
            nonlocal spent, last
            cpu, last = time.process_time() - last, time.process_time()
            walls = {name: value for name, value in metrics.items() if name.startswith("time/") and name != "time/step"}
            # The process only computes, so that its CPU time is divided as the wall time is.
            spent += cpu * (1 - walls.get("time/validation", 0.0) / max(sum(walls.values()), 1e-9))
            if points and points[-1]["step"] == step:
                points[-1]["cpu_seconds"] = spent

        def on_validation(self, step: int, metrics: Mapping[str, float], episodes: Sequence[Any]) -> None:
            nonlocal last
            rates = {"sampled": metrics["validation/success"], "greedy": metrics["validation/greedy_success"]}
            points.append({"step": step, "cpu_seconds": 0.0, **rates})
            if step == 0:
                last = time.process_time()

    config = TrainConfig(
        job["output"],
        steps=job["steps"],
        seed=job["seed"],
        progress=False,
        model=LoraModelConfig(job["model"], lora=LoraConfig(rank=job["lora_rank"], alpha=job["lora_alpha"])),
        sampling=SamplingConfig(max_tokens=job["max_tokens"]),
        algorithm=algorithm_options(group_size=job["group_size"], groups_per_step=job["groups_per_step"]),
        optimizer=OptimizerConfig(lr=job["lr"], schedule="constant"),
        validation=ValidationConfig(every=job["validate_every"], tasks=VALIDATION_TASKS, greedy=True),
        checkpoint=None,
    )
    if job["task"] == "second try":
        kwargs = dict(MULTI_TURN)
        train(_with_env(config, EnvConfig(str(kwargs.pop("id")), kwargs=kwargs)), callbacks=[Curve()])
    else:
        rows = {split: job[split] for split in ("train", "validation")}
        train(config, dataset=rows, reward=correct, callbacks=[Curve()])
    return points


def _with_env(config: Any, env: Any) -> Any:
    from dataclasses import replace

    return replace(config, env=env)


def run_all(options: argparse.Namespace) -> None:
    """Run the jobs without a result, ``--parallel`` at once."""
    pending = [(task, "ours", seed) for seed in SEEDS for task in TASKS]
    if options.peer_python:
        pending += [(task, "trl", 0) for task in TASKS[:2]]
    pending = [names for names in pending if not _file(options.folder, *names).exists()]
    running: list[tuple[tuple[str, str, int], subprocess.Popen[bytes]]] = []
    try:
        while pending or running:
            while pending and len(running) < options.parallel:
                running.append((pending[0], _start(options, *pending.pop(0))))
            names, process = running.pop(0)
            if process.wait(DEADLINE):
                raise SystemExit(f"{' '.join(map(str, names))} failed: see {_file(options.folder, *names)}.log")
            print(*names, json.loads(_file(options.folder, *names).read_text())[-1], flush=True)
    finally:
        for _, process in running:
            process.kill()
            process.wait()


def _file(folder: Path, task: str, side: str, seed: int) -> Path:
    return folder / f"{task.replace(' ', '-')}-{side}-{seed}.json"


def _start(options: argparse.Namespace, task: str, side: str, seed: int) -> subprocess.Popen[bytes]:
    file = _file(options.folder, task, side, seed)
    output = file.with_suffix("")
    if output.exists():
        output.rename(f"{output}.interrupted-{time.time_ns()}")
    output.mkdir(parents=True)
    model = str(options.model.expanduser().resolve())
    job = {**SETTINGS, "task": task, "seed": seed, "model": model, "output": str(output / "run")}
    job |= {} if task == "second try" else rows_of(task)
    (output / "job.json").write_text(json.dumps(job))
    python, script = sys.executable, ["-m", "benchmarks.real_model", "--run"]
    if side == "trl":
        python, script = options.peer_python, [str(ROOT / "benchmarks" / "trl_sides" / "real_model.py")]
    with open(f"{file}.log", "wb") as log:
        words = [python, *script, str((output / "job.json").resolve()), str(file.resolve())]
        return subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def report(folder: Path) -> str:
    """Return the results as Markdown."""
    lines = ["| task | trainer | seed | start | end | rise | greedy | CPU s | success at each evaluation |"]
    lines += ["|---|---|---:|---:|---:|---:|---:|---:|---|"]
    verdicts = []
    for task in TASKS:
        rises = []
        for side, seeds in (("ours", SEEDS), ("trl", (0,))):
            for seed in seeds:
                if not (file := _file(folder, task, side, seed)).exists():
                    continue
                points = json.loads(file.read_text())
                first, last = points[0], points[-1]
                rise = last["sampled"] - first["sampled"]
                rises += [rise] if side == "ours" else []
                curve = " · ".join(f"{point['sampled']:.2f} ({point['cpu_seconds']:.0f} s)" for point in points)
                lines.append(
                    f"| {task} | {'rllm-gym' if side == 'ours' else 'TRL'} | {seed} | {first['sampled']:.2f} | "
                    f"{last['sampled']:.2f} | {rise:+.2f} | {first['greedy']:.2f} → {last['greedy']:.2f} | "
                    f"{last['cpu_seconds']:.0f} | {curve} |"
                )
        if len(rises) == len(SEEDS):
            median, least = statistics.median(rises), min(rises)
            met = median >= LEAST_MEDIAN_RISE and least >= LEAST_RISE
            verdicts.append(f"- {task}: median {median:+.2f}, smallest {least:+.2f}: {'met' if met else 'NOT MET'}")
        both = [_file(folder, task, side, 0) for side in ("ours", "trl")]
        if all(file.exists() for file in both):
            ours, theirs = (json.loads(file.read_text())[-1]["cpu_seconds"] for file in both)
            verdicts.append(f"- {task}: TRL needs {theirs / ours:.1f} × the processor time for the same steps")
    return "\n".join([*lines, "", *verdicts, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/real-model"), help="folder for runs and results")
    parser.add_argument("--model", type=Path, default=Path("runs/smollm2"), help="folder of the model")
    parser.add_argument("--parallel", type=int, default=1, help="number of concurrent runs, one core each")
    parser.add_argument("--peer-python", default="", help="interpreter with TRL; without it only this trainer runs")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    parser.add_argument("--run", nargs=2, type=Path, metavar=("JOB", "RESULT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        points = train_ours(json.loads(options.run[0].read_text()))
        options.run[1].write_text(json.dumps(points) + "\n")
        return
    run_all(options)
    text = report(options.folder)
    print(text)
    if options.write:
        settings = ", ".join(f"{name} {value}" for name, value in SETTINGS.items())
        RESULTS.write_text(
            "# Reinforcement learning of a pretrained model\n\n`python -m benchmarks.real_model --write`, whose "
            f"docstring describes the tasks. Settings of both trainers: {settings}. Success on {VALIDATION_TASKS} "
            f"validation problems, sampled at temperature 1. Python {platform.python_version()}, {platform.machine()}, "
            f"{os.cpu_count()} cores.\n\n{text}"
        )


if __name__ == "__main__":
    main()
