"""Grade many programs concurrently, each with its own tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from rllm_gym.grading.code import CodeVerdict, FunctionTests, StdioTests, grade_program
from rllm_gym.sandbox import SandboxPool

MAX_CONCURRENT = 4


def grade_many(
    pool: SandboxPool, programs: Iterable[tuple[str, FunctionTests | StdioTests]], **options: bool
) -> list[CodeVerdict]:
    async def run() -> list[CodeVerdict]:
        free = asyncio.Semaphore(MAX_CONCURRENT)

        async def one(source: str, tests: FunctionTests | StdioTests) -> CodeVerdict:
            async with free:
                return await grade_program(pool, source, tests, **options)

        return await asyncio.gather(*(one(source, tests) for source, tests in programs))

    return asyncio.run(run())
