"""Sandbox pools for the graders that run programs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rllm_gym.sandbox import SandboxPool, Tier
from tests.sandbox.users import needs, pool_of_any_tier


@pytest.fixture(scope="session")
def pool() -> Iterator[SandboxPool]:
    with pool_of_any_tier() as opened:
        yield opened


@pytest.fixture(scope="module", params=[Tier.NAMESPACES, Tier.LANDLOCK], ids=["A", "B"])
def confined_pool(request: pytest.FixtureRequest) -> Iterator[SandboxPool]:
    needs(request.param)
    with SandboxPool(request.param) as opened:
        yield opened
