"""Kill a training run thirty times at random moments, and check that nothing is lost.

    python benchmarks/kill_minus_nine.py                           # 30 kills with the embedded torch sampler
    python benchmarks/kill_minus_nine.py --sampler vllm --write    # also writes the result to benchmarks/results

Each attempt is a separate process, killed with SIGKILL: one in five during start-up, the others between zero and three
complete steps later and at a random moment within the step, so that rollouts, updates, weight syncs and the writing of
checkpoints are all hit. Then the run continues with `resume`. With the torch sampler and `deterministic`, the final
parameters are compared bit for bit with those of the same run without interruption. With any sampler, every step must
be logged once, and tasks must be dealt in the order of the uninterrupted run.
"""

from __future__ import annotations

import argparse
import logging
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from trainers.config import TrainConfig
from trainers.config.mapping import from_mapping
from trainers.config_loading import load_yaml, write_yaml
from trainers.run.metrics import read_metrics
from trainers.tiny_model import make_tiny_model

RESULTS = Path(__file__).parent / "results"
_PATIENCE = 3600.0  # longest time in seconds for one attempt; detects a hang
_DEATH = 20.0  # seconds until all processes that a killed run started must be gone


@dataclass
class Outcome:
    """The effect of the kills.

    Attributes:
        kills: Number of kills.
        starting: Number of kills before the attempt had logged a step.
        steps_again: Steps that were complete but not yet in a checkpoint, and were repeated.
        leftovers: Processes of a killed run that did not end by themselves.
        seconds: Total time of all attempts.
    """

    kills: int = 0
    starting: int = 0
    steps_again: int = 0
    leftovers: int = 0
    seconds: float = 0.0


def options(folder: Path, sampler: str, steps: int) -> TrainConfig:
    """Return a small run with all state that has to survive: validation, replayed tasks, an adapted entropy bonus."""
    deterministic = sampler == "torch"
    return from_mapping(
        TrainConfig,
        {
            "output": str(folder / "killed"),
            "steps": steps,
            "progress": False,
            "deterministic": deterministic,
            "env": {"id": "rllm/FrozenLake-v0", "max_turns": 2, "parallel": 16},
            "model": {"path": str(folder / "tiny"), "tuning": "lora", "lora": {"rank": 8}},
            "sampler": {"backend": sampler},
            "sampling": {"max_tokens": 6, "context_length": 1024},
            "algorithm": {"group_size": 4, "groups_per_step": 4, "drop_zero_variance": False, "kl": 0.01},
            "entropy": {"bonus": 0.01, "target": 4.0},
            "optimizer": {"lr": 1e-3},
            "curriculum": {"replay_fraction": 0.25} if deterministic else {},
            "validation": {"every": 10, "tasks": 4},
            "checkpoint": {"every": 2},
        },
    )


def child(config: Path) -> None:
    """Run one attempt."""
    logging.basicConfig(level=logging.ERROR)
    from trainers.loop import train

    train(load_yaml(TrainConfig, config))


def start_attempt(config: TrainConfig, folder: Path) -> subprocess.Popen[bytes]:
    file = folder / "attempt.yaml"
    write_yaml(file, replace(config, resume=True))
    log = open(folder / "attempt.log", "ab")  # noqa: SIM115 - the process keeps it
    with log:
        return subprocess.Popen([sys.executable, __file__, "--child", str(file)], stdout=log, stderr=log)


def rows_logged(config: TrainConfig) -> int:
    file = Path(config.output) / "metrics.jsonl"
    return len(read_metrics(file)) if file.exists() else 0


def kill_at_random(config: TrainConfig, folder: Path, kills: int, rng: random.Random) -> Outcome:
    """Run attempts that are killed, then one that is not.

    Raises:
        RuntimeError: An attempt failed by itself, hung, or the run finished before all kills.
    """
    outcome, tick, startup = Outcome(), threading.Event(), 4.0
    began = time.monotonic()
    while outcome.kills < kills:
        before, attempt = rows_logged(config), start_attempt(config, folder)
        started = time.monotonic()
        early = rng.random() < 0.2
        wait_until = started + rng.uniform(0.0, startup) if early else started + _PATIENCE
        further, first = rng.randrange(4), None
        while time.monotonic() < wait_until:
            if attempt.poll() is not None:
                raise RuntimeError(f"attempt {outcome.kills} exited without being killed: see {folder / 'attempt.log'}")
            rows = rows_logged(config)
            if first is None and (folder / "killed" / "manifest.json").exists():
                manifest = (folder / "killed" / "manifest.json").stat().st_mtime
                if time.time() - manifest < time.monotonic() - started:  # written by this attempt
                    first, startup = rows, time.monotonic() - started
            if not early and first is not None and rows >= first + further:
                tick.wait(rng.uniform(0.0, 0.5))
                break
            tick.wait(0.01)
        else:
            if not early:
                raise RuntimeError(f"attempt {outcome.kills} exceeded its time limit: see {folder / 'attempt.log'}")
        family = psutil.Process(attempt.pid).children(recursive=True) if attempt.poll() is None else []
        attempt.kill()
        attempt.wait()
        _, alive = psutil.wait_procs(family, timeout=_DEATH)
        outcome.kills += 1
        outcome.leftovers += len(alive)
        outcome.starting += first is None
        done = rows_logged(config)
        outcome.steps_again += max(0, done - 1 - last_checkpoint(config)) if done else 0
        print(f"kill {outcome.kills}: {before} rows before, {done} after", flush=True)
    last = start_attempt(config, folder)
    if last.wait(_PATIENCE) != 0:
        raise RuntimeError(f"the last attempt failed: see {folder / 'attempt.log'}")
    outcome.seconds = time.monotonic() - began
    return outcome


def last_checkpoint(config: TrainConfig) -> int:
    names = sorted(path.name for path in (Path(config.output) / "checkpoints").glob("step-????????"))
    return int(names[-1].removeprefix("step-")) if names else 0


def report(config: TrainConfig, alone: TrainConfig, outcome: Outcome) -> list[tuple[str, str]]:
    """Return the rows of the table.

    Raises:
        AssertionError: Something was lost, repeated or changed.
    """
    rows, copy = read_metrics(Path(config.output)), read_metrics(Path(alone.output))
    assert [row["step"] for row in rows] == list(range(config.steps + 1)), "steps are missing or repeated in the log"
    tasks = [row.get("tasks") for row in rows]
    assert tasks == [row.get("tasks") for row in copy], "tasks are missing or repeated"
    assert outcome.leftovers == 0, "processes of a killed run are still alive"
    table = [
        ("sampler", config.sampler.backend),
        ("kills", f"{outcome.kills} ({outcome.starting} during start-up)"),
        ("steps", str(config.steps)),
        ("complete steps without a checkpoint, repeated", str(outcome.steps_again)),
        ("steps lost or repeated in the log", "0"),
        ("tasks lost or repeated", f"0 of {sum(len(names or []) for names in tasks)}"),
        ("processes left behind", "0"),
    ]
    if config.deterministic:
        mine, theirs = (
            (Path(item.output) / "model" / "adapter_model.safetensors").read_bytes() for item in (config, alone)
        )
        assert mine == theirs, "the final parameters differ from those of the uninterrupted run"
        table.append(("final parameters equal to those of the uninterrupted run", "bit for bit"))
    table.append(("seconds", f"{outcome.seconds:.0f}"))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sampler", default="torch", choices=("torch", "vllm", "vllm-server"))
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write the table to benchmarks/results")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_tiny_model(folder / "tiny", hidden_size=32, num_heads=1, num_layers=2)
        # At most three more steps per kill, so that the run is longer than all attempts together.
        config = options(folder, arguments.sampler, steps=3 * arguments.kills + 10)
        alone = replace(config, output=str(folder / "alone"))
        if start_attempt(alone, folder).wait(1800) != 0:
            sys.exit((folder / "attempt.log").read_text()[-3000:])
        try:
            outcome = kill_at_random(config, folder, arguments.kills, random.Random(arguments.seed))
            table = report(config, alone, outcome)
        except (RuntimeError, AssertionError) as error:
            log = folder / "attempt.log"
            sys.exit(f"{error}\n{log.read_text()[-3000:] if log.exists() else ''}")
    lines = ["| | |", "|---|---|", *(f"| {what} | {value} |" for what, value in table)]
    print("\n".join(lines))
    if arguments.write:
        head = (
            f"By `python benchmarks/kill_minus_nine.py --sampler {arguments.sampler} --write`, whose docstring "
            "describes the procedure.\n\n"
        )
        file = RESULTS / f"kill_minus_nine_{arguments.sampler.replace('-', '_')}.md"
        file.write_text("# Runs killed at random moments\n\n" + head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
