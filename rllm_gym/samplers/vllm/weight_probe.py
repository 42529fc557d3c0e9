"""Check that an engine serves the weights that were loaded, by comparing log-probs of a text with the trainer's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rllm_gym.samplers.protocol import Probe, SamplerError

TOLERANCES = {"float32": 1e-4, "bfloat16": 0.25, "float16": 0.1}
"""Maximum difference of a log-prob that rounding explains, by the type the engine computes in."""


def compare(probe: Probe, logprobs: Sequence[float], tolerance: float, what: str) -> None:
    """Raise if an engine's log-probs of a probe differ from the trainer's.

    Raises:
        SamplerError: They differ by more than ``tolerance``: the engine serves other weights. Below -10 the tolerance
            grows with the log-prob, as rounding does.
    """
    gaps = [
        abs(ours - theirs) / max(1.0, abs(theirs) / 10) for ours, theirs in zip(logprobs, probe.logprobs, strict=True)
    ]
    if not all(gap <= tolerance for gap in gaps):  # written so that NaN fails
        shown = "NaN" if any(map(math.isnan, gaps)) else f"{max(gaps):.2g}"
        raise SamplerError(
            f"stale adapter or weights {what}: vLLM's log-probs of the probe differ from the trainer's by {shown}, "
            f"above probe_tolerance={tolerance:g}, which allows for rounding. The engine does not serve the weights of "
            "the last sync_weights(); call it again, or restart the engine"
        )
