"""Runs a training whose process is killed at random instants and resumed until it is done.

``killed_run.py CONFIG.yaml SEED``; prints how often it was killed. A program of its own: each attempt is a fork of
this process, which has imported everything and started no thread.
"""

import os
import random
import signal
import sys
import threading
from dataclasses import replace

import peft  # noqa: F401 - imported once here, not in every attempt
import torch.utils.tensorboard  # noqa: F401

from trainers.config import TrainConfig
from trainers.loop import train
from trainers.settings import load_yaml


def main() -> None:
    config = replace(load_yaml(TrainConfig, sys.argv[1]), resume=True)
    rng = random.Random(int(sys.argv[2]))
    for killed in range(100):
        # The first attempts die early; later ones live longer, so that the run gets done on a slow machine too.
        seconds = rng.uniform(0.1, 0.6 + 0.2 * killed)
        child = os.fork()
        if child == 0:
            timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()
            train(config)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            print(killed)
            sys.exit(os.WEXITSTATUS(status))
    sys.exit("never done")


if __name__ == "__main__":
    main()
