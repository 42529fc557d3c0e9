"""One sandbox pool for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rllm_gym.sandbox import SandboxPool, SandboxUnavailable


@pytest.fixture(scope="session")
def pool() -> Iterator[SandboxPool]:
    try:
        pool = SandboxPool()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with pool:
        yield pool
