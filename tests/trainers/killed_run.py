"""Runs trainings whose process is killed at random moments and resumed until they finish.

``killed_run.py CONFIG.yaml SEED [CONFIG.yaml SEED ...]``; prints for each run how often it was killed. It is a separate
program: each attempt is a fork of this process, which has imported everything and started no thread.

An attempt is killed during start-up, or after its second, third or fourth row of metrics, at any moment until the next
row is due. Moments are measured in processor time, so that they do not depend on the speed or load of the machine.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import peft  # noqa: F401 - imported once here, not in every attempt
import torch.utils.tensorboard  # noqa: F401

from trainers.config import TrainConfig
from trainers.config_loading import load_yaml
from trainers.loop import train
from trainers.run.metrics import MetricsLog


def die_within(seconds: float, rng: random.Random) -> None:
    """End this process by SIGPROF, which has no handler, as SIGKILL would: no clean-up runs."""
    signal.setitimer(signal.ITIMER_PROF, max(1e-6, rng.uniform(0, seconds)))


def attempt(config: TrainConfig, rows: int, rng: random.Random) -> None:
    """Train until that many rows are written, and slightly longer."""
    write = MetricsLog.write
    written, last = 0, time.process_time()

    def watched(log: MetricsLog, step: int, row: Mapping[str, Any]) -> None:
        nonlocal written, last
        write(log, step, row)
        written, before, last = written + 1, last, time.process_time()
        if written == rows:
            die_within(last - before, rng)

    MetricsLog.write = watched  # type: ignore[method-assign]
    if not rows:
        die_within(0.2, rng)
    train(config)


def run_and_kill(config: TrainConfig, rng: random.Random) -> int:
    """Train until the run is done; return how often it was killed."""
    for killed in range(100):
        rows, seed = rng.choice((0, 2, 3, 4)), rng.random()
        child = os.fork()
        if child == 0:
            attempt(config, rows, random.Random(seed))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            if os.WEXITSTATUS(status):
                sys.exit(os.WEXITSTATUS(status))
            return killed
    sys.exit("never done")


if __name__ == "__main__":
    for path, seed in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        print(run_and_kill(replace(load_yaml(TrainConfig, path), resume=True), random.Random(int(seed))), flush=True)
