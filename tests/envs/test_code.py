"""``rllm/Code-v0`` and ``rllm/CodeMultiTurn-v0``: programs are graded correctly and hidden tests are never revealed."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import psutil
import pytest

import rllm_gym  # noqa: F401 - registers the ids
from rllm_gym.agents import CodeAgent, default_agent
from rllm_gym.core import EnvironmentFault, Task, TaskError
from rllm_gym.engine import AgentExecutionEngine
from rllm_gym.envs.code import CodeEnv, CodeMultiTurnEnv, row_to_code_task
from rllm_gym.samplers import ScriptedSampler
from rllm_gym.sandbox import Program, ProgramResult, SandboxPool, SandboxUnavailable

IDS = ("rllm/Code-v0", "rllm/CodeMultiTurn-v0")
DOUBLE = {
    "id": "double",
    "prompt": "Double the number.",
    "kind": "stdio",
    "tests": [{"stdin": f"{number}\n", "stdout": f"{2 * number}\n"} for number in (2, 3, 777_123, 88, 9)],
    "public_tests": 2,
}
ADD = {
    "id": "add",
    "prompt": "Add two numbers.",
    "kind": "function",
    "entry_point": "add",
    "test": ["assert add(1, 2) == 3", "assert add(4004, 5005) == 9009", "assert add(-1, 1) == 0"],
    "test_style": "assert",
    "public_tests": 1,
}


def block(program: str) -> str:
    return f"So:\n```python\n{program}\n```\n"


PATIENT = {"cpu_s": 30.0}
"""Limits that correct programs meet even on a machine that stalls."""


def start(row: dict[str, Any], env_id: str = IDS[0], **arguments: Any) -> gym.Env[str, str]:
    env = gym.make(env_id, tasks=[row], **(PATIENT | arguments))
    env.reset(options={"task": row.get("id", 0)})
    return env


def reward_of(row: dict[str, Any], program: str, **arguments: Any) -> float:
    env = start(row, **arguments)
    try:
        return float(env.step(block(program))[1])
    finally:
        env.close()


# Correct and incorrect programs


PROGRAMS = [
    ("print(2 * int(input()))", 1.0),
    ("print(2 * int(input()))\nraise SystemExit(3)", 0.0),
    ("print(3 * int(input()))", 0.0),
    ("n = int(input())\nprint(2 * n if n != 88 else 0)", 0.0),
    ("n = int(input())\nprint(2 * n if n > 3 else 0)", 0.0),  # the public tests count too
    ("import os\nos._exit(0)", 0.0),
    ("print(", 0.0),
]


def test_a_stdio_program_is_graded_by_its_output():
    assert [(program, reward_of(DOUBLE, program)) for program, _ in PROGRAMS] == PROGRAMS


def test_numbers_may_differ_within_the_tolerance_of_the_row():
    row = DOUBLE | {"tests": [{"stdin": "1", "stdout": "0.333333"}], "public_tests": 0}
    assert reward_of(row | {"float_tolerance": 1e-4}, "print(1 / 3)") == 1.0
    assert reward_of(row, "print(1 / 3)") == 0.0


STYLES = {
    "check": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(-1, 1) == 0\n",
    "assert": "assert add(1, 2) == 3\nassert add(-1, 1) == 0",
    "unittest": "import unittest\n\nclass TestAdd(unittest.TestCase):\n    def test_one(self):\n"
    "        self.assertEqual(add(1, 2), 3)\n    def test_two(self):\n        self.assertEqual(add(-1, 1), 0)\n",
    "pytest": "from solution import add\nimport pytest\n\n"
    "@pytest.mark.parametrize('a, b, c', [(1, 2, 3), (-1, 1, 0)])\ndef test_add(a, b, c):\n    assert add(a, b) == c\n",
}


def test_a_function_is_graded_by_tests_of_every_style():
    bare = {key: value for key, value in ADD.items() if key not in ("public_tests", "test_style")}
    for style, text in STYLES.items():
        row = bare | {"test": text}  # the style need not be named
        assert row_to_code_task(row, "x").data["test_style"] == style
        row["test_style"] = style
        assert reward_of(row, "def add(a, b):\n    return a + b") == 1.0, style
        assert reward_of(row, "def add(a, b):\n    return 3") == 0.0, style
        assert reward_of(row, "add = None") == 0.0, style


UNGRADABLE = [
    (
        ADD | {"test": "import sys\nassert add(sys._getframe(), 1) is None", "public_tests": 0},
        "gives the program a frame",
    ),
    (ADD | {"test": "class A: pass\nclass B(A, add): pass\nassert B()", "public_tests": 0}, "class B derives from add"),
    (DOUBLE | {"checker": "def check(stdin, stdout, expected):\n    return wrong"}, "NameError"),
]


@pytest.mark.parametrize("partial", [False, True])
def test_a_task_that_cannot_be_graded_is_a_fault_and_no_reward_of_zero(partial):
    for row, reason in UNGRADABLE:
        env = start(row, partial=partial)
        program = "class add:\n    pass" if "derives" in reason else "def add(a, b):\n    print(a + b)"
        with pytest.raises(EnvironmentFault, match=reason) as error:
            env.step(block(program))
        assert error.value.kind == "ungradable_task"


def test_a_test_that_looks_into_the_programs_process_is_a_fault_when_its_task_is_loaded():
    for test in ("import dis\nassert list(dis.get_instructions(add))", "assert add.__code__.co_argcount == 2"):
        with pytest.raises(EnvironmentFault, match="byte code or memory") as error:
            start(ADD | {"test": test, "public_tests": 0})
        assert error.value.kind == "ungradable_task"
    mentioned = ADD | {"test": "assert add(1, 2) == 3, 'see dis, __code__ and co_names'", "public_tests": 0}
    assert reward_of(mentioned, "def add(a, b):\n    return a + b") == 1.0


def test_a_program_cannot_make_a_task_ungradable():
    for program in (
        "import sys\ndef add(a, b):\n    return sys._getframe()",
        "class add:\n    def __new__(cls, a, b): return add\n    def __eq__(self, o): return True",
        "def add(a, b):\n    return 'x' * 30_000_000",
        "import unittest\ndef add(a, b):\n    return unittest.TestCase()",
        "raise SystemExit",
    ):
        assert reward_of(ADD, program) == 0.0, program


def test_partial_credit_is_the_fraction_of_hidden_tests():
    program = "n = int(input())\nprint(2 * n if n != 88 else 0)"
    env = start(DOUBLE, partial=True)
    observation, reward, terminated, _, info = env.step(block(program))
    assert (reward, terminated, info["success"]) == (pytest.approx(2 / 3), True, False)
    assert info["reward_components"] == {"tests": pytest.approx(2 / 3)}
    assert (info["tests_passed"], info["tests_total"]) == (2, 3)
    assert "2 of 3 hidden tests" in observation
    assert reward_of(DOUBLE, "print(2 * int(input()))", partial=True) == 1.0
    assert reward_of(ADD, "def add(a, b):\n    return 3", partial=True) == pytest.approx(1 / 3)
    every_test_shown = DOUBLE | {"public_tests": 5}
    assert reward_of(every_test_shown, program, partial=True) == pytest.approx(4 / 5)


def test_limits_of_the_row_are_enforced_and_reported():
    row = DOUBLE | {"cpu_s": 0.3, "memory_mb": 200}
    observation, _ = start(row).reset(seed=0)
    assert "0.3 s of processor time and 200 MB" in observation
    assert reward_of(row, "while True: pass") == 0.0
    assert reward_of(row | {"cpu_s": 30}, "x = bytearray(400 << 20)\nprint(2 * int(input()))") == 0.0
    assert "60 s of processor time and 4096 MB" in start(row | {"cpu_s": 1e9, "memory_mb": 10**9}).reset()[0]


class CountingPool(SandboxPool):
    """Count the programs that it runs."""

    programs = 0

    async def run(self, program: Program) -> ProgramResult:
        self.programs += 1
        return await super().run(program)


@pytest.mark.parametrize(
    "program", ["while True: pass", pytest.param("import time\ntime.sleep(1e6)", marks=pytest.mark.long)]
)
def test_a_program_that_never_ends_is_run_once_and_not_once_per_test(program):
    row = DOUBLE | {"tests": DOUBLE["tests"] * 10, "public_tests": 0, "cpu_s": 0.1}
    with CountingPool() as pool:
        env = CodeEnv(tasks=[row], partial=True, sandbox=pool)
        env.reset()
        _, reward, *_, info = env.step(block(program))
        assert (reward, info["tests_passed"], info["tests_total"]) == (0.0, 0, 50)
        assert pool.programs == 1


# Real data


async def rewards_of(rows: list[dict[str, Any]], programs: list[str]) -> list[float]:
    async def one(row: dict[str, Any], program: str) -> float:
        env = CodeEnv(tasks=[row], **PATIENT)
        await env.async_reset(seed=0)
        return (await env.async_step(block(program)))[1]

    return await asyncio.gather(*(one(row, program) for row, program in zip(rows, programs)))


def lines_of(path: Path, every: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()][::every]


@pytest.mark.parametrize("every", [20, pytest.param(8, marks=pytest.mark.long)])
def test_humaneval_solutions_pass_whole_or_as_a_body_and_an_early_return_fails(shared_data, every):
    rows = lines_of(shared_data / "humaneval.jsonl", every)
    for programs, reward in (
        ([row["prompt"] + row["canonical_solution"] for row in rows], 1.0),
        ([row["canonical_solution"] for row in rows], 1.0),
        ([row["prompt"] + "    return None\n" for row in rows], 0.0),
    ):
        assert asyncio.run(rewards_of(rows, programs)) == [reward] * len(rows)


def test_a_function_of_humaneval_may_leave_out_the_imports_that_were_given(shared_data):
    row = lines_of(shared_data / "humaneval.jsonl", 1)[0]
    program = row["prompt"].partition("\n\n\n")[2] + row["canonical_solution"]
    assert "import" not in program
    future = "from __future__ import annotations\n" + program
    assert asyncio.run(rewards_of([row] * 2, [program, future])) == [1.0, 1.0]


def test_files_are_task_sets(shared_data):
    env = gym.make(IDS[0], tasks=shared_data / "humaneval.jsonl", num_tasks=100)
    observation, info = env.reset(options={"task": "HumanEval/32"})
    assert info["task_id"] == "HumanEval/32"
    assert "has to define `find_zero`" in observation
    assert len(env.unwrapped.tasks) == 100  # type: ignore[attr-defined]
    env = gym.make(IDS[0], tasks=str(shared_data / "mbpp_test.jsonl"))
    observation, _ = env.reset(options={"task": "11"})
    assert 'assert remove_Occ("hello","l") == "heo"' in observation
    assert "PHP" not in observation


# Observations and feedback


def test_the_problem_shows_the_public_tests_and_no_other():
    observation, info = gym.make(IDS[0], tasks=[DOUBLE]).reset(seed=0)
    assert "Double the number." in observation
    assert "Example 2, input:\n```\n3\n```\noutput:\n```\n6\n```" in observation
    assert "777123" not in observation + str(info)
    observation, info = gym.make(IDS[0], tasks=[ADD]).reset(seed=0)
    assert "as `add`" in observation
    assert "assert add(1, 2) == 3" in observation
    assert "4004" not in observation + str(info)
    assert (info["program"], info["tests_passed"], info["tests_total"]) == ("", 0, 0)


SPY = """
import sys
given = sys.stdin.read()
if given.strip() in ("2", "3"):
    print(2 * int(given))
else:
    print(given, file=sys.stderr)
    {end}
"""
SPIES = [
    SPY.format(end="raise ValueError(given)"),
    SPY.format(end="""sys.stderr.write('  File "main.py", line 1\\nSyntaxError: ' + given); sys.exit(1)"""),
    SPY.format(end="sys.exit(given)"),
    SPY.format(end="print(given)"),
    "def add(a, b):\n    if a == 1:\n        return 3\n    raise ValueError(f'{a} {b}')",
    "def add(a, b):\n    if a == 1:\n        return 3\n    print(a, b)\n    return f'{a} {b}'",
    "import sys\ndef add(a, b):\n    if a == 1:\n        return 3\n    sys.exit(f'{a} {b}')",
    "def add(a, b):\n    if a == 1:\n        return 3\n    raise type(f'E{a}', (Exception,), {})()",
]


VARIANTS = list(itertools.product(IDS, [False, True], [True, False]))


@pytest.mark.parametrize(
    "variants",
    [
        pytest.param([VARIANTS[0], VARIANTS[7]], id="two"),
        pytest.param(VARIANTS[1:7], id="others", marks=pytest.mark.long),
    ],
)
def test_no_program_can_reveal_a_hidden_test(variants):
    for spy, (env_id, partial, shown) in itertools.product(SPIES, variants):
        row = ADD if "add" in spy else DOUBLE
        env = start(row if shown else row | {"public_tests": 0}, env_id, partial=partial, render_mode="ansi")
        observation, reward, *_, info = env.step(block(spy))
        output = observation + str(info) + str(env.render())
        leaked = [secret for secret in ("777123", "1554246", "4004", "5005", "9009") if secret in output]
        assert not leaked, (spy, env_id, partial, shown)
        assert reward < 1, (spy, env_id, partial, shown)


def test_a_reply_without_a_program_gets_feedback_and_starts_no_sandbox():
    with SandboxPool() as pool:
        for reply, message in (
            ("print(4)", "no fenced"),
            ("<think>```python\nprint(4)\n```", "never closes"),
            ("```python\n\n```", "empty"),
            ("```python\nprint(4)", "never closed"),
        ):
            before = set(psutil.Process().children(recursive=True))
            env = start(DOUBLE, sandbox=pool)
            observation, reward, terminated, truncated, info = env.step(reply)
            assert message in observation
            assert (reward, terminated, truncated) == (0.0, True, False)
            assert (info["invalid_action"], info["stop_reason"], info["program"]) == (True, "invalid_action", "")
            assert set(psutil.Process().children(recursive=True)) <= before  # those of earlier tests may end
    assert start(DOUBLE, invalid_action_penalty=0.25).step("print(4)")[1] == -0.25


def test_long_text_is_truncated_and_marked():
    row = {
        "id": "long",
        "prompt": "Write much.",
        "kind": "stdio",
        "tests": [{"stdin": "y" * 50_000, "stdout": "z" * 50_000}] * 8,
        "public_tests": 8,
    }
    env = start(row, IDS[1])
    assert "characters cut" in env.reset()[0]
    observation = env.step(block("print('w' * 50_000)"))[0]
    assert "cut" in observation
    assert len(observation) < 20_000
    observation = start(DOUBLE, IDS[1]).step(block("raise ValueError('\\ud800\\x1b[31m' * 20_000)"))[0]
    assert len(observation) < 20_000
    observation.encode()


# Several turns


def test_a_program_is_revised_until_it_passes():
    env = start(DOUBLE, IDS[1], max_turns=5)
    observation, reward, terminated, truncated, info = env.step(block("print(2 * int(input())"))
    assert "SyntaxError: '(' was never closed" in observation
    assert (reward, terminated, truncated, info["stop_reason"]) == (0.0, False, False, "")
    observation, *_, info = env.step(block("import sys\nprint(1 // 0)"))
    assert "passes 0 of the 2 tests that are shown" in observation
    assert "ZeroDivisionError" in observation
    observation, *_, info = env.step(block("print(3 * int(input()))"))
    assert "got '6', expected '4'" in observation
    assert "You have 2 turns left" in observation
    observation, *_, info = env.step(block("n = int(input())\nprint(2 * n if n < 10 else 0)"))
    assert observation.startswith("It fails a hidden test.")
    assert info["tests_total"] == 3
    observation, reward, terminated, truncated, info = env.step(block("print(2 * int(input()))"))
    assert (reward, terminated, truncated, info["success"], info["stop_reason"]) == (1.0, True, False, True, "success")
    assert info["program"] == "print(2 * int(input()))\n"


def test_out_of_turns_is_truncated_and_functions_get_their_results_as_feedback():
    env = start(ADD, IDS[1], max_turns=2)
    observation, *_ = env.step(block("import no_such_module\ndef add(a, b):\n    return a + b"))
    assert "No module named 'no_such_module'" in observation
    observation, reward, terminated, truncated, info = env.step(block("def add(a, b):\n    return a - b"))
    assert "got -1, expected 3" in observation
    assert observation.endswith("No turns are left.")
    assert (reward, terminated, truncated, info["stop_reason"]) == (0.0, False, True, "max_turns")


def test_partial_credits_of_several_turns_sum_to_the_best():
    env = start(DOUBLE, IDS[1], partial=True, max_turns=4)
    half = block("n = int(input())\nprint(2 * n if n != 88 else 0)")
    rewards = [env.step(reply)[1] for reply in (half, block("print(1)"), half, block("print(2 * int(input()))"))]
    assert rewards == pytest.approx([2 / 3, 0, 0, 1 / 3])


def test_a_restored_state_continues_where_it_was_saved():
    env = CodeMultiTurnEnv(tasks=[DOUBLE], max_turns=3, partial=True, render_mode="ansi", **PATIENT)
    env.reset(seed=0)
    env.step(block("n = int(input())\nprint(2 * n if n != 88 else 0)"))
    copy = env.fork()
    assert copy.render() == env.render()
    right = block("print(2 * int(input()))")
    assert copy.step(right) == env.step(right)
    other = CodeMultiTurnEnv(tasks=[ADD])
    other.reset(seed=0)
    with pytest.raises(ValueError, match="was saved by"):
        CodeEnv(tasks=[ADD]).set_state(other.get_state())


# The sandbox


def test_the_tier_is_in_the_metadata_and_in_every_info():
    env = start(DOUBLE)
    tier = env.unwrapped.metadata["sandbox_tier"]
    assert tier in ("A", "B")
    assert env.reset()[1]["sandbox_tier"] == env.step("")[4]["sandbox_tier"] == tier
    env = start(DOUBLE, sandbox="unsafe")
    assert env.step(block("print(2 * int(input()))"))[4]["sandbox_tier"] == "C"
    assert "sandbox_tier" not in CodeEnv.metadata


def test_an_unavailable_sandbox_is_an_error_when_the_environment_is_made(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(SandboxUnavailable, match=r"(?i)docker"):
        CodeEnv(tasks=[DOUBLE], sandbox="docker")
    with pytest.raises(ValueError, match="sandbox"):
        CodeEnv(tasks=[DOUBLE], sandbox="none")


def test_a_pool_of_the_user_is_used_and_left_open():
    with SandboxPool(max_workers=1) as pool:
        for _ in range(2):
            env = start(DOUBLE, sandbox=pool)
            assert env.step(block("print(2 * int(input()))"))[1] == 1.0
            env.close()


def test_misuse_is_an_error_with_a_hint():
    for arguments, fault in (
        ({"max_turns": 3}, "CodeMultiTurn"),
        ({"num_tasks": 0}, "num_tasks"),
        ({"partial": 1}, "partial"),
        ({"cpu_s": 0}, "cpu_s"),
        ({"cpu_s": float("nan")}, "cpu_s"),
        ({"memory_mb": 10**6}, "memory_mb"),
        ({"tasks": [DOUBLE], "families": "lists"}, "built-in"),
        ({"tasks": [DOUBLE], "difficulty": 1}, "built-in"),
        ({"families": "poetry"}, "choose from"),
        ({"families": []}, "choose from"),
        ({"difficulty": (3, 1)}, "difficulty"),
        ({"difficulty": 9}, "difficulty=9"),
        ({"split": "dev"}, "'train', 'validation', 'test'"),
        ({"tasks": []}, "empty"),
        ({"tasks": [DOUBLE, DOUBLE]}, "already used"),
    ):
        with pytest.raises(ValueError, match=fault):
            CodeEnv(**arguments)
    env = CodeEnv(tasks=[DOUBLE])
    with pytest.raises(TaskError, match="'mine'"):
        env.reset(options={"task": Task("mine", "?", {"kind": "stdio", "tests": []})})
    with pytest.raises(TaskError, match="exceeds max_observation_chars"):
        CodeEnv(tasks=[DOUBLE | {"prompt": "x" * 5_000}], max_observation_chars=1_000).reset()


# The engine


def test_the_engine_runs_honest_and_hostile_programs_without_a_fault(monkeypatch):
    honest, loop, wrong, none = block("print(2 * int(input()))"), block("while True: pass"), block("print(1)"), "no"
    tasks = [DOUBLE | {"id": "honest"}, DOUBLE | {"id": "hostile", "cpu_s": 0.2}]
    created = []
    construct = CodeEnv.__init__

    def counted(self: CodeEnv, **arguments: Any) -> None:
        created.append(self)
        construct(self, **arguments)

    monkeypatch.setattr(CodeEnv, "__init__", counted)

    async def scenario() -> list[Any]:
        engine = AgentExecutionEngine(
            env=IDS[0],
            env_kwargs={"tasks": tasks, **PATIENT},
            sampler=ScriptedSampler(lambda request: next(replies["0.2 s" in str(request.messages)])),
            n_parallel=6,
        )
        async with engine:
            return await engine.run(["honest", "hostile", "honest", "hostile"] * 3)

    replies = {False: itertools.cycle([honest, wrong]), True: itertools.cycle([loop, none])}
    episodes = asyncio.run(scenario())
    assert sorted(episode.reward for episode in episodes) == [0.0] * 9 + [1.0] * 3
    assert [episode.fault for episode in episodes] == [None] * 12
    assert len(created) == 6  # not one per episode: each reads all tasks
    assert {episode.info["sandbox_tier"] for episode in episodes} <= {"A", "B"}
    assert default_agent("rllm/CodeMultiTurn-v0") is default_agent("rllm/Code-v0") is CodeAgent
