"""The agents, environments, rewards and tools of rLLM's own examples, with only the import changed."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rllm_gym.compat import (
    SEARCH_SYSTEM_PROMPT,
    Action,
    AgentExecutionEngine,
    BrowserGymEnv,
    CompetitionCodingAgent,
    CompetitionCodingEnv,
    CumulativeWorkflow,
    FrozenLakeAgent,
    FrozenLakeEnv,
    MCPConnectionManager,
    MCPEnvironment,
    MCPToolAgent,
    MiniWobAgent,
    ModelOutput,
    MultiTurnEnvironment,
    PythonInterpreter,
    RewardCodeFn,
    RewardConfig,
    RewardInput,
    RewardMathFn,
    RewardSearchFn,
    RolloutEngine,
    SWEAgent,
    SWEEnv,
    TerminationReason,
    Tool,
    ToolAgent,
    ToolEnvironment,
    Trajectory,
    code_reward_fn,
    compute_pass_at_k,
    countdown_reward_fn,
    f1_reward_fn,
    generate_random_map,
    save_trajectories,
    search_reward_fn,
    tool_registry,
)
from rllm_gym.core import TaskError
from rllm_gym.samplers import SamplingRequest, ScriptedSampler

COUNTING = Path(__file__).parent.parent / "mcp" / "counting_server.py"


def run(tasks: list[Any], reply: Any, **arguments: Any) -> list[Any]:
    engine = AgentExecutionEngine(rollout_engine=ScriptedSampler(reply), n_parallel_agents=4, **arguments)
    return engine.execute_tasks_sync(tasks)


def system_of(request: SamplingRequest) -> str:
    return str(request.messages[0]["content"])


# FrozenLake


def test_rows_of_rllm_give_the_same_lakes_and_an_agent_walks_to_the_goal() -> None:
    assert generate_random_map(size=4, p=0.8, seed=42) == (["FFSF", "FHFF", "FFFH", "GHFF"], (3, 0)), "rLLM's map"
    for bad in ({"size": 1}, {"size": 10**6}, {"p": -1}):
        with pytest.raises(TaskError):
            generate_random_map(**{"seed": 3, **bad})
    with pytest.raises(TaskError, match="'p', 'seed'"):
        FrozenLakeEnv.from_dict({"size": 4})

    def reply(request: SamplingRequest) -> str:
        assert "FrozenLake" in system_of(request)
        rows = [line.split() for line in str(request.messages[-1]["content"]).split("\n") if "\t" in line]
        place = {cell: (y, x) for y, row in enumerate(rows) for x, cell in enumerate(row) if cell in "PG"}
        (y, x), (goal_y, goal_x) = place["P"], place["G"]
        word = "Down" if y < goal_y else "Up" if y > goal_y else "Right" if x < goal_x else "Left"
        return f"<think>hm</think> ```{word}```"

    rows = [{"seed": 42, "size": 4, "p": 1.0}, {"seed": 7, "size": 3, "p": 1.0}]
    agent_args = {"max_steps": 10, "use_accumulate_history": False, "use_accumulate_thinking": False}
    results = run(
        rows, reply, agent_class=FrozenLakeAgent, agent_args=agent_args, env_class=FrozenLakeEnv, max_steps=10
    )
    assert [trajectory.reward for trajectory in results] == [1.0, 1.0]
    assert all(step.action in "1234" and "<think>" not in step.model_response for step in results[0].steps)


def test_a_lake_keeps_its_map_and_an_invalid_move_changes_nothing() -> None:
    env = FrozenLakeEnv(desc=["SG", "FH"])
    first, _ = env.reset()
    for nothing in ("0", "north", "9" * 5_000, "", None, Action("-1")):
        assert env.step(nothing) == (first, 0.0, False, {"action_is_effective": False})
    assert env.step(Action("1"))[3] == {"action_is_effective": False}, "against the edge"
    assert env.step("3")[1:3] == (1.0, True)
    assert (env.success(), env.finished()) == (True, True)
    assert env.reset()[0] == first
    env.step("2")
    assert env.step("3")[1:3] == (0.0, True)
    assert (env.success(), env.finished(), env.render("list")) == (False, True, ["_ G", "_ X"])
    assert env.reset({"size": 3, "seed": 1})[0].count("\n") == 2, "the row's map"


# Rewards


def test_search_rewards_are_exact_match_or_f1_of_the_normalized_answer() -> None:
    row = {"question": "Who?", "ground_truth": ["Guido van Rossum", "GvR"]}
    for reply, reward in (
        ("It is \\boxed{The  guido van ROSSUM.}", 1.0),
        ("<think>\\boxed{no}</think> **gvr**", 1.0),
        ("The answer is: Guido van Rossum", 1.0),
        ("\\boxed{Guido Rossum}", 0.8),
        ("\\boxed{Rossum and many others of that time and place}", 0.0),
        ("", 0.0),
        ("<think>Guido van Rossum", 0.0),
    ):
        output = search_reward_fn(row, Action(reply))
        assert output.reward == pytest.approx(reward), reply
        assert output.is_correct == (reward > 0)
    assert f1_reward_fn(row, "\\boxed{Rossum and many others of that time and place}").reward == pytest.approx(2 / 12)
    assert search_reward_fn({"answer": "yes"}, "\\boxed{yes and no}").reward == 0.0
    letters = {"\\boxed{a}": 1.0, "": 0.0, "\\boxed{The}": 0.0, "\\boxed{?}": 0.0}
    assert {reply: search_reward_fn({"answer": "A"}, reply).reward for reply in letters} == letters
    doubled = RewardSearchFn(RewardConfig(correct_reward=2.0, incorrect_reward=-1.0))
    assert doubled(RewardInput(task_info={"answer": "no"}, action="\\boxed{No.}")).reward == 2.0
    with pytest.raises(TaskError, match="ground_truth"):
        search_reward_fn({"question": "?"}, "x")


def test_countdown_rewards_need_every_number_once_and_evaluate_nothing() -> None:
    row = {"target": 35, "nums": [3, 4, 5]}
    for reply, reward in (
        ("<answer>(3 + 4) * 5</answer>", 1.0),
        ("<answer>1</answer> no: <answer>5*(4+3)</answer>", 1.0),
        ("(3 + 4) * 5", 0.0),
        ("<answer>(3 + 4) * 5", 0.0),
        ("<answer>3 + 4 + 5</answer>", 0.0),
        ("<answer>(3 + 4) * 5 * 5 / 5</answer>", 0.0),
        ("<answer>3 ** 4 ** 5</answer>", 0.0),
        ("<answer>3 / (4 - 4) * 5</answer>", 0.0),
        ("<answer>__import__('os').system('true') + 3 + 4 + 5</answer>", 0.0),
        (f"<answer>{'(' * 10_000}3 + 4 * 5</answer>", 0.0),
    ):
        output = countdown_reward_fn(row, Action(reply))
        assert (output.reward, output.is_correct) == (reward, bool(reward)), reply[:60]
    assert countdown_reward_fn({"target": 0.75, "nums": ["3", "4"]}, "<answer>3/4</answer>").reward == 1.0
    with pytest.raises(TaskError, match="'nums'"):
        countdown_reward_fn({"target": 1}, "<answer>1</answer>")


def test_math_rewards_follow_their_configuration() -> None:
    config = RewardConfig(
        correct_reward=2.0,
        incorrect_reward=-1.0,
        format_error_reward=-0.5,
        toolcall_bonus=0.25,
        apply_format_reward=True,
    )
    row = {"ground_truth": ["\\boxed{4}", "four"], "has_toolcall": True}
    cases = (("</think> \\boxed{4}", 2.25), ("</think> \\boxed{5}", -1.0), ("\\boxed{4}", -0.5), ("</think> 4", -0.5))
    for reply, reward in cases:
        assert RewardMathFn(config)(row, reply).reward == reward, reply
    with pytest.raises(TypeError, match="use_math_orm"):
        RewardConfig(use_math_orm=True)  # type: ignore[call-arg]


STDIO = [{"input": "3\n", "output": "6\n", "testtype": "stdin"}, {"input": "4\n", "output": "8\n", "testtype": "stdin"}]
CALLS = [{"input": "[1, 2]\n3", "output": "6", "testtype": "functional", "metadata": {"func_name": "total"}}]
TOTAL = "class Solution:\n    def total(self, xs: List[int], y: int) -> int:\n        return sum(xs) + y"
DOUBLE = "def double(x):\n    return 2 * x"


@pytest.mark.parametrize(
    ("source", "tests", "program"),
    [
        ("livecodebench", json.dumps(STDIO), "print(int(input()) * 2)"),
        ("livecodebench", CALLS, TOTAL),
        ("taco", {"inputs": ["3\n"], "outputs": ["6\n"]}, "print(int(input()) * 2)"),
        ("apps", {"fn_name": "double", "inputs": [[3], [4]], "outputs": [[6], [8]]}, DOUBLE),
        ("kodcode", "from solution import double\n\ndef test_double():\n    assert double(3) == 6\n", DOUBLE),
        ("humanevalplus", "def check(candidate):\n    assert candidate(3) == 6\n\ncheck(double)\n", DOUBLE),
        (
            "leetcode",
            {"functional": "def check(candidate):\n    assert candidate(xs=[1], y=2) == 3\n\ncheck(Solution().total)"},
            TOTAL,
        ),
    ],
)
def test_code_rewards_read_the_tests_of_each_data_set(source: str, tests: Any, program: str) -> None:
    row = {"data_source": source, "ground_truth": tests, "question": "Do it."}
    output = code_reward_fn(row, Action(f"Thus:\n```python\n{program}\n```"))
    assert (output.reward, output.is_correct) == (1.0, True), output.metadata
    assert output.metadata["passed_tests"] == output.metadata["total_tests"] == len(output.metadata["test_results"])
    wrong = re.sub(r"2 \* x|sum\(xs\) \+|\* 2", "0 *", program)
    assert code_reward_fn(row, f"```python\n{wrong.replace('0 *)', '* 0)')}\n```").reward == 0.0


def test_code_rewards_say_why_there_is_none() -> None:
    row = {"data_source": "codeforces", "ground_truth": STDIO}
    config = RewardConfig(format_error_reward=-1.0)
    assert RewardCodeFn(config)(row, "print(int(input()) * 2)").reward == -1.0
    for bad in ({"data_source": "codeforce"}, {"ground_truth": None}, {"ground_truth": "{"}, {"ground_truth": [{}]}):
        with pytest.raises(TaskError):
            code_reward_fn({**row, **bad}, "```python\n1\n```")


def test_a_coding_agent_revises_its_program_after_the_results_of_the_tests() -> None:
    def reply(request: SamplingRequest) -> str:
        seen = str(request.messages[-1]["content"])
        right = "Test 1 failed" in seen and "Expected: 6" in seen
        assert right or "Double it" in seen
        return f"<think>hm</think>```python\nprint(int(input()) {'* 2' if right else '+ 1'})\n```"

    row = {"question": "Double it.", "data_source": "livecodebench", "ground_truth": STDIO}
    agent_args = {"public_test_only": True, "max_tests": 1}
    arguments: dict[str, Any] = {"agent_class": CompetitionCodingAgent, "agent_args": agent_args}
    (result,) = run([row], reply, env_class=CompetitionCodingEnv, env_args={"reward_bonus_coeff": 0.5}, **arguments)
    assert [step.reward for step in result.steps] == [0.0, 1.5]
    assert [step.action.action.startswith("```python") for step in result.steps] == [True, True]


# Tools


class Echo(Tool):
    """Returns its query; two calls wait for each other."""

    meeting = threading.Barrier(2, timeout=60)

    def __init__(self, name: str = "echo") -> None:
        super().__init__(name=name, description="Echoes.")

    def forward(self, query: str, wait: bool = False) -> str:
        if wait:
            self.meeting.wait()
        return f"echo {query}"


def call(arguments: Any, number: int = 0, name: str = "echo") -> dict[str, Any]:
    return {"id": str(number), "function": {"name": name, "arguments": json.dumps(arguments)}}


def test_no_argument_of_a_model_ends_the_episode_and_calls_run_concurrently() -> None:
    env = ToolEnvironment(task={}, tool_map={"echo": Echo}, reward_fn=search_reward_fn)
    env.reset()
    together = [call({"query": "a", "wait": True}, 1), call({"query": "b", "wait": True}, 2)]
    assert env.step(together)[0] == {"tool_outputs": {"1": "echo a", "2": "echo b"}}
    for arguments in ({"self": 1}, {"tool_name": "x"}, {"use_async": True}, {"args": []}, [1], "{", None):
        shown = env.step([call(arguments)])[0]["tool_outputs"]["0"]
        assert shown.startswith("Error"), (arguments, shown)
        env.reset()
    assert "there are ['echo']" in env.step([call({}, name="nothing")])[0]["tool_outputs"]["0"]


def test_registered_tools_are_found_by_name() -> None:
    assert isinstance(tool_registry.instantiate("python"), PythonInterpreter)
    assert tool_registry.instantiate("nothing") is None
    tool_registry.register("echo", Echo)
    try:
        assert ToolAgent(tools=["echo"]).tools.tools == ["echo"]
        with pytest.raises(TypeError, match="not a subclass of Tool"):
            tool_registry.register("wrong", dict)  # type: ignore[arg-type]
    finally:
        assert tool_registry.unregister("echo")
    with pytest.raises(ValueError, match=r"\['echo'\].*tool_registry.register"):
        ToolAgent(tools=["echo"])


def test_an_mcp_server_serves_the_tools_of_all_environments() -> None:
    pytest.importorskip("mcp", reason="MCP needs the extra `mcp`")
    command, args = sys.executable, ["-S", str(COUNTING)]
    manager = MCPConnectionManager(command, args)
    with pytest.raises(RuntimeError, match="not running"):
        manager.execute_tool_calls([])
    manager.start()
    try:
        tools = dict(manager.tool_map)
        assert manager.execute_tool_calls([call({"n": 2}, 1, "add")]) == {"1": "2"}
        assert tools["add"](n=3).output == "5"
        for arguments in ({"self": 1}, {"use_async": 1}, [1], None):
            assert isinstance(manager.execute_tool_calls([call(arguments, 1, "total")])["1"], str)
        assert manager.execute_tool_calls([{"id": "1"}])["1"].startswith("Error")
        assert "not found" in manager.execute_tool_calls([call({}, 1, "nothing")])["1"]
    finally:
        manager.stop()

    def reply(request: SamplingRequest) -> str:
        assert SEARCH_SYSTEM_PROMPT in system_of(request)
        asked = any(message["role"] == "tool" for message in request.messages)
        return "\\boxed{1}" if asked else '<tool_call>{"name": "add", "arguments": {"n": 1}}</tool_call>'

    env_args = {"mcp_server_command": command, "mcp_server_args": args, "reward_fn": search_reward_fn}
    agent_args = {"system_prompt": SEARCH_SYSTEM_PROMPT, "tool_map": tools}
    try:
        arguments = {"agent_class": MCPToolAgent, "agent_args": agent_args, "env_class": MCPEnvironment}
        results = run([{"question": "?", "answer": "1"}] * 2, reply, env_args=env_args, **arguments)
        assert [result.reward for result in results] == [1.0, 1.0]
        with pytest.raises(ValueError, match="cleanup_global_resources"):
            MCPEnvironment(mcp_server_command="another", reward_fn=search_reward_fn)
    finally:
        MCPEnvironment.cleanup_global_resources()
    with pytest.raises(RuntimeError, match=r"Failed to initialize MCP connection.*no-such-program"):
        MCPConnectionManager("no-such-program").start()


# Repositories and pages


def test_a_repository_is_changed_and_graded_at_the_end() -> None:
    pytest.importorskip("regex", reason="repositories need the extra `swe`")
    row = {
        "id": "add-1",
        "statement": "add() subtracts.",
        "repo": {"sums.py": "def add(a, b):\n    return a - b\n"},
        "hidden_tests": {"test_sums.py": "from sums import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"},
        "fail_to_pass": ["test_sums.py::test_add"],
    }

    def edits(request: SamplingRequest) -> str:
        assert "add() subtracts" in str(request.messages[1]["content"])
        assert "Steps Remaining" in str(request.messages[1]["content"])
        command = "sed -i s/-/+/ sums.py"
        return f"I fix it.\n<function=execute_bash>\n<parameter=command>\n{command}\n</parameter>\n</function>"

    arguments: dict[str, Any] = {"agent_class": SWEAgent, "env_class": SWEEnv, "max_steps": 2}
    (unsubmitted,) = run([row], edits, agent_args={"scaffold": "sweagent"}, **arguments)
    assert unsubmitted.reward == 1.0, "graded at the last step, as rLLM did"
    assert unsubmitted.steps[0].thought == "I fix it."
    assert unsubmitted.steps[0].action.startswith("<function=execute_bash>")
    (nothing,) = run([row], lambda request: "<function=finish></function>", **arguments)
    assert (nothing.reward, len(nothing.steps)) == (0.0, 1)
    with pytest.raises(ValueError, match="scaffold"):
        SWEAgent(scaffold="other")  # type: ignore[arg-type]


def test_a_web_agent_shows_pages_and_acts_with_the_last_block() -> None:
    agent = MiniWobAgent(use_full_conversation=False, use_accumulate_thinking=False, cot_prompt=True)
    for page, reply, action in (
        ("page 1", "<think>a</think>```click(1)``` no: ```click(2)```", "click(2)"),
        ("page 2", "click(3)", "click(3)"),
    ):
        agent.update_from_env(page, 0.0, False, {})
        assert [message["content"] for message in agent.chat_completions[1:]] == [page]
        assert agent.update_from_model(reply).action == action
    for option in ({"use_screenshot": True}, {"chat_mode": True}, {"use_html": False, "use_axtree": False}):
        with pytest.raises(ValueError, match=next(iter(option))):
            MiniWobAgent(**option)
    for row, message in (({"env_id": "browsergym/webarena.1"}, "rllm/Web-v0"), ({"task": "x"}, "env_id")):
        with pytest.raises(TaskError, match=message):
            BrowserGymEnv.from_dict(row)


# Workflows, results


class Counts(MultiTurnEnvironment):
    def __init__(self) -> None:
        super().__init__(max_turns=9)

    def get_reward_and_next_obs(self, task: dict[str, Any], action: Any) -> tuple[float, dict[str, Any]]:
        return 0.0, {"question": "again"}

    @staticmethod
    def from_dict(env_args: dict[str, Any]) -> Counts:
        return Counts()


def test_a_cumulative_workflow_ends_when_its_tokens_are_used_up() -> None:
    limits: list[int] = []

    class Counting(RolloutEngine):
        async def get_model_response(self, messages: Any, **kwargs: Any) -> ModelOutput:
            limits.append(kwargs["max_tokens"])
            return ModelOutput(text="one", prompt_length=10 * len(messages), completion_length=10, finish_reason="stop")

    arguments = {"agent_cls": CompetitionCodingAgent, "env_cls": Counts, "max_steps": 9}
    workflow = CumulativeWorkflow(rollout_engine=Counting(max_response_length=50), **arguments)
    episode = asyncio.run(workflow.run_with_termination_handling({"question": "?"}, "a"))
    assert limits == [50, 40, 20]
    assert episode.termination_reason is TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED


def test_results_are_saved_with_rewards_and_good_ones_become_rows(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="saved with torch")
    from rllm_gym.compat import AgentSFTTrainer

    row = {"question": "?", "data_source": "codeforces", "ground_truth": STDIO}
    replies = iter(["```python\nprint(int(input()) * 2)\n```", "none"])
    arguments: dict[str, Any] = {
        "agent_class": CompetitionCodingAgent,
        "env_class": CompetitionCodingEnv,
        "max_steps": 1,
    }
    results = [run([row], lambda request, text=text: text, **arguments)[0] for text in replies]
    loaded = torch.load(save_trajectories(results, str(tmp_path), "a.pt"), weights_only=False)
    assert [trajectory.reward for trajectory in loaded] == [1.0, 0.0]
    assert float(compute_pass_at_k(loaded)[1]) == 0.5
    failed = Trajectory(reward=None)
    (chat,) = AgentSFTTrainer.process_trajectories([*loaded, failed], 0.5)
    assert [message["role"] for message in chat["messages"]] == ["user", "assistant"]
