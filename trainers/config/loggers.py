"""The loggers of a run by name. :mod:`trainers.run.loggers` implements them."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

LOGGERS = ("tensorboard", "wandb", "trackio", "mlflow")
"""Names of the loggers, which are those of their libraries and packages."""


def check_loggers(names: Sequence[str] | None, problems: list[str]) -> None:
    """Report loggers that do not exist or whose library is not installed."""
    for name in names or ():
        if name not in LOGGERS:
            problems.append(f"loggers={name!r} is not one of {', '.join(LOGGERS)}; or write none")
        elif importlib.util.find_spec(name) is None:
            problems.append(f"loggers={name} needs its library, which is not installed: pip install {name}")
