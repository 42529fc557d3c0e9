"""rLLM's ``compute_pass_at_k``, which prints what it computes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_gym import engine
from rllm_gym.engine import Estimate


def compute_pass_at_k(results: Iterable[Any]) -> dict[int, Estimate]:
    """Print pass@1 and pass@k of trajectories, k being the attempts every task has; also returned.

    A trajectory whose world broke (``reward`` is ``None``) counts as an attempt that failed.
    """
    table = engine.compute_pass_at_k(results)
    print("Total unique problems:", table[1].tasks)
    for k, estimate in table.items():
        print(f"Average Pass@{k} Accuracy: {float(estimate):.4f} (95% {estimate.low:.4f} … {estimate.high:.4f})")
    return table
