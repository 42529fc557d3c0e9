"""Run ``make demo-llm`` for three predefined seeds, and the README's training run: does a real model learn sums?

Each seed is ``examples/demo_llm.py``, unchanged, in its own process, on sums that are not trained on. The targets:
after training a median of at least 0.80 and at least 0.65 for every seed, in at most twelve minutes on two idle cores.
The README's run has other sums and 40 steps; its success by step and its processor time are those that the README
states.

    python benchmarks/demo_llm.py            # writes benchmarks/results/demo_llm.md
    python benchmarks/demo_llm.py --seeds 0 --no-readme
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rllm_gym.commands.model import download_model
from rllm_gym.core import Episode
from rllm_gym.engine import Estimate, compute_pass_at_k, load_episodes

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "demo_llm.md"
STEPS, LEAST_MEDIAN, LEAST_EACH, MOST_SECONDS = 70, 0.80, 0.65, 720


@dataclass(frozen=True)
class Run:
    """One run: its evaluations before and after, and its seconds."""

    seed: int
    before: list[Episode]
    after: list[Episode]
    wall_seconds: float
    cpu_seconds: float

    @property
    def rates(self) -> tuple[Estimate, Estimate]:
        """Success rates with intervals."""
        return compute_pass_at_k(self.before)[1], compute_pass_at_k(self.after)[1]


def timed(command: list[str], folder: Path, threads: int) -> tuple[float, float]:
    """Run a command in a folder; return its seconds and those of the processor."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads)}
    began, usage = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = ended.ru_utime + ended.ru_stime - usage.ru_utime - usage.ru_stime
    return time.perf_counter() - began, cpu


def run_demo(seed: int, folder: Path) -> Run:
    command = [sys.executable, "-m", "examples.demo_llm", "--seed", str(seed), "--output", str(folder / f"{seed}")]
    wall, cpu = timed(command, folder, threads=2)
    before, after = (
        list(load_episodes(folder / f"{seed}" / "episodes" / f"validation-{step:06d}.jsonl")) for step in (0, STEPS)
    )
    return Run(seed, before, after, wall, cpu)


def run_readme(folder: Path) -> str:
    """Run the README's training run on one core; return one line about it."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (code,) = (block for block in blocks if '"runs/sums"' in block)
    wall, cpu = timed([sys.executable, "-c", code], folder, threads=1)
    rows = [json.loads(line) for line in (folder / "runs/sums/metrics.jsonl").read_text().splitlines()]
    rates = {row["step"]: row["validation/success"] for row in rows if "validation/success" in row}
    shown = ", ".join(f"{rate:.2f} after {step}" for step, rate in rates.items())
    return (
        f"The README's run: {cpu / 60:.1f} minutes of processor time ({wall / 60:.1f} of wall time) on one core; "
        f"success on sums held out for validation by steps: {shown}."
    )


def table(runs: list[Run]) -> str:
    """Return Markdown: one line per run, the verdict, and replies to the same sums before and after."""
    lines = ["| seed | before | after | wall s | CPU s |", "|---|---|---|---|---|"]
    for run in runs:
        before, after = run.rates
        lines.append(f"| {run.seed} | {before} | **{after}** | {run.wall_seconds:.0f} | {run.cpu_seconds:.0f} |")
    rates = [run.rates[1].value for run in runs]
    lines += [
        "",
        f"After: median {statistics.median(rates):.3f} (target {LEAST_MEDIAN}), minimum {min(rates):.3f} (target "
        f"{LEAST_EACH}); at most {max(run.wall_seconds for run in runs):.0f} s wall (target {MOST_SECONDS} on two idle "
        "cores).",
        "",
        f"Replies of seed {runs[0].seed}:",
        "",
        "| prompt | before | after |",
        "|---|---|---|",
    ]
    for pair in list(zip(runs[0].before, runs[0].after, strict=True))[:: len(runs[0].after) // 8]:
        steps = [episode.trajectories[0].steps[0] for episode in pair]
        texts = [str(steps[0].chat_completions[-1]["content"]), *(step.model_response for step in steps)]
        lines.append("| " + " | ".join(" ".join(text.split()).replace("|", "\\|") for text in texts) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--readme", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        download_model("smollm2", folder / "runs" / "smollm2")
        runs = []
        for seed in options.seeds:
            runs.append(run_demo(seed, folder))
            print(table(runs[-1:]).splitlines()[2], flush=True)
        shown = table(runs)
        if options.readme:
            shown += f"\n\n{run_readme(folder)}"
    print(shown)
    RESULT.write_text(
        f"# The demo of a real model for seeds {', '.join(map(str, options.seeds))}\n\n`python benchmarks/demo_llm.py`;"
        f" success is sampled at temperature 1 on sums not used in training. {os.cpu_count()} cores, "
        f"{platform.machine()}, Python {platform.python_version()}, load at the start {load}.\n\n{shown}\n"
    )
    rates = [run.rates[1].value for run in runs]
    return 0 if statistics.median(rates) >= LEAST_MEDIAN and min(rates) >= LEAST_EACH else 1


if __name__ == "__main__":
    sys.exit(main())
