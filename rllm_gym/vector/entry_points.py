"""Entry points for ``gymnasium.make_vec``: one module attribute per environment id.

Gymnasium does not pass the id to a vector entry point, and the keyword arguments of a registration belong to the
environment. ``"rllm_gym.vector.entry_points:rllm/Math-v0"`` is the vector environment of that id; any registered id
works.
"""

from __future__ import annotations

from functools import partial

import gymnasium

from rllm_gym.vector.text_vector_env import TextVectorEnv


def __getattr__(env_id: str) -> partial[TextVectorEnv]:
    if env_id not in gymnasium.registry:
        raise AttributeError(f"{__name__} has an attribute for each registered id, but {env_id!r} is not registered")
    return partial(TextVectorEnv, env_id=env_id)
