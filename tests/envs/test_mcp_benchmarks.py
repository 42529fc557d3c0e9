"""Rows of MCPMark, MCP-Universe, BFCL and tau2-bench, with small packages of the same form in their place."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from rllm_gym.core import EnvironmentFault, TaskError

pytest.importorskip("mcp", reason="needs the extra: pip install 'rllm-gym[mcp]'")

from mcp.server import MCPServer

from rllm_gym.envs.mcp import MCPEnv, ToolState
from rllm_gym.envs.mcp.benchmarks import bfcl_rows, evaluated, mcp_universe_rows, mcpmark_rows, tau2_rows, verified
from rllm_gym.mcp import InProcessServer, ServerFault
from rllm_gym.runtime import DeadlineExceeded
from tests.envs.tool_call import call
from tests.waiting import is_alive, until


class Player:
    """A user that is content with the second reply."""

    def user(self, scenario: str, seed: int, tools: Any = None) -> Player:
        self.scenario, self.tools = scenario, tools
        return self

    async def reply(self, messages: Any) -> str | None:
        if self.tools is not None and messages and "plug" in messages[-1]["content"]:
            self.result = await self.tools.call("user__plug_in", {"lamp": 3})
        return None if len(messages) > 3 else "Please." if messages else "Switch lamp 1 on."


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter of an environment in which the packages of ``PACKAGES`` are installed."""
    for name, source in PACKAGES.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/site exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return str(program)


LAMP_DOCUMENTATION = [
    {
        "name": "switch",
        "description": "Switch a lamp.",
        "parameters": {
            "type": "dict",
            "properties": {"lamp": {"type": "integer"}, "to": {"type": "string"}, "level": {"type": "float"}},
            "required": ["lamp"],
        },
    },
    {"name": "read", "description": "Read.", "parameters": {"type": "dict", "properties": {}}},
    {"name": "burn", "description": "Excluded.", "parameters": {"type": "dict", "properties": {}}},
]
PACKAGES = {
    "bfcl_eval/__init__.py": "",
    "bfcl_eval/constants/__init__.py": "",
    "bfcl_eval/constants/executable_backend_config.py": """
        CLASS_FILE_PATH_MAPPING = {"Lamps": "bfcl_eval.lamps"}
        MULTI_TURN_FUNC_DOC_FILE_MAPPING = {"Lamps": "lamps.json"}
        STATELESS_CLASSES = []
        """,
    "bfcl_eval/lamps.py": """
        class Lamps:
            def _load_scenario(self, scenario, long_context=False):
                self.on, self._reads = scenario["on"], 0
            def switch(self, lamp, to="on", level=1.0):
                if lamp > 2:
                    return {"error": "no such lamp"}
                self.on[str(lamp)] = to == "on"
                return {"lamp": lamp, "to": to}
            def read(self):
                self._reads += 1
                print("a package may print")
                return sorted(lamp for lamp, on in self.on.items() if on)
        """,
    "bfcl_eval/data/multi_turn_func_doc/lamps.json": "\n".join(map(json.dumps, LAMP_DOCUMENTATION)),
    "tau2/__init__.py": "",
    "tau2/data_model/__init__.py": "",
    "tau2/data_model/message.py": """
        class ToolCall:
            def __init__(self, **fields):
                self.__dict__.update(fields)
        """,
    "tau2/data_model/tasks.py": """
        from types import SimpleNamespace
        def made(value):
            if isinstance(value, dict) and "keep" not in value:
                return SimpleNamespace(**{k: v if k == "arguments" else made(v) for k, v in value.items()})
            return [made(one) for one in value] if isinstance(value, list) else value
        class Task:
            @staticmethod
            def model_validate(row):
                for action in row.get("evaluation_criteria", {}).get("actions", []):
                    action.setdefault("requestor", "assistant")
                row["initial_state"]["initialization_actions"] = None
                return made(row)
        """,
    "tau2/registry.py": """
        import os
        from types import SimpleNamespace
        class Lamps:
            def __init__(self):
                assert os.environ["TAU2_DATA_DIR"]
                self.on, self.plugged, self.user_tools = [], [], None
            def set_state(self, data, actions, history):
                self.on = list(data.agent_data.on)
            def get_tools(self):
                schema = {"type": "object", "properties": {"lamp": {"type": "integer"}}, "required": ["lamp"]}
                function = {"name": "switch_on", "description": "Switch a lamp on.", "parameters": schema}
                return [SimpleNamespace(openai_schema={"type": "function", "function": function})]
            def make_tool_call(self, tool_name, requestor, lamp):
                if lamp > 5:
                    raise ValueError("no such lamp")
                if (tool_name, requestor) not in (("switch_on", "assistant"), ("plug_in", "user")):
                    raise ValueError("not your tool")
                if requestor == "user":
                    self.plugged.append(lamp)
                    return f"lamp {lamp} is plugged in"
                self.on.append(lamp)
                return f"lamp {lamp} is on"
            def get_response(self, call):
                try:
                    content = self.make_tool_call(call.name, call.requestor, **call.arguments)
                except ValueError as error:
                    return SimpleNamespace(content=f"Error: {error}", error=True)
                return SimpleNamespace(content=content, error=False)
            def get_db_hash(self):
                return str(sorted(self.on))
            def get_user_db_hash(self):
                return str(self.plugged)
            def run_env_assertion(self, assertion, raise_assertion_error):
                return (assertion.arguments["lamp"] in self.on) == assertion.assert_value
        class Houses(Lamps):
            def __init__(self):
                super().__init__()
                self.user_tools = {"plug_in": "Plug a lamp in.", "unplug": "Unplug a lamp."}
            def get_user_tools(self, include=None):
                schema = {"type": "object", "properties": {"lamp": {"type": "integer"}}, "required": ["lamp"]}
                found = []
                for name, text in self.user_tools.items():
                    function = {"name": name, "description": text, "parameters": schema}
                    found.append(SimpleNamespace(name=name, openai_schema={"function": function}))
                return found
        registry = SimpleNamespace(get_env_constructor={"lamps": Lamps, "houses": Houses}.__getitem__)
        """,
}


def bfcl_files(folder: Path, **changes: Any) -> tuple[Path, Path]:
    turns = [[{"role": "user", "content": text}] for text in ("Lamp 1 on, please.", "Which are on?", "And that one?")]
    row = {
        "id": "multi_turn_base_0",
        "question": turns,
        "initial_config": {"Lamps": {"on": {"2": True}}},
        "involved_classes": ["Lamps"],
        "excluded_function": ["burn"],
        "path": [],
    }
    truth = {"id": "multi_turn_base_0", "ground_truth": [["switch(1, to='on')"], ["read()"], []]}
    (folder / "q.json").write_text(json.dumps(row | changes) + "\n")
    (folder / "a.json").write_text(json.dumps(truth | {k: v for k, v in changes.items() if k == "ground_truth"}) + "\n")
    return folder / "q.json", folder / "a.json"


def play(env: MCPEnv, *replies: str, seed: int = 0) -> tuple[float, dict[str, Any], str]:
    env.reset(seed=seed)
    for reply in replies:
        observation, reward, terminated, _, info = env.step(reply)
    assert terminated, observation
    return reward, info["check_components"], observation


def test_bfcl_compares_states_and_results_after_each_turn(tmp_path: Path, python: str) -> None:
    env = MCPEnv(tasks=bfcl_rows(*bfcl_files(tmp_path), python=python))
    observation, info = env.reset(seed=0)
    assert observation.endswith("The user says:\nLamp 1 on, please.")
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in json.loads(info["tools"])}
    assert tools.keys() == {"switch", "read"}
    assert tools["switch"]["type"] == "object"
    assert tools["switch"]["properties"]["level"] == {"type": "number"}
    assert not list(env.workspace.iterdir())  # what the server receives is nowhere to be read
    on, read = call("switch", lamp=1), call("read")
    assert env.step(read)[0] == "Result, read:\n['2']"
    for right, replies in (
        (True, (on, "Done.", read, "1 and 2.", "Which?")),
        (
            True,
            (read, on, "Done.", read, "1 and 2.", call("switch", lamp=9), "Which?"),
        ),  # the last turn expects nothing
        (False, (on, "Done.", "1 and 2.", "Which?")),  # it has not looked
        (False, ("Done.", on + read, "1 and 2.", "Which?")),  # too late
        (False, (on, call("switch", lamp=2, to="off"), "Done.", read, "1.", "Which?")),
    ):
        reward, components, _ = play(env, *replies)
        assert reward == right, replies
        assert (min(components.values()) == 1) == right
    env.close()


def test_rows_of_bfcl_that_cannot_be_graded_are_named(tmp_path: Path, python: str) -> None:
    for changes, words in (
        ({"missed_function": {"1": ["read"]}}, "multi_turn_base_0: it adds functions in a later turn"),
        ({"question": [[]]}, "no ground_truth for its 1 turns"),
        ({"ground_truth": [["__import__('os').system('x')"], [], []]}, "is not a call"),
        ({"ground_truth": [["read(open('x'))"], [], []]}, "not a task of this benchmark: ValueError"),
        ({"ground_truth": [["read("], [], []]}, "multi_turn_base_0 is not a task of this benchmark: SyntaxError"),
        ({"ground_truth": [["read(" + "-" * 50_000 + "1)"], [], []]}, "not a task of this benchmark"),
        ({"ground_truth": [["read(" + " " * 100_000 + ")"], [], []]}, "is not a call"),
        ({"ground_truth": [["read(**{'a': 1})"], [], []]}, "arguments without a name"),
        ({"ground_truth": [[], [], []]}, "expects no calls, so any conversation would be a success"),
        ({"involved_classes": None, "initial_config": None, "question": 3}, "not a task"),
    ):
        with pytest.raises(TaskError, match=words):
            bfcl_rows(*bfcl_files(tmp_path, **changes), python=python)
    questions, answers = bfcl_files(tmp_path)
    questions.write_text("[1]\n")
    with pytest.raises(TaskError, match="1 is not a task of this benchmark"):
        bfcl_rows(questions, answers, python=python)
    questions, answers = bfcl_files(tmp_path)
    answers.write_text("[1]\n")
    with pytest.raises(TaskError, match="no ground_truth"):
        bfcl_rows(questions, answers, python=python)
    files = bfcl_files(tmp_path, missed_function={"1": ["read"]})
    with pytest.raises(TaskError, match="no task that can be graded"):
        bfcl_rows(*files, python=python, ungradable="skip")
    with pytest.raises(TaskError, match="cannot be read"):
        bfcl_rows(tmp_path / "none.json", files[1], python=python)
    env = MCPEnv(tasks=bfcl_rows(*bfcl_files(tmp_path), python=sys.executable))  # without the package
    with pytest.raises(ServerFault):
        env.reset()
    env.close()


TAU2_ROW: dict[str, Any] = {
    "id": "0",
    "user_scenario": {
        "persona": None,
        "instructions": {"domain": "lamps", "reason_for_call": "It is dark.", "known_info": "You are Ada.",
                         "task_instructions": "Be brief."},
    },
    "initial_state": {"initialization_data": {"agent_data": {"on": [2]}}},
    "evaluation_criteria": {
        "actions": [{"action_id": "0", "name": "switch_on", "arguments": {"lamp": 1}, "compare_args": ["lamp"]}],
        "env_assertions": [
            {"env_type": "assistant", "func_name": "is_on", "arguments": {"lamp": 1}, "assert_value": True}
        ],
        "communicate_info": ["1200"],
        "nl_assertions": ["The agent is polite."],
        "reward_basis": ["DB", "ENV_ASSERTION", "COMMUNICATE", "ACTION"],
    },
}  # fmt: skip


def tau2_folder(folder: Path, **criteria: Any) -> Path:
    domain = folder / "data" / "tau2" / "domains" / "lamps"
    domain.mkdir(parents=True, exist_ok=True)
    (domain / "policy.md").write_text("Switch no lamp twice.")
    row = {**TAU2_ROW, "evaluation_criteria": TAU2_ROW["evaluation_criteria"] | criteria}
    (domain / "tasks.json").write_text(json.dumps([row]))
    return domain


def test_tau2_compares_the_database_the_calls_and_what_was_said(tmp_path: Path, python: str) -> None:
    rows = tau2_rows(tau2_folder(tmp_path), python=python)
    player = Player()
    env = MCPEnv(tasks=rows, user_model=player)
    observation, _ = env.reset(seed=0)
    assert "Switch no lamp twice." in observation
    assert observation.endswith("Switch lamp 1 on.")
    for known in ("It is dark.", "You are Ada.", "Be brief."):
        assert known in player.scenario
        assert known not in observation
    on, said = call("switch_on", lamp=1), "That costs 1,200."
    for failed, replies in (
        (set(), (on, said, "Bye.")),
        (set(), (call("switch_on", lamp=9), on, said, "Bye.")),  # refused by the tool
        ({"COMMUNICATE"}, (on, "Done.", "Bye.")),
        ({"DB", "ENV_ASSERTION", "ACTION"}, (said, "Bye.")),
        ({"DB"}, (on + on, said, "Bye.")),
        ({"COMMUNICATE"}, (on, " ".join(map(str, range(100_000))), "Bye.")),  # the user does not read all of it
    ):
        reward, components, _ = play(env, *replies)
        assert {name for name, score in components.items() if score == 0} == failed, replies
        assert reward == (not failed)
    env.close()


@pytest.mark.parametrize("offered", [None, ["plug_in"]])
def test_users_of_tau2_have_tools(tmp_path: Path, python: str, offered: list[str] | None) -> None:
    domain = tau2_folder(tmp_path, communicate_info=[], actions=[
        {"action_id": "0", "name": "switch_on", "arguments": {"lamp": 1}},
        {"action_id": "1", "name": "plug_in", "arguments": {"lamp": 3}, "requestor": "user"},
    ]).rename(tmp_path / "data" / "tau2" / "domains" / "houses")  # fmt: skip
    (domain / "policy.md").rename(domain / "tech_support_manual.md")
    (domain / "main_policy.md").write_text("Be kind.")
    tasks = json.loads((domain / "tasks.json").read_text())
    (domain / "tasks.json").write_text(json.dumps([{**tasks[0], "user_tools": offered}]))
    player = Player()
    env = MCPEnv(tasks=tau2_rows(domain, python=python), user_model=player)
    observation, info = env.reset(seed=0)
    policies = "<main_policy>\nBe kind.\n</main_policy>\n<tech_support_policy>\nSwitch no lamp twice.\n"
    assert policies in observation
    assert [tool["function"]["name"] for tool in json.loads(info["tools"])] == ["switch_on"]
    assert [*player.tools.tools] == ["user__plug_in", *(["user__unplug"] if offered is None else [])]
    on = call("switch_on", lamp=1)
    for failed, replies in (
        (set(), (on, "Please plug lamp 3 in.", "Bye.")),
        ({"DB", "ACTION"}, (on, "Hello.", "Bye.")),
        ({"DB", "ENV_ASSERTION", "ACTION"}, ("Please plug lamp 3 in.", "Bye.")),
    ):
        reward, components, _ = play(env, *replies)
        assert {name for name, score in components.items() if score == 0} == failed, replies
        assert reward == (not failed)
    assert player.result.text == "lamp 3 is plugged in"
    env.close()


def test_rows_of_tau2_that_cannot_be_graded_are_named(tmp_path: Path) -> None:
    for criteria, words in (
        ({"reward_basis": ["DB", "NL_ASSERTION"]}, "lamps/0: its nl_assertions are judged by a model"),
        ({"reward_basis": ["DB", "STYLE"]}, "lamps/0: its reward_basis has 'STYLE'"),
        ({"reward_basis": ["NL_ASSERTION"], "nl_assertions": []}, "requires nothing"),
        ({"reward_basis": ["COMMUNICATE", "ACTION"], "communicate_info": [], "actions": []}, "requires nothing"),
    ):
        with pytest.raises(TaskError, match=words):
            tau2_rows(tau2_folder(tmp_path, **criteria), python="python")
    judged = tau2_folder(tmp_path, reward_basis=["DB", "NL_ASSERTION"], nl_assertions=[])
    assert len(tau2_rows(judged, python="python")) == 1  # nothing is left to a judge
    for content, words in (("[5]", "lamps/0 is not a task"), ("5", "must be a list of tasks")):
        (judged / "tasks.json").write_text(content)
        with pytest.raises(TaskError, match=words):
            tau2_rows(judged, python="python")
    (judged / "tasks.json").write_text("[" * 100_000)
    with pytest.raises(TaskError, match="is not JSON"):
        tau2_rows(judged, python="python")


def shelf(workspace: Path, seed: int) -> MCPServer:
    server = MCPServer("shelf", log_level="ERROR")

    @server.tool()
    def write(name: str, text: str) -> str:
        """Write a file."""
        (workspace / name).write_text(text)
        return "done"

    return server


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    task = tmp_path / "tasks" / "notes" / "upper"
    task.mkdir(parents=True)
    (task / "description.md").write_text("Write a.txt in capitals into b.txt.")
    url = {"stateUrl": "https://example.org/notes.zip"}
    meta = {"task_id": "upper", "category_id": "notes", "mcp": ["filesystem"], "meta_data": url}
    (task / "meta.json").write_text(json.dumps(meta))
    (task / "verify.py").write_text(
        "import os, pathlib, sys\nfolder = pathlib.Path(os.environ['FILESYSTEM_TEST_DIR'])\n"
        "sys.exit((folder / 'b.txt').read_text() != (folder / 'a.txt').read_text().upper())\n"
    )
    (tmp_path / "state" / "notes").mkdir(parents=True)
    (tmp_path / "state" / "notes" / "a.txt").write_text("hello")
    return tmp_path


def test_mcpmark_verifies_a_copy_of_the_initial_files(marks: Path) -> None:
    rows = mcpmark_rows(marks / "tasks", servers=[InProcessServer(shelf)], state=marks / "state")
    assert [row["id"] for row in rows] == ["notes__upper"]
    env = MCPEnv(tasks=rows)
    for text, reward in (("HELLO", 1.0), ("Hello", 0.0)):
        assert play(env, call("write", name="b.txt", text=text), "Done.")[0] == reward
    assert play(env, "Done.")[0] == 0.0
    env.close()
    assert [path.name for path in (marks / "state" / "notes").iterdir()] == ["a.txt"]
    with pytest.raises(TaskError, match=r"unpack 'https://example\.org/notes\.zip'"):
        mcpmark_rows(marks / "tasks", servers=[InProcessServer(shelf)], state=marks / "elsewhere")
    meta = marks / "tasks" / "notes" / "upper" / "meta.json"
    meta.write_text(json.dumps({"category_id": "notes", "mcp": ["notion"]}))
    with pytest.raises(TaskError, match="notes__upper: its verify"):
        mcpmark_rows(marks / "tasks", servers=[InProcessServer(shelf)], state=marks / "state")


def test_mcp_universe_evaluates_its_general_functions(tmp_path: Path) -> None:
    row = {
        "category": "search",
        "question": "Which two?",
        "output_format": {"names": ["<name>"], "price": "<number>"},
        "mcp_servers": [{"name": "shelf"}],
        "evaluators": [
            {"func": "json -> get(names) -> len", "op": "=", "value": 2},
            {"func": "json -> get(names) -> foreach", "op": "in", "value": ["a", "b", "c"]},
            {"func": "json -> get(price)", "op": "<=", "value": 5},
        ],
    }
    file = tmp_path / "task.json"
    file.write_text(json.dumps(row))
    servers = {"shelf": InProcessServer(shelf)}
    env = MCPEnv(tasks=mcp_universe_rows([file], servers=servers))
    assert '"price": "<number>"' in env.reset()[0]
    for answer, failed in (
        ('```json\n{"names": ["a", "b"], "price": 4.5}\n```', ""),
        ('{"names": ["a", "x"], "price": 6}', "23"),
        ('{"names": "ab", "price": "cheap"}', "123"),
        ("I do not know.", "123"),
        ("[" * 100_000, "123"),
    ):
        reward, components, _ = play(env, answer)
        assert "".join(name for name, score in components.items() if score == 0) == failed, answer[:80]
        assert reward == (not failed)
    env.close()
    for change, words in (
        ({"evaluators": [{"func": "json", "op": "yfinance.check", "op_args": {}}]}, "is a function of MCP-Universe"),
        ({"evaluators": []}, "no evaluators"),
        ({"mcp_servers": [{"name": "maps"}]}, "'maps' is not in servers="),
    ):
        file.write_text(json.dumps([row | change]))
        with pytest.raises(TaskError, match=f"task/0: .*{words}"):
            mcp_universe_rows([file], servers=servers)
    file.write_text("[5]")
    with pytest.raises(TaskError, match="task/0 is not a task of this benchmark"):
        mcp_universe_rows([file], servers=servers)
    file.write_text(json.dumps([row, row | {"evaluators": []}]))
    assert [row["id"] for row in mcp_universe_rows([file], servers=servers, ungradable="skip")] == ["task/0"]


@pytest.mark.parametrize(
    ("evaluator", "right", "wrong"),
    [
        (("json -> foreach -> get(price)", "=", 5), '[{"price": 5}]', "[]"),
        (("json -> get(x)", "in", "abc"), '{"x": "b"}', '{"x": ""}'),
        (("raw", "in", "abc"), "b", ""),
        (("json -> get(x)", "=", []), '{"x": []}', "{}"),
    ],
)
def test_mcp_universe_does_not_pay_for_nothing(evaluator: tuple[str, str, Any], right: str, wrong: str) -> None:
    data = {"evaluators": [dict(zip(("func", "op", "value"), evaluator))]}
    for answer, score in ((right, True), (wrong, False)):
        state = ToolState(Path(), answer, None, (), data, session=None)  # type: ignore[arg-type]
        assert evaluated(state)[0] == score


def program(folder: Path, source: str, timeout: float) -> ToolState:
    (folder / "verify.py").write_text(textwrap.dedent(source))
    data = {"python": sys.executable, "verify": str(folder / "verify.py")}
    return ToolState(folder, "", None, (), data, session=None, timeout=timeout)  # type: ignore[arg-type]


@pytest.mark.parametrize("ends", [True, False])
def test_a_program_of_a_benchmark_and_its_children_end_with_its_check(tmp_path: Path, ends: bool) -> None:
    """A child that holds the program's output must neither delay the check nor outlive it, nor may the program."""
    state = program(
        tmp_path,
        f"""
        import os, pathlib, time
        pid = os.fork()
        if not pid:
            time.sleep(3600)
        pathlib.Path("{tmp_path}/pid").write_text(str(pid))
        if not {ends}:
            time.sleep(3600)
        """,
        timeout=120.0 if ends else 5.0,
    )
    if ends:
        assert verified(state)
    else:
        with pytest.raises(DeadlineExceeded):
            verified(state)
    pid = (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""
    assert pid or not ends  # a machine may be too busy to start it before the deadline
    assert not pid or until(lambda: not is_alive(int(pid)))


def test_the_output_of_a_program_of_a_benchmark_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllm_gym.envs.mcp.benchmarks.MAX_BLOCKS", 64)
    assert verified(program(tmp_path, "import os\nos.write(1, bytes([255]))\nos.write(2, bytes([255]))", 120.0))
    assert not verified(program(tmp_path, "while True:\n    print('x' * 1000, flush=True)", 120.0))
    state = program(tmp_path, "", 120.0)
    state.data["python"] = str(tmp_path / "none")
    with pytest.raises(EnvironmentFault, match="is not a program that can be run"):
        verified(state)


def test_a_server_gets_the_calls_of_a_reply_in_their_order(tmp_path: Path, python: str) -> None:
    """The calls are made again in this order to grade an episode."""
    questions, answers = bfcl_files(tmp_path)
    env = MCPEnv(tasks=bfcl_rows(questions, answers, python=python))
    env.reset(seed=0)
    lamps = [(n % 2 + 1, "on" if n % 3 else "off") for n in range(8)]
    replies = [call("switch", lamp=lamp, to=to) + call("read") for lamp, to in lamps]
    on, expected = {"2"}, []
    for lamp, to in lamps:
        on = on | {str(lamp)} if to == "on" else on - {str(lamp)}
        expected.append(str(sorted(on)))
    results = env.step("".join(replies))[0].split("\n\n")
    assert [one.partition("read:\n")[2] for one in results[1::2]] == expected
    env.close()
