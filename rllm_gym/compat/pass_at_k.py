"""rLLM's ``compute_pass_at_k``, which prints its results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_gym import engine
from rllm_gym.engine import Estimate


def compute_pass_at_k(results: Iterable[Any]) -> dict[int, Estimate]:
    """Print and return pass@1 and pass@k of trajectories, where k is the smallest number of attempts of any task.

    A trajectory with ``reward`` ``None`` (its environment failed) counts as an unsuccessful attempt.
    """
    table = engine.compute_pass_at_k(results)
    print("Total unique problems:", table[1].tasks)
    for k, estimate in table.items():
        print(f"Average Pass@{k} Accuracy: {float(estimate):.4f} (95% {estimate.low:.4f} … {estimate.high:.4f})")
    return table
