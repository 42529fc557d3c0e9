"""The table of ids. One row an id; the environments themselves are imported by ``gym.make``, when they are made."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gymnasium

# id -> (entry point, keyword arguments). An id, once released, never changes its meaning.
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
    "rllm/Web-v0": ("rllm_gym.envs.web:WebEnv", {}),
}


def miniwob_folder() -> Path | None:
    """The folder of the pages of MiniWoB++, ``None`` where its package is not installed. Imports nothing of it."""
    spec = importlib.util.find_spec("miniwob")
    for place in (spec and spec.submodule_search_locations) or ():
        folder = Path(place) / "html"
        if (folder / "miniwob").is_dir():
            return folder
    return None


def miniwob_tasks() -> list[str]:
    """Names of its tasks, ``[]`` where it is not installed."""
    folder = miniwob_folder()
    return [] if folder is None else sorted(page.stem for page in (folder / "miniwob").glob("*.html"))


# One id a page; the table for people names the family once, in docs/web.md.
MINIWOB: dict[str, tuple[str, dict[str, Any]]] = {
    f"rllm/MiniWoB-{task}-v0": ("rllm_gym.envs.web:MiniWoBEnv", {"task": task}) for task in miniwob_tasks()
}


# Environments of other libraries as ours; making one without its library says what to install. docs/integrations.md.
INTEGRATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "rllm/ReasoningGym-v0": ("rllm_gym.integrations.reasoning_gym:ReasoningGymEnv", {}),
    "rllm/TextArena-v0": ("rllm_gym.integrations.textarena:TextArenaEnv", {}),
}


def register_all() -> None:
    """Register every id of the tables with Gymnasium; ids already there are left as they are."""
    for env_id, (entry_point, kwargs) in (TABLE | MINIWOB | INTEGRATIONS).items():
        if env_id not in gymnasium.registry:
            gymnasium.register(
                id=env_id,
                entry_point=entry_point,
                vector_entry_point=f"rllm_gym.vector.entry_points:{env_id}",
                kwargs=kwargs,
            )


register_all()
