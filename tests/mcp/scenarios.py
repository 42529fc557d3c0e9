"""Run scenarios with MCP servers: within a time limit, on a server that counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rllm_gym.mcp import ServerFault, StdioServer

COUNTING = Path(__file__).parent / "counting_server.py"


def counting(*args: str, timeout: float = 120.0, **options: Any) -> StdioServer:
    """Return the server of ``counting_server.py``."""
    return StdioServer("{python}", ("-S", str(COUNTING), *args), timeout=timeout, **options)


def run_scenario(scenario: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Return the result of a coroutine function. The time limit is for scenarios that hang."""

    async def within_time() -> Any:
        async with asyncio.timeout(240):
            return await scenario(*args)

    return asyncio.run(within_time())


async def fault_of(awaitable: Awaitable[object]) -> ServerFault:
    """Return the fault that is raised."""
    with pytest.raises(ServerFault) as caught:
        await awaitable
    return caught.value
