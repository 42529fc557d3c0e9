"""The table of environment ids. ``gym.make`` imports an environment's module when it creates the environment."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gymnasium

# id -> (entry point, keyword arguments). The meaning of a released id never changes.
TABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "rllm/FrozenLake-v0": ("rllm_gym.envs.frozen_lake:FrozenLakeEnv", {}),
    "rllm/FrozenLake-Slippery-v0": ("rllm_gym.envs.frozen_lake:FrozenLakeEnv", {"slip_probability": 0.2}),
    "rllm/FrozenLake8x8-v0": ("rllm_gym.envs.frozen_lake:FrozenLakeEnv", {"size": 8, "max_turns": 30}),
    "rllm/Math-v0": ("rllm_gym.envs.math:MathEnv", {}),
    "rllm/MathMultiTurn-v0": ("rllm_gym.envs.math:MathMultiTurnEnv", {}),
    "rllm/Code-v0": ("rllm_gym.envs.code:CodeEnv", {}),
    "rllm/CodeMultiTurn-v0": ("rllm_gym.envs.code:CodeMultiTurnEnv", {}),
    "rllm/SWE-v0": ("rllm_gym.envs.swe:SWEEnv", {}),
    "rllm/ToolMath-v0": ("rllm_gym.envs.tool_math:ToolMathEnv", {}),
    "rllm/MCP-v0": ("rllm_gym.envs.mcp:MCPEnv", {}),
    "rllm/Search-v0": ("rllm_gym.envs.search:SearchEnv", {}),
    "rllm/Web-v0": ("rllm_gym.envs.web:WebEnv", {}),
}

# Environments of a user's own tasks, which ``gym.make`` needs as arguments.
DATASET_ID = "rllm/Dataset-v0"
OWN_TASKS: dict[str, tuple[str, dict[str, Any]]] = {DATASET_ID: ("rllm_gym.envs.dataset:DatasetEnv", {})}


def miniwob_folder() -> Path | None:
    """Return the folder of the MiniWoB++ pages, or ``None`` if the package is not installed, without importing it."""
    spec = importlib.util.find_spec("miniwob")
    for place in (spec and spec.submodule_search_locations) or ():
        folder = Path(place) / "html"
        if (folder / "miniwob").is_dir():
            return folder
    return None


def miniwob_tasks() -> list[str]:
    """Return the names of the MiniWoB++ tasks, ``[]`` if the package is not installed."""
    folder = miniwob_folder()
    return [] if folder is None else sorted(page.stem for page in (folder / "miniwob").glob("*.html"))


# One id per page. The table in the documentation names the family once, in docs/web.md.
MINIWOB: dict[str, tuple[str, dict[str, Any]]] = {
    f"rllm/MiniWoB-{task}-v0": ("rllm_gym.envs.web:MiniWoBEnv", {"task": task}) for task in miniwob_tasks()
}


# Adapters for environments of other libraries. If the library is missing, creating one raises an error that says what
# to install. See docs/integrations.md.
INTEGRATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "rllm/ReasoningGym-v0": ("rllm_gym.integrations.reasoning_gym:ReasoningGymEnv", {}),
    "rllm/TextArena-v0": ("rllm_gym.integrations.textarena:TextArenaEnv", {}),
    "rllm/BrowserGym-v0": ("rllm_gym.integrations.browsergym.env:BrowserGymEnv", {}),
}

ALL = TABLE | OWN_TASKS | MINIWOB | INTEGRATIONS


def register_all() -> None:
    """Register every id of the tables with Gymnasium; skip ids that are already registered."""
    for env_id, (entry_point, kwargs) in ALL.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(
                id=env_id,
                entry_point=entry_point,
                vector_entry_point=f"rllm_gym.vector.entry_points:{env_id}",
                kwargs=kwargs,
            )


register_all()
