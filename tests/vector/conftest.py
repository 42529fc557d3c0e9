"""The fixture of vector environments that are closed at the end of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from vector_environments import Counting

from rllm_gym.vector import TextVectorEnv


@pytest.fixture
def vector() -> Iterator[Callable[..., TextVectorEnv]]:
    """Create vector environments, and close them."""
    created: list[TextVectorEnv] = []

    def make(num_envs: int = 3, env_id: Any = Counting, **kwargs: Any) -> TextVectorEnv:
        created.append(TextVectorEnv(num_envs, env_id=env_id, **kwargs))
        return created[-1]

    yield make
    for item in created:
        item.close()
