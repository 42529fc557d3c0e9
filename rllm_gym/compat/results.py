"""rLLM's ``compute_pass_at_k``, which prints its results, and ``save_trajectories``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rllm_gym import engine
from rllm_gym.engine import Estimate


def compute_pass_at_k(results: Iterable[Any]) -> dict[int, Estimate]:
    """Print and return pass@1 and pass@k of trajectories, where k is the smallest number of attempts of any task.

    A trajectory with ``reward`` ``None`` (its environment failed) counts as an unsuccessful attempt.

    Raises:
        ValueError: There are no results, or all are from failed environments, which says nothing about the model.
    """
    results = list(results)
    table = engine.compute_pass_at_k(results)
    failed = table[1].dropped
    if failed == len(results):
        reason = (getattr(results[0], "info", None) or {}).get("fault", "see info['fault'] of the trajectories")
        raise ValueError(f"no accuracy: the environment failed in all {failed} attempts ({reason})")
    print("Total unique problems:", table[1].tasks)
    if failed:
        print(f"Failed environments: {failed} of {len(results)} attempts, counted as unsuccessful")
    for k, estimate in table.items():
        print(f"Average Pass@{k} Accuracy: {float(estimate):.4f} (95% {estimate.low:.4f} … {estimate.high:.4f})")
    return table


def save_trajectories(
    results: Sequence[Any], save_dir: str = "./trajectories", filename: str = "trajectories.pt"
) -> str:
    """Write trajectories with ``torch.save``, and return the path. ``torch.load(path, weights_only=False)`` reads them,
    which must only be done with files of one's own.
    """
    import torch

    path = Path(save_dir, filename)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(list(results), path)
    print(f"Trajectories saved to {path}")
    return str(path)
