"""The built-in problems: each is solved by its reference and by nothing weaker, and there are very many of them."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterable
from typing import Any

import pytest

from rllm_gym.core import SPLITS, Task, TaskError
from rllm_gym.envs.code import FAMILIES, CodeEnv, code_tasks, reference_solution
from rllm_gym.envs.code.families import compose

DIFFICULTIES = (1, 2, 3, 4, 5)


async def rewards(pairs: Iterable[tuple[Task, str]]) -> list[float]:
    """Return the reward of each program for its task; a few run at a time."""
    slots = asyncio.Semaphore(8)

    async def one(task: Task, program: str) -> float:
        async with slots:
            env = CodeEnv(cpu_s=30.0)  # also enough on a machine that stalls
            await env.async_reset(options={"task": task})
            return (await env.async_step(f"```python\n{program}\n```"))[1]

    return await asyncio.gather(*(one(task, program) for task, program in pairs))


def of_every_family(seed: int, per_family: int) -> list[Task]:
    return [
        code_tasks(families=family, difficulty=DIFFICULTIES[(index + number) % 5], seed=seed)[number]
        for index, family in enumerate(FAMILIES)
        for number in range(per_family)
    ]


@pytest.mark.parametrize("per_family", [1, pytest.param(3, marks=pytest.mark.long)])
def test_the_reference_solution_of_every_family_passes(per_family):
    tasks = of_every_family(seed=1, per_family=per_family)
    assert asyncio.run(rewards([(task, reference_solution(task)) for task in tasks])) == [1.0] * len(tasks)


def of_kind(tasks: list[Task], kind: str) -> list[Task]:
    return [task for task in tasks if task.data["kind"] == kind]


def expected(task: Task) -> list[str]:
    return [case["stdout"] for case in task.data["tests"]]


def arguments_and_result(assertion: str) -> tuple[str, str]:
    arguments, _, result = assertion.removeprefix("assert solve(").rpartition(") == ")
    return arguments, result


def weak_programs(task: Task) -> list[str]:
    """Return programs that use the examples but not the problem statement."""
    if task.data["kind"] == "stdio":
        shown = task.data["tests"][: task.data["public_tests"]]
        table = {case["stdin"]: case["stdout"] for case in shown}
        common = max(expected(task), key=expected(task).count)
        return [
            "print(input())",
            "import sys\nprint(sys.stdin.read())",
            "",
            f"print({common!r}, end='')",
            f"import sys\nprint({table!r}.get(sys.stdin.read(), {common!r}), end='')",
        ]
    assertions = [arguments_and_result(line) for line in task.data["test"].split("\n")]
    results = [result for _, result in assertions]
    common = max(results, key=results.count)
    shown_table = dict(arguments_and_result(line) for line in task.data["public_tests"])
    table = "".join(f"    if repr(a)[1:-1].rstrip(',') == {values!r}: return {output_value}\n"
                    for values, output_value in shown_table.items())  # fmt: skip
    return [
        "def solve(*a):\n    return a[0]",
        f"def solve(*a):\n    return {common}",
        f"def solve(*a):\n{table}    return {common}",
        "def solve(*a):\n    return None",
    ]


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.long)])
def test_weak_programs_do_not_pass(every):
    tasks = of_every_family(seed=2, per_family=1)[::every]
    pairs = [(task, program) for task in tasks for program in weak_programs(task) if program]
    assert len(pairs) > 4 * len(tasks) - 1
    assert asyncio.run(rewards(pairs)) == [0.0] * len(pairs)


def test_every_step_of_a_problem_matters():
    tasks = [task for task in of_every_family(seed=3, per_family=2) if len(task.data["recipe"]) > 2]
    pairs = []
    for task in tasks:
        lines = reference_solution(task).split("\n")
        last = max(index for index, line in enumerate(lines) if line.startswith("    result = "))
        step = compose._BY_NAME[task.data["recipe"][-1][0]]
        if step.gives == step.takes:  # type: ignore[union-attr]
            pairs.append((task, "\n".join(lines[:last] + lines[last + 1 :])))
    assert len(pairs) > 10
    assert asyncio.run(rewards(pairs)) == [0.0] * len(pairs)


def test_every_family_has_problems_of_every_difficulty_in_every_split():
    for family, split, difficulty in itertools.product(FAMILIES, SPLITS, DIFFICULTIES):
        task = code_tasks(families=family, difficulty=difficulty, split=split)[0]
        assert task.split == split
        assert (task.data["family"], task.data["difficulty"]) == (family, difficulty)


def test_hidden_tests_are_many_distinct_and_not_the_public_ones():
    for task in code_tasks(size=200):
        if task.data["kind"] == "stdio":
            cases = [(case["stdin"], case["stdout"]) for case in task.data["tests"]]
            shown, hidden = cases[: task.data["public_tests"]], cases[task.data["public_tests"] :]
        else:
            shown = [arguments_and_result(line) for line in task.data["public_tests"]]
            hidden = [arguments_and_result(line) for line in task.data["test"].split("\n")]
        assert len(shown) == 3
        assert len(set(hidden)) >= 10
        assert not set(shown) & set(hidden)
        assert len({result for _, result in hidden}) >= 4
        json.dumps(task.to_json())


@pytest.mark.parametrize("number", [250, pytest.param(1_000, marks=pytest.mark.long)])
def test_a_million_tasks_contain_many_distinct_problems(number):
    tasks = code_tasks()
    some = [tasks[index * 997] for index in range(number)]
    assert len({task.content for task in some}) > 0.95 * number
    assert len(FAMILIES) >= 25
    recipes = {tuple(name for name, _ in task.data["recipe"]) for task in some}
    assert len(recipes) > 0.7 * number
    assert 0.25 * number < [task.data["kind"] for task in some].count("stdio") < 0.75 * number


def test_making_a_task_is_cheap():
    for split in ("train", "test"):  # 0.4 and 0.8 ms on an idle machine
        tasks = code_tasks(split=split, seed=5)
        started = time.thread_time()
        for index in range(100):
            tasks[index]
        assert (time.thread_time() - started) / 100 < 20e-3


def test_the_task_does_not_contain_the_solution():
    for task in of_every_family(seed=4, per_family=1):
        solution = reference_solution(task)
        reported = json.dumps(task.to_json()) + CodeEnv().reset(options={"task": task})[0]
        for line in solution.split("\n"):
            if len(line) > 30:
                assert line.strip() not in reported
        assert "    return" not in reported


def test_only_built_in_problems_have_a_reference():
    for data in ({}, {"recipe": [["os.system", {}]]}, {"recipe": []}):
        with pytest.raises(TaskError, match="'mine'"):
            reference_solution(Task("mine", "?", data))


def test_families_difficulty_and_size_are_options_and_part_of_the_id():
    tasks = code_tasks(families=["coins", "lists"], difficulty=(2, 3), split="test", seed=9, size=40)
    found: list[Any] = list(tasks)
    assert {task.data["family"] for task in found} == {"coins", "lists"}
    assert {task.data["difficulty"] for task in found} == {2, 3}
    assert found[3].task_id == "code.lists+coins.d2-3/test/9/3"
    assert tasks.find(found[3].task_id) == found[3]


def test_the_released_problems_never_change():
    """``-v0`` keeps its meaning: papers and logs refer to what these ids contain."""
    tasks = code_tasks()
    assert [tasks[index].content_hash[:16] for index in (0, 1, 999_999)] == RELEASED


RELEASED = ["a13cb34965d9eee7", "b4fa4e42c6203d20", "94a15eda1ebb790d"]
