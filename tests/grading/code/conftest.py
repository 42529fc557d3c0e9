"""Sandbox pools for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rllm_gym.sandbox import SandboxPool, SandboxUnavailable, Tier
from tests.sandbox.users import needs


@pytest.fixture(scope="package")
def pool() -> Iterator[SandboxPool]:
    try:
        opened = SandboxPool()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with opened:
        yield opened


@pytest.fixture(scope="package", params=[Tier.NAMESPACES, Tier.LANDLOCK], ids=["A", "B"])
def confined_pool(request: pytest.FixtureRequest) -> Iterator[SandboxPool]:
    needs(request.param)
    with SandboxPool(request.param) as opened:
        yield opened
