"""Honest solutions of built-in tasks that store, name or build things in another way are paid."""

from __future__ import annotations

import pytest
from other_solutions import OTHER_SOLUTIONS

from rllm_gym.envs.swe.checkout import prepare
from rllm_gym.envs.swe.repositories.catalog import load_repository
from rllm_gym.grading.swe import RepositoryTests, grade_repository_sync
from rllm_gym.sandbox import Changes, SandboxPool, TreeFile

FEW = ("spans: parallel lists", "money: private fields behind properties")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FEW else pytest.mark.long) for name in OTHER_SOLUTIONS]
)
def test_what_is_stored_in_another_way_is_paid(pool: SandboxPool, name: str) -> None:
    solution = OTHER_SOLUTIONS[name]
    repository = load_repository(solution.repository)
    files = dict(repository.files)
    for path, text, instead in solution.edits:
        assert text in files[path]
        files[path] = files[path].replace(text, instead)
    changed = Changes({path: TreeFile("file", files[path].encode()) for path, _, _ in solution.edits}, frozenset())
    # More than a task asks for: no test is one to keep, which may hold other values than the reference solution.
    tests = RepositoryTests(repository.hidden_tests({}), repository.tests, (), trace=repository.trace)
    verdict = grade_repository_sync(pool, prepare(dict(repository.files)).path, changed, tests)
    assert verdict.correct, dict(verdict.failed)
