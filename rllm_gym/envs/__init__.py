"""The table of ids. One row an id; the environments themselves are imported by ``gym.make``, when they are made."""

from __future__ import annotations

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
}


def register_all() -> None:
    """Register every id of the table with Gymnasium; ids already there are left as they are."""
    for env_id, (entry_point, kwargs) in TABLE.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(id=env_id, entry_point=entry_point, kwargs=kwargs)


register_all()
