"""Problems of difficulty 6 to 8: the reference is right and fast, and right but slow programs do not pass."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from slow_programs import SLOW_PROGRAMS

from rllm_gym.core import SPLITS, Task, TaskError
from rllm_gym.envs.code import ALGORITHMS, FAMILIES, CodeEnv, code_tasks, reference_solution
from rllm_gym.envs.code.families.building_blocks import Source
from rllm_gym.envs.code.families.compose import _text_of

LEVELS = (6, 7, 8)
SOURCES = {source.name: source for sources in ALGORITHMS.values() for source in sources}


def task_of(source: Source) -> Task:
    """Return a problem that begins with this source."""
    family = next(family for family, sources in ALGORITHMS.items() if source in sources)
    tasks = code_tasks(families=family, difficulty=source.level, seed=11)
    return next(task for task in tasks if task.data["recipe"][0][0] == source.name)


def slow_versions(task: Task) -> list[str]:
    """Return the reference program with its function replaced by each slow one."""
    name = task.data["recipe"][0][0]
    reference, function = reference_solution(task), _text_of(SOURCES[name].function)
    assert function in reference
    return [reference.replace(function, slow) for slow in SLOW_PROGRAMS[name]]


def hidden_tests_passed(task: Task, program: str) -> tuple[int, int]:
    """Return how many hidden tests a program passes, and how many there are."""
    env = CodeEnv(partial=True)
    env.reset(options={"task": task})
    info = env.step(f"```python\n{program}\n```")[4]
    return info["tests_passed"], info["tests_total"]


@pytest.mark.parametrize("inputs", [25, pytest.param(400, marks=pytest.mark.long)])
def test_every_reference_agrees_with_simpler_programs(inputs: int) -> None:
    assert set(SLOW_PROGRAMS) == set(SOURCES)
    for name, source in SOURCES.items():
        assert len(SLOW_PROGRAMS[name]) >= 2
        rng = random.Random(name)
        namespaces: list[dict[str, Any]] = [{} for _ in SLOW_PROGRAMS[name]]
        for text, namespace in zip(SLOW_PROGRAMS[name], namespaces):
            exec(text, namespace)  # noqa: S102 - the texts of this folder
        for values in (*source.edges, *(source.draw(rng, rng.choice(LEVELS)) for _ in range(inputs))):
            parameters = {key: rng.choice(options) for key, options in source.options.items()}
            expected = source.function(*copy.deepcopy(values), **parameters)
            for namespace in namespaces:
                assert namespace[name](*copy.deepcopy(values), **parameters) == expected, (name, values, parameters)


# Slow programs use the whole of their CPU time, so that one problem is a sample.
@pytest.mark.parametrize(
    "name",
    [name if name == "great_drops" else pytest.param(name, marks=pytest.mark.long) for name in SOURCES],
)
def test_the_reference_passes_and_slow_programs_fail_the_large_test_only(name: str) -> None:
    task = task_of(SOURCES[name])
    passed, total = hidden_tests_passed(task, reference_solution(task))
    assert passed == total >= 10
    for program in slow_versions(task)[: 1 if name == "great_drops" else None]:
        assert hidden_tests_passed(task, program) == (total - 1, total), program


@pytest.mark.long
def test_no_constant_and_no_number_of_the_input_is_the_answer() -> None:
    for difficulty in LEVELS:
        for task in code_tasks(difficulty=difficulty, size=4):
            assert task.data["kind"] == "stdio"
            hidden = [(case["stdin"].split(), case["stdout"].strip()) for case in task.data["tests"][3:]]
            assert len({stdout for _, stdout in hidden}) >= 4
            for place in (0, 1, 2, -1, -2, -3):
                copied = sum(stdout in stdin[place:][:1] for stdin, stdout in hidden)
                assert copied < len(hidden), task.content


def test_levels_are_options_in_every_split_and_do_not_change_the_old_ones() -> None:
    assert {task.data["difficulty"] for task in code_tasks(size=40)} == {1, 2, 3, 4, 5}
    assert code_tasks(difficulty=(5, 6))[3].task_id == "code.d5-6/train/0/3"
    mixed = code_tasks(families=["coins", "networks"], difficulty=(5, 7), size=6)
    assert {(task.data["family"], task.data["difficulty"]) for task in mixed} <= {
        ("coins", 5), ("networks", 6), ("networks", 7)
    }  # fmt: skip
    for source in SOURCES.values():
        variants = 1
        for options in source.options.values():
            variants *= len(options)
        assert variants >= 100, source.name  # so that every split has some
    for split in SPLITS:
        assert code_tasks(families="palindromes", difficulty=8, split=split)[0].split == split


def test_a_family_without_such_problems_is_refused() -> None:
    assert "coins" in FAMILIES
    for families, difficulty, message in (
        ("coins", 6, "no problems of difficulty 6 to 8; those that do are pairs"),
        ("palindromes", (6, 8), "no problems of difficulty 6; those that do are pairs"),
        ("pairs", 5, "no problems of difficulty 1 to 5"),
        (None, 9, "must be 1 to 8"),
    ):
        with pytest.raises(TaskError, match=message):
            code_tasks(families=families, difficulty=difficulty)
