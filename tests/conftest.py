"""Fixtures shared by all tests: where the real data lies, and what a missing thing means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# One thread: on busy machines torch's default thread count makes small operations ten times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets beside the checkout."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} does not exist")
    return folder
