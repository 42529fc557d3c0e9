"""ToolMath-v0: programs return their output, an answer ends the episode, and programs cannot see the task."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import gymnasium
import pytest
from gymnasium.error import ResetNeeded

from rllm_gym.core import TaskError
from rllm_gym.envs.tool_math import ToolMathEnv
from rllm_gym.sandbox import Program, ProgramResult, SandboxFault, SandboxPool, SandboxUnavailable

ROWS = [{"question": "How much is 6 * 7?", "answer": "42"}]


def run(*codes: Any) -> str:
    calls = ({"name": "python", "arguments": {"code": code}} for code in codes)
    return "\n".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)


@pytest.fixture
def env():
    try:
        env = ToolMathEnv(tasks=ROWS, cpu_s=20.0, grading_timeout=120.0)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    env.reset(seed=0)
    yield env
    env.close()


def test_the_prompt_contains_problem_tool_and_answer_format(env):
    observation, info = env.reset(seed=0)
    assert observation.startswith("How much is 6 * 7?")
    assert "\\boxed{}" in observation
    assert '"name": "python"' in observation
    (tool,) = json.loads(info["tools"])
    assert tool["function"]["parameters"]["required"] == ["code"]
    assert (info["tools_called"], info["extracted"]) == (0, "")


OUTPUTS = [
    ("print(6 * 7)", "42"),
    ("x = 6\nx * 7", "42"),
    ("x = 6", "(no output: print what you want to see)"),
    ("def f():\n    return 1 / 0\nf()", "ZeroDivisionError: division by zero"),
    ("print('first')\nx = (", "'(' was never closed"),
    ("import sys\nprint(6)\nsys.exit(3)", "6"),
    ("from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 7\nA().x * 6", "42"),
    ("import math\nprint(__name__, math.comb(5, 2))", "__main__ 10"),
    ("\x00", "null bytes"),
]


def test_a_program_returns_its_output_and_the_value_of_its_last_line(env):
    for code, output in OUTPUTS:
        env.reset(seed=0)
        observation, reward, terminated, truncated, info = env.step(run(code))
        assert output in observation
        assert (reward, terminated, truncated, info["invalid_action"]) == (0.0, False, False, False), code
        assert info["tools_called"] == 1
        assert "python_tool" not in observation  # the traceback shows only the program


def test_programs_of_one_reply_run_concurrently_and_keep_no_state(env):
    observation, *_ = env.step(
        run("open('kept', 'w').write('1')\nx = 1", "import os\nprint(os.listdir('.'))", "print(x)")
    )
    assert "Result 2 of 3:\n['program.py']" in observation
    assert "Result 3 of 3:" in observation
    assert "NameError: name 'x' is not defined" in observation


def test_a_program_over_its_limits_is_ended_and_the_episode_continues(env):
    soon = ToolMathEnv(tasks=ROWS, cpu_s=0.3)
    soon.reset(seed=0)
    assert "(ended: more than 0.3 s of processor time)" in soon.step(run("while True: pass"))[0]
    assert soon.step("\\boxed{42}")[1] == 1.0
    soon.close()
    observation, *_ = env.step(run("print('x' * 1_000_000)", "x = bytearray(10**10)"))
    assert "characters left out" in observation
    assert "MemoryError" in observation
    assert len(observation) < 15_000
    assert env.step("\\boxed{42}")[1] == 1.0


HOSTILE = (
    "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(-1, signal.SIGKILL)",
    "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)",
    "import os\nos.closerange(0, 1_000)\nos.abort()",
    "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "import sys\nwhile True: sys.stdout.write('x' * 1_000_000)",
    "import os\nos.write(1, os.urandom(100_000))\nos._exit(77)",
    "import os, shutil\nshutil.rmtree(os.getcwd())\nos.chmod('/', 0)",
    "keep = [bytearray(1 << 20) for _ in range(100_000)]",
)


def test_no_program_makes_the_episode_a_fault():
    """A model could otherwise leave every episode that it is about to fail."""
    env = ToolMathEnv(tasks=ROWS, cpu_s=0.3)
    env.reset(seed=0)
    observation, reward, terminated, *_, info = env.step(run(*HOSTILE))
    assert (reward, terminated, info["tools_called"]) == (0.0, False, len(HOSTILE))
    assert observation.count("Result ") >= len(HOSTILE)
    assert "42" in env.step(run("print(6 * 7)"))[0]
    assert env.step("\\boxed{41}")[1:3] == (0.0, True)
    env.close()


def test_programs_cannot_see_the_task():
    rows = [{"question": "Which word?", "answer": "zyzzyva-4711"}]
    env = ToolMathEnv(tasks=rows, sandbox="auto", cpu_s=20.0)
    env.reset(seed=0)
    look = """
import os, sys, gc
found = [name for name in os.environ if "zyz" + "zyva" in os.environ[name]]
found += [repr(one)[:50] for one in gc.get_objects() if isinstance(one, dict) and "zyz" + "zyva" in repr(one)]
for pid in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else []):
    try:
        text = open(f"/proc/{pid}/cmdline").read() + open(f"/proc/{pid}/environ").read()
        found += [pid] if "zyz" + "zyva" in text else []
    except OSError:
        pass
print("found", found, "rllm_gym.envs" in sys.modules)
"""
    assert "found [] False" in env.step(run(look))[0]
    env.close()


REFUSED = [
    ("42", "no \\boxed{}. Nor does it call the tool."),
    ("", "no \\boxed{}"),
    (run("1") * 9, "9 tool calls, and at most 8"),
    (run(3), "must have one argument, the text 'code'"),
    ('<tool_call>{"name": "python", "arguments": {"cod": "1"}}</tool_call>', "it has 'cod'"),
    ('<tool_call>{"name": "calculator", "arguments": {}}</tool_call>', "'calculator'; the only tool is 'python'"),
    ('<tool_call>{"name": "python", "arguments": {"code": "1}}</tool_call>', "position"),
    (run("x" * 100_001), "at most 100000 are run"),
    ('<tool_call>{"name": "python", "arguments": {"code": "\\ud800"}}</tool_call>', "position 1"),
]


def test_a_reply_without_call_or_answer_changes_nothing(env):
    for reply, output in REFUSED:
        env.reset(seed=0)
        observation, reward, terminated, _, info = env.step(reply)
        assert output in observation
        assert (reward, terminated, info["invalid_action"], info["tools_called"]) == (0.0, False, True, 0), reply[:80]


def test_an_answer_ends_the_episode(env):
    for answer, reward in (("42", 1.0), ("42.0", 1.0), ("41", 0.0)):
        env.reset(seed=0)
        observation, rewarded, terminated, _, info = env.step(f"<think>{run('1')}</think>So \\boxed{{{answer}}}")
        assert (rewarded, terminated, info["success"], info["extracted"]) == (reward, True, bool(reward), answer)
        assert "42" not in observation
        with pytest.raises(ResetNeeded):
            env.step("\\boxed{42}")


def test_a_call_next_to_a_boxed_answer_is_a_call(env):
    observation, *_, info = env.step(f"I guess \\boxed{{41}}, but {run('6 * 7')}")
    assert "42" in observation
    assert info["extracted"] == ""


class WatchedPool(SandboxPool):
    """Record when a program has been passed to it."""

    def __init__(self) -> None:
        super().__init__()
        self.run_started = asyncio.Event()

    async def run(self, program: Program) -> ProgramResult:
        running = asyncio.ensure_future(super().run(program))
        self.run_started.set()
        return await running


def test_a_broken_sandbox_is_a_fault():
    pool = WatchedPool()
    env = ToolMathEnv(tasks=ROWS, sandbox=pool, cpu_s=60.0)
    env.reset()

    async def closed_in_mid_run() -> None:
        running = asyncio.ensure_future(env.async_step(run("import time\ntime.sleep(1000)")))
        await pool.run_started.wait()
        await pool.aclose()
        await running

    with pytest.raises(SandboxFault):
        asyncio.run(closed_in_mid_run())
    with pytest.raises(ResetNeeded):
        env.step("\\boxed{42}")
    env.close()


def test_options_out_of_range_are_errors_with_their_name():
    for options, output in (
        ({"cpu_s": 0}, "cpu_s=0"),
        ({"memory_mb": 1}, "memory_mb=1"),
        ({"max_result_chars": 1}, "max_result_chars=1"),
        ({"grading_timeout": 0}, "grading_timeout=0"),
        ({"num_tasks": 0}, "num_tasks=0"),
    ):
        with pytest.raises(ValueError, match=output):
            ToolMathEnv(**options)
    with pytest.raises(TaskError, match="families"):
        ToolMathEnv(tasks=ROWS, families="linear")


def test_the_problems_are_those_of_the_math_environment():
    tool_math_tasks = gymnasium.make("rllm/ToolMath-v0", families="linear", task_seed=3).unwrapped.tasks
    math_tasks = gymnasium.make("rllm/Math-v0", families="linear", task_seed=3).unwrapped.tasks
    assert [tool_math_tasks[index] for index in range(5)] == [math_tasks[index] for index in range(5)]
