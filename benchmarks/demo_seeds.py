"""Run the demo for three predefined seeds, with full fine-tuning and LoRA: does a tiny model learn to cross new lakes?

Each run is ``examples/demo.py``, unchanged, in its own process. The targets: success before training at most 0.45;
after training a median of at least 0.90 and at least 0.75 for every seed; at most five minutes on two idle cores. The
reference rows are optimal play, and the best sequence of moves that ignores the map.

    python benchmarks/demo_seeds.py            # writes benchmarks/results/demo_seeds.md and .json
    python benchmarks/demo_seeds.py --seeds 0 --tunings full
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MOST_BEFORE, LEAST_MEDIAN, LEAST_EACH, MOST_SECONDS = 0.45, 0.90, 0.75, 300


@dataclass(frozen=True)
class Row:
    """One run: success rates on 256 unseen maps, steps of fine-tuning, seconds, and the largest log-prob difference."""

    tuning: str
    seed: int
    before_sampled: float
    before_greedy: float
    after_sampled: float
    after_greedy: float
    blind: float
    oracle: float
    sft_steps: int
    wall_seconds: float
    cpu_seconds: float
    largest_gap: float


def run(tuning: str, seed: int, folder: Path) -> Row:
    """Run one demo in ``folder``."""
    began, cpu = time.perf_counter(), _children_cpu()
    command = [sys.executable, "-m", "examples.demo", "--seed", str(seed), "--output", str(folder)]
    subprocess.run(
        command + (["--lora"] if tuning == "lora" else []),
        cwd=ROOT,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        stdout=subprocess.DEVNULL,
    )
    wall, spent = time.perf_counter() - began, _children_cpu() - cpu
    before, after, blind, oracle = (row["measures"] for row in _json(folder / "evaluation.json")["rows"])
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    fine_tuning = (folder / "sft" / "metrics.jsonl").read_text().splitlines()
    sampled, greedy = "success, sampled", "success, greedy"
    return Row(
        tuning,
        seed,
        before[sampled]["value"],
        before[greedy]["value"],
        after[sampled]["value"],
        after[greedy]["value"],
        blind[sampled]["value"],
        oracle[sampled]["value"],
        len(fine_tuning),
        wall,
        spent,
        max(row.get("sampling/logprob_difference/max", 0.0) for row in rows),
    )


def table(rows: list[Row]) -> str:
    """Return Markdown: one line per run, then the verdicts."""
    lines = [
        "| tuning | seed | before: sampled, greedy | after: sampled, greedy | SFT steps | wall s | CPU s "
        "| max log-prob difference |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.tuning} | {row.seed} | {row.before_sampled:.3f} / {row.before_greedy:.3f} "
            f"| **{row.after_sampled:.3f}** / {row.after_greedy:.3f} | {row.sft_steps} | {row.wall_seconds:.0f} "
            f"| {row.cpu_seconds:.0f} | {row.largest_gap:.1e} |"
        )
    lines.append(f"| best policy that does not observe the map | | {rows[0].blind:.3f} | | | | | |")
    lines.append(f"| oracle | | {rows[0].oracle:.3f} | | | | | |")
    lines.append("")
    for tuning in dict.fromkeys(row.tuning for row in rows):
        mine = [row for row in rows if row.tuning == tuning]
        median = statistics.median(row.after_sampled for row in mine)
        lines.append(
            f"{tuning}: before at most {max(row.before_sampled for row in mine):.3f} (target {MOST_BEFORE}); after: "
            f"median {median:.3f} (target {LEAST_MEDIAN}), minimum {min(row.after_sampled for row in mine):.3f} "
            "(target "
            f"{LEAST_EACH}); at most {max(row.wall_seconds for row in mine):.0f} s wall (target {MOST_SECONDS} on two "
            "idle cores)."
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tunings", nargs="+", choices=["full", "lora"], default=["full", "lora"])
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of demo_seeds.md and .json")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for tuning in options.tunings:
            for seed in options.seeds:
                rows.append(run(tuning, seed, Path(folder) / f"{tuning}-{seed}"))
                print(table(rows[-1:]).splitlines()[2], flush=True)
    shown = table(rows)
    print(shown)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    machine = (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, load at the end {load}"
    )
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "demo_seeds.md").write_text(
        f"# The demo for seeds {', '.join(map(str, options.seeds))}\n\n`python benchmarks/demo_seeds.py`; success is "
        f"sampled at temperature 1 on 256 maps not used in training. {machine}.\n\n{shown}\n"
    )
    (options.results / "demo_seeds.json").write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    good = all(
        statistics.median(row.after_sampled for row in rows if row.tuning == tuning) >= LEAST_MEDIAN
        for tuning in options.tunings
    )
    good &= all(row.before_sampled <= MOST_BEFORE and row.after_sampled >= LEAST_EACH for row in rows)
    return 0 if good else 1


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _json(file: Path) -> dict[str, list[dict[str, dict[str, dict[str, float]]]]]:
    content: dict[str, list[dict[str, dict[str, dict[str, float]]]]] = json.loads(file.read_text())
    return content


if __name__ == "__main__":
    sys.exit(main())
