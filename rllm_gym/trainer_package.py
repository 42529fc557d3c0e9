"""A check that ``import trainers`` finds the trainer of rllm-gym and no other package of this common name."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys


def check_trainer_package() -> None:
    """Check that ``import trainers`` imports the package that is installed beside this one.

    Raises:
        ImportError: It imports another package or none; the message names the paths.
    """
    ours = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "trainers", "__init__.py")
    if not os.path.isfile(ours):
        raise ImportError(f"rllm-gym's trainer is missing: there is no {ours}; reinstall rllm-gym", name="trainers")
    try:
        spec = importlib.util.find_spec("trainers")
        found = None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or ()), None)
    except ValueError:  # a module without a spec has been put into sys.modules
        found = getattr(sys.modules["trainers"], "__file__", None) or "a module that was created at run time"
    # A path inside a zip archive is no file.
    if found is None or not os.path.exists(found) or not os.path.samefile(found, ours):
        raise ImportError(
            f"`import trainers` finds {found} instead of rllm-gym's {ours}: rename the former, or remove its folder "
            "from sys.path (which contains the script's folder, PYTHONPATH and site-packages)",
            name="trainers",
            path=found,
        )
    if "TrainEnv" not in getattr(importlib.import_module("trainers"), "__all__", ()):
        owners = ", ".join(importlib.metadata.packages_distributions().get("trainers", ["another package"]))
        raise ImportError(
            f"{ours} is not rllm-gym's, because several installed packages have a folder of this name ({owners}): "
            "install rllm-gym into an environment of its own",
            name="trainers",
            path=ours,
        )
