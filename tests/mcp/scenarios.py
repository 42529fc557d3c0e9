"""Run scenarios with MCP servers: within a time limit, on a server that counts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
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


def servers_in(workspace: Path) -> list[psutil.Process]:
    """Return the running servers of this process whose working directory is the workspace."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if process.cwd() == str(workspace):
                found.append(process)
    return found


async def fault_of(awaitable: Awaitable[object]) -> ServerFault:
    """Return the fault that is raised."""
    with pytest.raises(ServerFault) as caught:
        await awaitable
    return caught.value
