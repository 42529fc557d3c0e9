"""Measure learning in teams: two adapters at tic-tac-toe against fixed opponents, and a judge with several solvers.

    python -m benchmarks.multiagent [--folder runs/multiagent] [--families tictactoe pairs] [--seeds 0 1 2] [--write]

*tictactoe*: crosses and noughts are two roles with one adapter each on a tiny model that is created here. They learn
from games against each other and against a random player, and are measured on start positions that were not trained
on, against the random player and against optimal play. *pairs*: four solvers and a judge that sees each answer alone
(the built-in ``BestOfN``, one adapter per role) on problems of ``rllm/Math-v0`` that are easier to check than to solve;
the answer that the judge chooses should be right more often than that of a single solver.

Each seed of a family is a separate process (``multiagent_run.py``) and writes its result to a file in the folder;
existing results are not recomputed. ``--write`` creates ``benchmarks/results/multiagent.md``, ``.json`` and ``.svg``.

The targets: with every seed each role wins more of its games against the random player than before, and the team solves
more than a solver of the same weights alone, and more than before.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.charts import Series, line_chart

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
FAMILIES = ("tictactoe", "pairs")
# Time limit of a seed in seconds.
DEADLINE = 2 * 3600
CURVES = {
    "tictactoe": ("cross won, random", "nought won, random"),
    "pairs": ("joint", "solver alone", "any solver"),
}
_TITLES = {
    "tictactoe": "Tic-tac-toe: games won against the random player (validation positions)",
    "pairs": "Pairs: problems solved (validation problems)",
}


def run_missing(folder: Path, families: Sequence[str], seeds: Sequence[int]) -> None:
    """Run the seeds that have no result.

    Raises:
        subprocess.CalledProcessError: A seed failed; its output has been shown.
        subprocess.TimeoutExpired: It exceeded its time limit.
    """
    for seed in seeds:
        for family in families:
            if not (folder / f"{family}-{seed}.json").exists():
                print(f"{family}, seed {seed} …", flush=True)
                command = [sys.executable, "-m", "benchmarks.multiagent_run", str(folder), family, str(seed)]
                environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
                subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=DEADLINE)


def results_in(folder: Path, families: Sequence[str], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return the results of every seed, by family."""
    return [json.loads((folder / f"{family}-{seed}.json").read_text()) for family in families for seed in seeds]


def table(results: Sequence[dict[str, Any]], family: str) -> list[str]:
    """Return the results before and after training for each seed, with the medians."""
    own = [item for item in results if item["family"] == family]
    names = list(own[0]["before"])
    lines = [
        f"| {family} | " + " | ".join(f"seed {item['seed']}" for item in own) + " | median |",
        "|---" * (len(own) + 2) + "|",
    ]
    for name in names:
        pairs = [(item["before"][name], item["after"][name]) for item in own]
        before, after = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
        cells = " | ".join(f"{old:.3f} → {new:.3f}" for old, new in pairs)
        lines.append(f"| {name} | {cells} | {before:.3f} → **{after:.3f}** |")
    seconds = [sum(item["cpu_seconds"].values()) for item in own]
    lines.append("| CPU s, base and training | " + " | ".join(f"{item:.0f}" for item in seconds)
                 + f" | {statistics.median(seconds):.0f} |")  # fmt: skip
    return lines


def verdicts(results: Sequence[dict[str, Any]]) -> list[tuple[str, bool]]:
    """Return the targets, and whether each was reached with every seed."""
    output = []
    for item in results:
        before, after, where = item["before"], item["after"], f"{item['family']}, seed {item['seed']}"
        if item["family"] == "tictactoe":
            for name in CURVES["tictactoe"]:
                words = f"{where}: {name} {before[name]:.3f} → {after[name]:.3f}"
                output.append((words, after[name] > before[name]))
            continue
        joint, alone = after["joint"], after["solver alone"]
        output.append((f"{where}: the team solves {joint:.3f}, a solver alone {alone:.3f}", joint > alone))
        output.append(
            (f"{where}: the team solved {before['joint']:.3f} before, now {joint:.3f}", joint > before["joint"])
        )
    return output


def plot(results: Sequence[dict[str, Any]]) -> str:
    """Return an SVG with the curves of each family, medians over the seeds."""
    colours = ["#1b6ef3", "#d9480f", "#868e96"]
    style = "".join(f".c{i}{{stroke:{colour}}}circle.c{i}{{fill:{colour}}}" for i, colour in enumerate(colours))
    style += (
        "text{font:11px sans-serif;fill:#495057}.title{font-weight:600;font-size:13px;fill:#212529}"
        ".grid{stroke:#e9ecef}.axis{stroke:#868e96}.curve{fill:none;stroke-width:1.8}"
    )
    families = list(dict.fromkeys(item["family"] for item in results))
    parts, width, height = [], 640, 320
    for across, family in enumerate(families):
        x = across * width
        curves = [item["curve"] for item in results if item["family"] == family]
        series = [Series(name, _median_curve(curves, name)) for name in CURVES[family]]
        parts.append(f'<text class="title" x="{x + 52}" y="18">{_TITLES[family]}</text>')
        drawn = line_chart(series, share=True, label=_TITLES[family])
        parts.append(drawn.replace("<svg ", f'<svg x="{x}" y="28" width="{width}" height="250" ', 1))
        for place, (name, colour) in enumerate(zip(CURVES[family], colours, strict=False)):
            parts.append(f'<rect x="{x + 52 + place * 170}" y="292" width="12" height="12" fill="{colour}"/>')
            parts.append(f'<text x="{x + 70 + place * 170}" y="302">{name}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {len(families) * width} {height}" '
        f'width="{len(families) * width}"><style>{style}</style><rect width="100%" height="100%" fill="#ffffff"/>'
        f"{''.join(parts)}</svg>\n"
    )


def _median_curve(curves: Sequence[Sequence[dict[str, float]]], name: str) -> list[tuple[float, float]]:
    return [
        (points[0]["step"], statistics.median(point[name] for point in points)) for points in zip(*curves, strict=False)
    ]


def write_results(results: Sequence[dict[str, Any]], folder: Path) -> None:
    families = list(dict.fromkeys(item["family"] for item in results))
    seeds = ", ".join(map(str, sorted({item["seed"] for item in results})))
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    output = "\n".join(f"- {'met' if met else 'NOT MET'}: {words}" for words, met in verdicts(results))
    tables = "\n\n".join("\n".join(table(results, family)) for family in families)
    (folder / "multiagent.md").write_text(
        "# Multi-agent learning\n\n`python -m benchmarks.multiagent --write`. Before and after training, sampled at "
        f"temperature 1, on test tasks that were not used in training; seeds {seeds}. *won, random* is the share "
        "of 512 games won against a player that moves at random, *optimal* against optimal play; start positions are "
        "one to "
        "four moves into the game. A random player itself wins 0.57 as crosses and 0.33 as noughts, an optimal one "
        "0.95 and 0.67. *joint* is the share of 512 problems of which the judge chose a correct answer, *solver alone* "
        "that of correct answers, *any solver* of problems with a correct one among four, the upper bound for "
        f"the judge. One torch thread; {os.cpu_count()} shared cores, {platform.machine()}, Python "
        f"{platform.python_version()}, load at the end {load}.\n\n{tables}\n\n{output}\n\n"
        "![Medians over the seeds](multiagent.svg)\n"
    )
    (folder / "multiagent.svg").write_text(plot(results))
    (folder / "multiagent.json").write_text(json.dumps(list(results)) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/multiagent"), help="folder for runs and their results"
    )
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/multiagent.*")
    options = parser.parse_args(arguments)
    run_missing(options.folder.resolve(), options.families, options.seeds)
    results = results_in(options.folder, options.families, options.seeds)
    for family in options.families:
        print("\n".join(table(results, family)), end="\n\n")
    output = verdicts(results)
    print("\n".join(f"{'met' if met else 'NOT MET'}: {words}" for words, met in output))
    if options.write:
        write_results(results, RESULTS)
    return 0 if all(met for _, met in output) else 1


if __name__ == "__main__":
    sys.exit(main())
