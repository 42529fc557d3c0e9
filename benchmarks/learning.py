"""Compare how fast and how far algorithms learn: success on unseen tasks against episodes and CPU seconds.

    python -m benchmarks.learning [--folder runs/learning] [--parallel 2] [--write]
    python -m benchmarks.learning --families lake --algorithms grpo ppo-turn --tunings full --seeds 0

For a seed, every algorithm starts from the same base model and plays the same number of episodes, with the options of
its family's recipe except for those in ``ALGORITHMS`` in ``learning_run.py``. Each run is a separate process and writes
its result to a file in the folder; runs with a result are not repeated, so that the machine may be switched off in
between. ``--write`` creates ``benchmarks/results/learning.md``, ``.json`` and ``.svg`` from the existing results.

The targets: GRPO, ReMax and PPO per turn reach a median of at least 0.90 with full fine-tuning and 0.85 with LoRA, no
algorithm ends below its starting point, and counting letters rises by 0.40 sampled and 0.15 greedy.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.charts import Series, line_chart

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
LAKE = ["grpo", "dr-grpo", "rloo", "remax", "reinforce++", "rebn", "ppo-token", "ppo-turn"]
LEAST_MEDIAN = {"full": 0.90, "lora": 0.85}
MUST_REACH = ["grpo", "remax", "ppo-turn"]
LEAST_RISE = {"sampled": 0.40, "greedy": 0.15}
# Time limit of a run in seconds.
DEADLINE = 4 * 3600


@dataclass(frozen=True)
class Job:
    """One process: its command-line arguments, and the job whose result it starts from."""

    what: str
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        return "-".join(self.names)

    @property
    def needs(self) -> Job | None:
        return Job("base", (self.names[0], self.names[-1])) if self.what == "train" else None


def jobs(families: Sequence[str], algorithms: Sequence[str], tunings: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """Return all jobs: seeds outermost, so that every algorithm has one result before any has two."""
    wanted: list[Job] = []
    for seed in seeds:
        for family in families:
            wanted.append(Job("base", (family, str(seed))))
            for tuning in tunings if family == "lake" else ["full"]:
                for algorithm in algorithms if family == "lake" else ["grpo"]:
                    wanted.append(Job("train", (family, algorithm, tuning, str(seed))))
    return wanted


def run_all(wanted: Sequence[Job], folder: Path, parallel: int) -> list[str]:
    """Run jobs without a result, ``parallel`` processes at once. Return the names of those that failed."""
    pending = [job for job in wanted if not (folder / f"{job.name}.json").exists()]
    running: dict[Job, subprocess.Popen[bytes]] = {}
    began, failed, total = time.perf_counter(), [], len(wanted)
    with contextlib.ExitStack() as closing:
        closing.enter_context(_alone_in(folder))
        while pending or running:
            for job in [job for job in pending if _ready(job, folder)][: parallel - len(running)]:
                pending.remove(job)
                running[job] = closing.enter_context(_process(job, folder))
            if not running:
                failed += [job.name for job in pending]  # the job they start from has failed
                break
            ended = _wait_for_one(running)
            process = running.pop(ended)
            done = sum((folder / f"{job.name}.json").exists() for job in wanted)
            output = _summary(folder, ended) if process.returncode == 0 else f"FAILED, see {folder / ended.name}.log"
            if process.returncode != 0:
                failed.append(ended.name)
            minutes = (time.perf_counter() - began) / 60
            print(f"[{done}/{total} after {minutes:.0f} min] {ended.name}: {output}", flush=True)
    return failed


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder.

    Raises:
        SystemExit: Another process runs jobs in this folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another process runs jobs in {folder}: wait for it, or pass another --folder") from None
        yield


def _ready(job: Job, folder: Path) -> bool:
    return job.needs is None or (folder / f"{job.needs.name}.json").exists()


@contextlib.contextmanager
def _process(job: Job, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process of a job; it ends with this process."""
    leftovers = folder / job.name
    if leftovers.exists():  # an interrupted run starts over, because its CPU time would be unknown
        leftovers.rename(folder / f"{job.name}.interrupted-{time.time_ns()}")
    module, where = "benchmarks.learning_run", str(folder.resolve())
    command = [sys.executable, "-m", module, where, job.what, *job.names, "--end-with-stdin"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with open(folder / f"{job.name}.log", "wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def _wait_for_one(running: dict[Job, subprocess.Popen[bytes]]) -> Job:
    """Return the first of the processes to end."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        for job, process in running.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1.0)
                return job
    names = ", ".join(job.name for job in running)
    raise SystemExit(f"no run finished within {DEADLINE} s: {names}")


def _summary(folder: Path, job: Job) -> str:
    result = read(folder, job)
    success = result["success"] if job.what == "base" else result["after"]
    return f"sampled {success['sampled']:.3f}, greedy {success['greedy']:.3f}, {result['cpu_seconds']:.0f} CPU-s"


def read(folder: Path, job: Job) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / f"{job.name}.json").read_text())
    return content


def results_in(folder: Path, wanted: Sequence[Job]) -> tuple[list[dict[str, Any]], dict[tuple[str, int], Any]]:
    """Return the existing results: of training runs, and success of their base models by family and seed."""
    found = [(job, read(folder, job)) for job in wanted if (folder / f"{job.name}.json").exists()]
    trained = [result for job, result in found if job.what == "train"]
    bases = {(result["family"], result["seed"]): result["success"] for job, result in found if job.what == "base"}
    return trained, bases


def by_algorithm(trained: Sequence[dict[str, Any]], family: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the runs of a family by tuning and algorithm, in the order of the table."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for tuning in ("full", "lora"):
        for algorithm in LAKE:
            runs = [
                run
                for run in trained
                if (run["family"], run["algorithm"], run["tuning"]) == (family, algorithm, tuning)
            ]
            if runs:
                groups[tuning, algorithm] = sorted(runs, key=lambda run: int(run["seed"]))
    return groups


def table(trained: Sequence[dict[str, Any]], bases: dict[tuple[str, int], Any]) -> list[str]:
    """Return Markdown: one line per algorithm and tuning."""
    lines = []
    for family, title in (("lake", "FrozenLake, several turns"), ("letters", "Count a letter among six, one turn")):
        groups = by_algorithm(trained, family)
        if not groups:
            continue
        lines += [
            f"## {title}",
            "",
            "| tuning | algorithm | sampled: median (seeds) | greedy: median | from (sampled, greedy) | episodes | "
            "CPU s | CPU s to 0.80 | skipped |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for (tuning, algorithm), runs in groups.items():
            sampled = [run["after"]["sampled"] for run in runs]
            before = [bases[family, run["seed"]] for run in runs]
            lines.append(
                f"| {tuning} | {algorithm} | **{statistics.median(sampled):.3f}** "
                f"({' · '.join(f'{value:.3f}' for value in sampled)}) "
                f"| {_median(run['after']['greedy'] for run in runs):.3f} "
                f"| {_median(base['sampled'] for base in before):.3f}, "
                f"{_median(base['greedy'] for base in before):.3f} "
                f"| {runs[0]['episodes']:,} | {_median(run['cpu_seconds'] for run in runs):.0f} "
                f"| {_time_to(runs, 0.80)} | {sum(run['skipped_updates'] for run in runs):.0f} |"
            )
        lines.append("")
    return lines


def verdicts(trained: Sequence[dict[str, Any]], bases: dict[tuple[str, int], Any]) -> list[tuple[str, bool]]:
    """Return the targets, and whether each was reached."""
    output: list[tuple[str, bool]] = []
    for (tuning, algorithm), runs in by_algorithm(trained, "lake").items():
        median, least = _median(run["after"]["sampled"] for run in runs), LEAST_MEDIAN[tuning]
        if algorithm in MUST_REACH:
            output.append((f"{algorithm}, {tuning}: median {median:.3f} (target {least})", median >= least))
        worse = [run["seed"] for run in runs if run["after"]["sampled"] < bases["lake", run["seed"]]["sampled"]] + [
            run["seed"] for run in runs if run["diverged"]
        ]
        if worse:
            output.append((f"{algorithm}, {tuning}: diverged with seed {', '.join(map(str, worse))}", False))
    if trained and not any("diverged" in words for words, _ in output):
        output.append(("no run diverged", True))
    for (_, algorithm), runs in by_algorithm(trained, "letters").items():
        for how, least in LEAST_RISE.items():
            rise = _median(run["after"][how] - bases["letters", run["seed"]][how] for run in runs)
            output.append((f"{algorithm}, letters: {how} rises by {rise:.3f} (target {least})", rise >= least))
    return output


def _median(values: Iterator[float]) -> float:
    return statistics.median(list(values))


def _time_to(runs: Sequence[dict[str, Any]], success: float) -> str:
    """Return the median over the seeds of the CPU seconds until validation success first reached a value, if it did."""
    reached = [
        next((point["cpu_seconds"] for point in run["curve"] if point["sampled"] >= success), float("inf"))
        for run in runs
    ]
    median = statistics.median(reached)
    return f"{median:.0f}" if median < float("inf") else "–"


def plot(trained: Sequence[dict[str, Any]]) -> str:
    """Return an SVG: sampled success on the lake's validation maps by tuning, over episodes and CPU seconds."""
    colours = ["#1b6ef3", "#d9480f", "#2b8a3e", "#9c36b5", "#c2255c", "#0b7285", "#e67700", "#495057"]
    style = "".join(f".c{index}{{stroke:{colour}}}circle.c{index}{{fill:{colour}}}" for index, colour in
                    enumerate(colours))  # fmt: skip
    style += (
        "text{font:11px sans-serif;fill:#495057}.title{font-weight:600;font-size:13px;fill:#212529}"
        ".grid{stroke:#e9ecef}.axis{stroke:#868e96}.curve{fill:none;stroke-width:1.8}"
    )
    groups = by_algorithm(trained, "lake")
    parts, width, height = [], 640, 290
    for down, tuning in enumerate(("full", "lora")):
        for across, (axis, words) in enumerate((("episodes", "episodes"), ("cpu_seconds", "CPU seconds"))):
            series = [Series(algorithm, _median_curve(groups.get((tuning, algorithm), []), axis)) for algorithm in LAKE]
            # Algorithms without a run keep their color: a point at the start of another curve is their placeholder.
            somewhere = next((one.points[:1] for one in series if one.points), [(0.0, 0.0)])
            drawn = line_chart([one if one.points else Series(one.name, somewhere) for one in series])
            x, y = across * width, down * height
            how = "all weights" if tuning == "full" else "LoRA"
            parts.append(f'<text class="title" x="{x + 52}" y="{y + 18}">{how}: success over {words}</text>')
            parts.append(drawn.replace("<svg ", f'<svg x="{x}" y="{y + 28}" width="{width}" height="250" ', 1))
    for index, (algorithm, colour) in enumerate(zip(LAKE, colours, strict=True)):
        x = 52 + index * 150
        parts.append(f'<rect x="{x}" y="{2 * height + 6}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="{2 * height + 16}">{algorithm}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * width} {2 * height + 30}" width="{2 * width}">'
        f'<style>{style}</style><rect width="100%" height="100%" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def _median_curve(runs: Sequence[dict[str, Any]], axis: str) -> list[tuple[float, float]]:
    """Return the medians over the seeds at each validation."""
    return [
        (_median(point[axis] for point in points), _median(point["sampled"] for point in points))
        for points in zip(*(run["curve"] for run in runs), strict=False)
    ]


def write_results(trained: Sequence[dict[str, Any]], bases: dict[tuple[str, int], Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    output = "\n".join(f"- {'met' if met else 'NOT MET'}: {words}" for words, met in verdicts(trained, bases))
    seeds = ", ".join(map(str, sorted({run["seed"] for run in trained})))
    (folder / "learning.md").write_text(
        "# Learning speed by algorithm\n\n`python -m benchmarks.learning --write`. Success is sampled at temperature 1 "
        f"(greedy: temperature 0) on 256 test tasks that were not used in training; seeds {seeds}. CPU seconds are "
        "those of the "
        "training process, its validations included and the base model's fine-tuning left out. Episodes include those "
        f"played for a baseline alone. One torch thread; {os.cpu_count()} shared cores, {platform.machine()}, Python "
        f"{platform.python_version()}, load at the end {load}.\n\n"
        + "\n".join(table(trained, bases))
        + f"\n{output}\n\n![Success on validation maps, medians over the seeds](learning.svg)\n"
    )
    (folder / "learning.svg").write_text(plot(trained))
    rows = [{**run, "before": bases[run["family"], run["seed"]]} for run in trained]
    for row in rows:
        row.pop("config", None)  # that of the recipe, 3 KB each
    (folder / "learning.json").write_text(json.dumps(rows) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("runs/learning"), help="folder for runs and their results")
    parser.add_argument("--parallel", type=int, default=1, help="number of concurrent runs, one core each")
    parser.add_argument("--families", nargs="+", choices=["lake", "letters"], default=["lake", "letters"])
    parser.add_argument("--algorithms", nargs="+", choices=LAKE, default=LAKE)
    parser.add_argument("--tunings", nargs="+", choices=["full", "lora"], default=["full", "lora"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/learning.*")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder that --write writes to")
    options = parser.parse_args(arguments)
    wanted = jobs(options.families, options.algorithms, options.tunings, options.seeds)
    failed = run_all(wanted, options.folder, options.parallel)
    trained, bases = results_in(options.folder, wanted)
    print("\n".join(table(trained, bases)))
    output = verdicts(trained, bases)
    print("\n".join(f"{'met' if met else 'NOT MET'}: {words}" for words, met in output))
    if options.write:
        write_results(trained, bases, options.results)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 0 if not failed and all(met for _, met in output) else 1


if __name__ == "__main__":
    sys.exit(main())
