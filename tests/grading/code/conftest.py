"""A sandbox pool for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rllm_gym.sandbox import SandboxPool, SandboxUnavailable


@pytest.fixture(scope="package")
def pool() -> Iterator[SandboxPool]:
    try:
        opened = SandboxPool()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with opened:
        yield opened
