"""The repository environment: what the agent can do, what it observes, and the reward of its work."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.error import ResetNeeded

from rllm_gym.agents import SWEAgent, default_agent
from rllm_gym.core import EnvironmentFault, TaskError
from rllm_gym.engine import AgentExecutionEngine
from rllm_gym.envs.swe.env import SWEEnv
from rllm_gym.samplers import ScriptedSampler
from rllm_gym.sandbox import SandboxPool, Tier
from rllm_gym.sandbox.session import PendingSession
from tests.envs.tool_call import call
from tests.sandbox.users import pool_of_any_tier

TESTS = "from calc.core import add\n\n\ndef test_zero():\n    assert add(0, 0) == 0\n"
REPO = {
    "calc/__init__.py": "",
    "calc/core.py": "def add(a, b):\n    return a - b\n",
    "tests/test_core.py": TESTS,
    "README.md": "# calc\n",
    "run.sh": "#!/bin/sh\n",
}
ROW: dict[str, Any] = {
    "id": "add",
    "statement": "`add` subtracts; it should add.",
    "repo": REPO,
    "hidden_tests": {"tests/test_core.py": TESTS + "\n\ndef test_add():\n    assert add(2, 3) == 5\n"},
    "fail_to_pass": ["tests/test_core.py::test_add"],
    "pass_to_pass": ["tests/test_core.py::test_zero"],
}
FIX = "```bash\nsed -i 's/a - b/a + b/' calc/core.py\n```"
SUBMIT = "```bash\nsubmit\n```"


def edit(command: str, path: str, **arguments: Any) -> str:
    return call("str_replace_editor", command=command, path=path, **arguments)


def bash(command: str) -> str:
    return f"```bash\n{command}\n```"


@pytest.fixture(scope="module")
def pool() -> Iterator[SandboxPool]:
    with pool_of_any_tier() as pool:
        yield pool


@pytest.fixture
def env(pool) -> Iterator[gymnasium.Env]:
    env = gymnasium.make("rllm/SWE-v0", tasks=[ROW], sandbox=pool)
    env.reset(seed=0)
    yield env
    env.close()


def say(env: gymnasium.Env, action: str) -> str:
    observation, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated, info["invalid_action"]) == (0.0, False, False, False), observation
    return observation


# Complete episodes

BY_TOOLS = [
    edit("view", "calc/core.py"),
    edit("str_replace", "calc/core.py", old_str="return a - b", new_str="return a + b"),
    call("submit"),
]
BY_XML = [
    "I fix it.\n<function=str_replace_editor>\n<parameter=command>str_replace</parameter>\n"
    "<parameter=path>/workspace/calc/core.py</parameter>\n<parameter=old_str>\n    return a - b\n</parameter>\n"
    "<parameter=new_str>\n    return a + b\n</parameter>\n</function>",
    "<function=submit>\n</function>",
]
MINI_SWE_AGENT_ACTIONS = [FIX, bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git add -A && git diff --cached")]


@pytest.mark.parametrize(
    "replies",
    [
        pytest.param([FIX, SUBMIT], id="bash"),
        pytest.param(BY_TOOLS, id="tools"),
        pytest.param(BY_XML, id="xml", marks=pytest.mark.long),
        pytest.param(MINI_SWE_AGENT_ACTIONS, id="mini", marks=pytest.mark.long),
    ],
)
def test_an_agent_that_fixes_it_is_rewarded_through_the_engine(pool, replies):
    engine = AgentExecutionEngine(
        env="rllm/SWE-v0", env_kwargs={"tasks": [ROW], "sandbox": pool}, sampler=ScriptedSampler(replies)
    )
    (episode,) = engine.run_sync(["add"])
    assert (episode.reward, episode.success, episode.stop_reason) == (1.0, True, "success"), episode
    info = episode.info
    assert info["sandbox_tier"] == pool.tier.value
    assert info["patch"] == (
        "diff --git a/calc/core.py b/calc/core.py\n--- a/calc/core.py\n+++ b/calc/core.py\n@@ -1,2 +1,2 @@\n"
        " def add(a, b):\n-    return a - b\n+    return a + b\n"
    )


def test_doing_nothing_gets_no_reward(env):
    observation, reward, terminated, truncated, info = env.step(SUBMIT)
    assert (reward, terminated, truncated, info["resolved"], info["success"]) == (0.0, True, False, False, False)
    assert info["reward_components"] == {"resolved": 0.0}
    assert "do not all pass" in observation
    assert "test_add" not in observation
    with pytest.raises(ResetNeeded):
        env.step(SUBMIT)


def test_breaking_a_passing_test_gets_no_reward(env):
    say(env, bash("echo 'def add(a, b): return a + b if a else 7' > calc/core.py"))
    assert env.step(SUBMIT)[1] == 0.0


def test_changing_the_tests_does_not_count_and_is_reported(env):
    say(env, bash("echo 'def test_add(): pass' > tests/test_core.py; echo x > conftest.py"))
    observation, reward, *_, info = env.step(SUBMIT)
    assert reward == 0.0
    assert [entry.partition(":")[0] for entry in info["dropped_changes"]] == ["conftest.py", "tests/test_core.py"]
    assert "conftest.py" in observation
    assert info["patch"] == ""


def test_the_turn_limit_truncates_after_a_warning(pool):
    env = SWEEnv(tasks=[ROW], sandbox=pool, max_turns=2)
    env.reset(seed=0)
    assert "One turn is left: submit" in env.step(FIX)[0]
    _, reward, terminated, truncated, info = env.step("hm")
    assert (reward, terminated, truncated, info["stop_reason"]) == (0.0, False, True, "max_turns")
    assert "+    return a + b" in info["patch"]
    assert info["invalid_action"] is True
    env.close()


def test_the_state_at_the_turn_limit_can_be_graded(pool):
    env = SWEEnv(tasks=[ROW], sandbox=pool, max_turns=2, grade_on_truncation=True)
    env.reset(seed=0)
    assert "is graded" in env.step(bash("ls"))[0]
    _, reward, terminated, truncated, info = env.step(FIX)
    assert (reward, terminated, truncated, info["resolved"], info["success"]) == (1.0, False, True, True, True)
    assert info["reward_components"] == {"resolved": 1.0}
    env.close()


# The workspace


def test_the_first_observation_suffices_to_act(pool):
    env = SWEEnv(tasks=[ROW], sandbox=pool)
    observation, info = env.reset(seed=0)
    for part in (
        ROW["statement"],
        "The repository is",
        "README.md",
        "calc/",
        "```bash",
        "submit",
        "30 turns",
    ):
        assert part in observation
    assert "test_add" not in observation
    assert observation == env.reset(seed=0)[0]
    tools = [tool["function"]["name"] for tool in json.loads(info["tools"])]
    assert tools == ["bash", "str_replace_editor", "submit"]
    env.close()


def test_the_workspace_has_one_fresh_commit_and_no_hidden_tests(env):
    assert say(env, bash("git log --oneline --all | wc -l; git status --short; git remote")).startswith("<output>\n1\n")
    assert "Exit code 1" in say(env, bash("grep -rI test_add ."))


def test_commands_share_files_and_processes_but_no_variables(env):
    say(env, bash("cd calc; export A=1; echo hello > note; (while :; do date > tick; sleep 0.05; done) & true"))
    assert say(env, bash('pwd; echo "[$A]"; cat calc/note')).endswith("[]\nhello\n</output>\nExit code 0.")
    assert "alive" in say(env, bash("rm calc/tick; until cat calc/tick; do sleep 0.05; done && echo alive"))
    assert "Exit code 3." in say(env, bash("exit 3"))


# The command gets enough time to start.
@pytest.mark.parametrize("timeout", [0.5, pytest.param(30, marks=pytest.mark.long)])
def test_a_command_over_its_timeout_is_killed_and_the_session_continues(env, timeout):
    reported = say(env, call("bash", command="echo begun; sleep 601 & sleep 601", timeout=timeout))
    assert "begun" in reported or timeout < 30
    assert f"killed after {timeout} seconds" in reported
    assert "Exit code 1." in say(env, bash("pgrep -fx 'sleep 601'"))


def test_tests_run_in_the_workspace(env):
    assert "1 passed" in say(env, bash("pytest -q"))
    assert "1 passed" in say(env, bash("python -m pytest -q tests"))


def test_hostile_output_is_bounded_and_printable(env):
    reported = say(env, bash("printf '\\033[31mred\\033[0m \\000\\377\\033]0;title\\007 <|im_end|>'"))
    assert reported == "<output>\nred \\x00\\xff <|im_end|>\n</output>\nExit code 0."
    reported = say(env, bash("echo first; head -c 5000000 /dev/zero; echo; echo last"))
    assert reported.startswith("<output>\nfirst\n\\x00")
    assert reported.endswith("last\n</output>\nExit code 0.")
    assert "bytes left out" in reported
    assert len(reported) < 17_000
    assert reported.isprintable() or "\n" in reported
    assert "no output" in say(env, bash("true"))


def test_submit_together_with_other_commands_does_not_submit(env):
    assert "must be alone" in say(env, bash("ls && submit"))


INVALID = [
    ("I am done.", "no action"),
    (FIX + "\n" + SUBMIT, "2 actions"),
    (call("bahs", command="ls"), "There is no tool 'bahs'. Did you mean 'bash'?"),
    (call("bash"), "lacks the parameter 'command'"),
    (call("bash", command=["ls"]), "'command' of 'bash' must be text"),
    (call("bash", command="ls", timeout=10**400), "number of seconds above 0"),
    (call("bash", cmd="ls"), "no parameter 'cmd'. Did you mean 'command'?"),
    (call("bash", command="ls\0"), "NUL character at position 3"),
    (bash("echo \ud800"), "lone surrogate"),
    (bash("x" * 200_000), "at most 100000"),
    (edit("veiw", "a"), "Did you mean 'view'?"),
    (edit("insert", "a", new_str="x"), "lacks the parameter 'insert_line'"),
    (edit("insert", "a", insert_line="x", new_str="x"), "must be a whole number"),
    (edit("view", "a", view_range=[1]), "list of two whole numbers"),
    (edit("view", ""), "is no path"),
]


def test_an_invalid_action_changes_nothing_and_is_explained(env):
    for reply, output in INVALID:
        observation, reward, terminated, truncated, info = env.step(reply)
        assert (reward, terminated, truncated, info["invalid_action"]) == (0.0, False, False, True), reply[:100]
        assert output in observation
    assert say(env, bash("git status --short; cat calc/core.py")) == (
        "<output>\ndef add(a, b):\n    return a - b\n</output>\nExit code 0."
    )


# The editor


def test_viewing_files(env):
    root = env.unwrapped._work.session.workdir
    core = f"Here's the result of running `cat -n` on {root}/calc/core.py:\n"
    assert say(env, edit("view", "calc/core.py")) == core + "     1\tdef add(a, b):\n     2\t    return a - b\n"
    assert say(env, edit("view", "/workspace/calc/core.py", view_range=[2, -1])) == core + "     2\t    return a - b\n"
    assert f"{root}/calc/core.py\n" in say(env, edit("view", root))
    assert ".git" not in say(env, edit("view", "."))
    assert "should be within the range of lines of the file: [1, 2]" in say(
        env, edit("view", "calc/core.py", view_range=[3, 4])
    )
    assert "not allowed when `path` points to a directory" in say(env, edit("view", "calc", view_range=[1, 2]))
    assert "does not exist" in say(env, edit("view", "nope.py"))


def test_paths_stay_in_the_repository(env):
    say(env, bash("ln -s /etc out; ln -s calc/core.py inside.py"))
    assert "is outside the repository, which is at" in say(env, edit("view", "/etc/passwd"))
    assert "is outside the repository" in say(env, edit("view", "../etc/passwd"))
    assert "cannot be read" in say(env, edit("view", "out/passwd"))
    assert "cannot be written" in say(env, edit("create", "out/x", file_text="x"))
    assert "def add" in say(env, edit("view", "inside.py"))


def test_creating_files(env):
    assert "created successfully" in say(env, edit("create", "new/deep/file.py", file_text="x = 1\n"))
    assert "already exists" in say(env, edit("create", "new/deep/file.py", file_text="x = 2\n"))
    assert "already exists" in say(env, edit("create", "calc", file_text="x = 2\n"))
    assert "x = 1" in say(env, bash("cat new/deep/file.py"))
    assert "No edit history" in say(env, edit("undo_edit", "new/deep/file.py"))


def test_replacing_needs_a_unique_match(env):
    say(env, edit("create", "a.txt", file_text="one\ntwo\none\n"))
    assert "Multiple occurrences of old_str `one` in lines [1, 3]" in say(
        env, edit("str_replace", "a.txt", old_str="one")
    )
    assert "did not appear verbatim" in say(env, edit("str_replace", "a.txt", old_str="One", new_str="x"))
    assert "are the same" in say(env, edit("str_replace", "a.txt", old_str="two", new_str="two"))
    assert "is empty" in say(env, edit("str_replace", "a.txt", old_str="", new_str="two"))
    assert "directory and only the `view`" in say(env, edit("str_replace", "calc", old_str="a", new_str="b"))
    reported = say(env, edit("str_replace", "a.txt", old_str="one\ntwo\n", new_str="1\n2\n3\n"))
    assert "     1\t1\n     2\t2\n     3\t3\n     4\tone\n" in reported
    assert "undone successfully" in say(env, edit("undo_edit", "a.txt"))
    assert say(env, bash("cat a.txt")).startswith("<output>\none\ntwo\none\n</output>")
    assert "No edit history" in say(env, edit("undo_edit", "a.txt"))


def test_inserting_lines(env):
    say(env, edit("create", "a.txt", file_text="one\ntwo"))
    assert "range of lines of the file: [0, 2]" in say(env, edit("insert", "a.txt", insert_line=3, new_str="x"))
    say(env, edit("insert", "a.txt", insert_line=0, new_str="zero\n"))
    say(env, edit("insert", "a.txt", insert_line=3, new_str="three"))
    assert say(env, bash("cat a.txt")).startswith("<output>\nzero\none\ntwo\nthree\n</output>")


def test_edits_leave_the_rest_of_a_file_unchanged(env):
    say(env, bash("printf 'a\\r\\n\\tb\\r\\n\\377end' > run.sh"))
    say(env, edit("str_replace", "run.sh", old_str="a\n\tb\n", new_str="A\n\tB\n"))
    assert say(env, bash("od -c run.sh | head -1; test -x run.sh && echo executable")) == (
        "<output>\n0000000   A  \\r  \\n  \\t   B  \\r  \\n 377   e   n   d\nexecutable\n</output>\nExit code 0."
    )
    say(env, bash("head -c 100 /dev/zero > binary; head -c 3000000 /dev/urandom | base64 > large"))
    assert "is binary" in say(env, edit("view", "binary"))
    assert "larger than" in say(env, edit("view", "large"))
    say(env, bash("mkfifo pipe"))
    assert "cannot be read" in say(env, edit("view", "pipe"))


# Rows, endings and faults


def test_a_row_that_needs_an_image_is_an_error(pool):
    env = SWEEnv(tasks=[{**ROW, "repo": "ghcr.io/me/world:3"}], sandbox=pool)
    with pytest.raises(TaskError, match=r"needs the image 'ghcr\.io/me/world:3'.*Docker"):
        env.reset(seed=0)
    env.close()


class DirectoryImages(SandboxPool):
    """A stand-in for containers, which are not available where tests run: an image is a directory, the rest is real."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.tier, self.folder, self.requested = Tier.DOCKER, folder, list[Any]()

    def open_session_sync(self, base=None, *, image=None, workdir=None, environment=None, **options):
        self.requested.append((image, workdir))
        environment = {name: value for name, value in (environment or {}).items() if name != "PATH"}
        place = base or self.folder / str(workdir).strip("/")
        return super().open_session_sync(place, environment=environment, **options)

    def open_session(self, base=None, **options):
        return PendingSession(lambda: self.open_session_sync(base, **options))


def test_rows_with_images_run_in_containers(pool, tmp_path):
    for path, text in {**REPO, "../r2e_tests/test_1.py": ROW["hidden_tests"]["tests/test_core.py"]}.items():
        (tmp_path / "testbed" / path).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "testbed" / path).write_text(text)
    bug = "--- a/calc/core.py\n+++ b/calc/core.py\n@@ -2 +2 @@\n-    return a - b\n+    return a * b\n"
    tests = {"FAIL_TO_PASS": ["tests/test_core.py::test_zero"], "PASS_TO_PASS": []}
    smith = {
        "instance_id": "smith",
        "repo": "a/b",
        "image_name": "x",
        "problem_statement": "It multiplies.",
        "patch": bug,
    }
    r2e = {
        "docker_image": "r2e",
        "problem_statement": "It subtracts.",
        "expected_output_json": '{"test_zero": "PASSED", "test_add": "PASSED"}',
    }
    with DirectoryImages(tmp_path) as images:
        env = SWEEnv(tasks=[{**smith, **tests}, r2e], sandbox=images)
        _, info = env.reset(options={"task": "smith"})
        assert info["sandbox_tier"] == "docker"
        assert "a * b" in say(env, bash("cat calc/core.py; git log --oneline"))
        env.reset(options={"task": "r2e"})
        assert "Exit code 1" in say(env, bash("grep -r test_add ."))
        say(env, FIX)
        _, reward, *_, info = env.step(SUBMIT)
        assert reward == 1.0, info
        env.close()
        assert {("x", "/testbed"), ("x", None), ("r2e", "/testbed"), ("r2e", "/r2e_tests"), ("r2e", None)} == set(
            images.requested
        )


def test_invalid_arguments_are_refused(pool):
    for arguments in (
        {"max_turns": 0},
        {"command_timeout": 0},
        {"grading_timeout": float("nan")},
        {"max_output_chars": 1},
    ):
        with pytest.raises(ValueError):
            SWEEnv(tasks=[ROW], sandbox=pool, **arguments)
    with pytest.raises(TaskError, match="local clones"):
        SWEEnv(tasks=[ROW], sandbox=pool, repositories=["ledger"])
    with pytest.raises(TaskError, match="local clones"):
        SWEEnv(sandbox=pool, repositories={"a/b": "/c"})


def test_copying_is_refused_with_a_reason(env):
    with pytest.raises(NotImplementedError, match="cannot save or copy its state"):
        env.unwrapped.get_state()


def test_a_broken_session_is_a_fault_and_never_a_reward(pool):
    env = SWEEnv(tasks=[ROW], sandbox=pool)
    env.reset(seed=0)
    env._work.session._process.channel.hang_up()
    with pytest.raises(EnvironmentFault):
        env.step(FIX)
    with pytest.raises(ResetNeeded):
        env.step(FIX)
    env.reset(seed=0)
    assert "return a - b" in say(env, bash("cat calc/core.py"))
    env.close()


def test_a_cancelled_command_ends_the_episode_and_its_session(pool):
    async def scenario() -> None:
        env = SWEEnv(tasks=[ROW], sandbox=pool)
        await env.async_reset(seed=0)
        session = env._work.session
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(env.async_step(bash("sleep 600")), 0.5)
        assert session.closed
        with pytest.raises(ResetNeeded):
            await env.async_step(FIX)
        await env.async_reset(seed=0)
        await env.async_close()

    asyncio.run(scenario())


def test_sessions_are_closed_however_an_episode_ends(pool):
    env = SWEEnv(tasks=[ROW], sandbox=pool, max_turns=2)
    env.reset(seed=0)
    first = env._work.session
    env.reset(seed=1)
    second = env._work.session
    env.step(SUBMIT)
    env.reset(seed=2)
    third = env._work.session
    env.step("a"), env.step("b")
    env.reset(seed=3)
    fourth = env._work.session
    env.close()
    assert all(session.closed for session in (first, second, third, fourth))


@pytest.mark.parametrize("agents", [3, pytest.param(8, marks=pytest.mark.long)])
def test_many_concurrent_agents(pool, agents):
    engine = AgentExecutionEngine(
        env="rllm/SWE-v0",
        env_kwargs={"tasks": [{**ROW, "id": f"add-{number}"} for number in range(agents)], "sandbox": pool},
        sampler=ScriptedSampler([FIX, SUBMIT], per_conversation=True),
        n_parallel=agents,
    )
    episodes = engine.run_sync([f"add-{number}" for number in range(agents)])
    assert [episode.reward for episode in episodes] == [1.0] * agents


def test_the_agent_supports_both_action_formats():
    assert default_agent("rllm/SWE-v0") is SWEAgent
    by_bash, by_tools = SWEAgent(), SWEAgent(form="tools")
    assert "```bash\nsubmit\n```" in by_bash.chat_completions[0]["content"]
    assert not by_bash.uses_tools
    assert "call submit" in by_tools.chat_completions[0]["content"]
    assert by_tools.uses_tools
    with pytest.raises(ValueError, match="form='json'"):
        SWEAgent(form="json")  # type: ignore[arg-type]
