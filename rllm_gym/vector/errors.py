"""Errors raised to the caller of a vector environment; errors of single environments are reported in their info."""

from __future__ import annotations

import multiprocessing


class VectorTimeout(TimeoutError, multiprocessing.TimeoutError):
    """Not enough environments answered in time. The message names them; they continue, and nothing is lost."""
