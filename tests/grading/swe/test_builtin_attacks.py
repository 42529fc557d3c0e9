"""Built-in tasks are not paid for a function that only looks right to their hidden tests."""

from __future__ import annotations

import asyncio

import pytest
from builtin_forgeries import BUILTIN_FORGERIES, forged

from rllm_gym.envs.swe.checkout import prepare
from rllm_gym.envs.swe.repositories.catalog import NAMES, RepoChange, Repository, load_repository
from rllm_gym.grading.swe import RepositoryTests, grade_repository
from rllm_gym.sandbox import SandboxPool


async def paid(pool: SandboxPool, repository: Repository, changes: list[RepoChange], technique: str) -> list[str]:
    """Return the changes for which a technique is paid."""
    few = asyncio.Semaphore(2)

    async def one(change: RepoChange) -> bool:
        tried = forged(technique, repository, change)
        if tried is None:
            return False
        keep = tuple(test for test in repository.tests if test not in change.fail_to_pass)
        tests = RepositoryTests(repository.hidden_tests({}), change.fail_to_pass, keep, trace=repository.trace)
        async with few:
            base = prepare(repository.broken_files(change))
            return (await grade_repository(pool, base.path, tried, tests)).correct

    return [change.key for change, was in zip(changes, await asyncio.gather(*map(one, changes))) if was]


@pytest.mark.parametrize("technique", BUILTIN_FORGERIES)
def test_a_task_is_not_paid(pool: SandboxPool, technique: str) -> None:
    repository = load_repository("schedule")
    change = next(change for change in repository.changes.values() if forged(technique, repository, change))
    assert asyncio.run(paid(pool, repository, [change], technique)) == []


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("technique", ["repeat", "raise"])
def test_no_task_is_paid(pool: SandboxPool, technique: str, name: str) -> None:
    repository = load_repository(name)
    assert asyncio.run(paid(pool, repository, list(repository.changes.values()), technique)) == []
