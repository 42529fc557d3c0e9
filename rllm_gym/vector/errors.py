"""What the caller of a vector environment can meet; what goes wrong in one environment is told in its info."""

from __future__ import annotations

import multiprocessing


class VectorTimeout(TimeoutError, multiprocessing.TimeoutError):
    """The wait was over before enough environments had answered. Names those; they go on, and nothing is lost."""
