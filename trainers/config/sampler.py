"""What draws the replies while the model learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SamplerConfig:
    """What draws the replies while the model learns."""

    backend: Literal["torch"] = "torch"
    """`torch`: embedded in this process."""
    restarts: int = 2
    """How often in a row a sampler that died is replaced by a fresh one with the present weights; what it was drawing
    is drawn again."""


def check_sampler(sampler: SamplerConfig, problems: list[str]) -> None:
    if sampler.restarts < 0:
        problems.append(f"sampler.restarts={sampler.restarts} must be 0 or more")
