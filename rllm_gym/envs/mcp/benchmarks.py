"""Rows of other tool benchmarks: MCPMark, MCP-Universe, BFCL v4 (multi-turn) and tau2-bench.

Each function reads the files of a clone of the benchmark and returns rows of ``rllm/MCP-v0``. A task that cannot be
graded here is an error that names it and the reason; ``ungradable="skip"`` leaves such tasks out, with a warning. The
rows run programs and code of the benchmarks: use clones that you trust.
"""

from __future__ import annotations

import ast
import contextlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

from rllm_gym.core import EnvironmentFault, TaskError
from rllm_gym.data.files import parse_json
from rllm_gym.envs.mcp.benchmark_server import CONFIG, OF_USER
from rllm_gym.envs.mcp.task_instance import ToolState
from rllm_gym.grading.python_source import parse_python
from rllm_gym.runtime import DeadlineExceeded
from rllm_gym.runtime.scratch import scratch_root

MAX_FILE_BYTES = 256 * 2**20
MAX_BLOCKS = 2**19
"""Longest file that a benchmark's own program can write, and longest output, in blocks of 512 bytes."""

Ungradable = Literal["error", "skip"]
NamedServers = Mapping[str, Any]
"""Servers by the names that the rows use, each as in a row: ``{"playwright": {"command": "npx", "args": [...]}}``."""

_HERE = "rllm_gym.envs.mcp.benchmarks"
_MAX_READ_BYTES = 2**20
_MAX_CALL_CHARS = 100_000
_PROGRAM = str(Path(__file__).with_name("benchmark_server.py"))
_logger = logging.getLogger(__name__)


_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, SyntaxError, RecursionError, MemoryError)
"""What reading a row of another form raises."""


class _Ungradable(Exception):
    """Raised for a task that cannot be graded here."""


def _rows(found: Iterable[tuple[str, Callable[[], dict[str, Any]]]], ungradable: Ungradable) -> list[dict[str, Any]]:
    if ungradable not in ("error", "skip"):
        raise TaskError(f"ungradable={ungradable!r} must be 'error' or 'skip'")
    rows, skipped = [], {}
    for name, make in found:
        try:
            rows.append({"id": name, **make()})
        except _Ungradable as error:
            if ungradable == "error":
                raise TaskError(f"{name}: {error}; ungradable='skip' leaves such tasks out") from error
            skipped[name] = str(error)
        except _MALFORMED as error:
            raise TaskError(
                f"{name} is not a task of this benchmark: {type(error).__name__}: {error!s:.300}"
            ) from error
    if skipped:
        first = next(iter(skipped))
        _logger.warning("left out %d tasks that cannot be graded, such as %s: %s", len(skipped), first, skipped[first])
    if not rows:
        raise TaskError("there is no task that can be graded here")
    return rows


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise TaskError(f"{path} has more than {MAX_FILE_BYTES:,} bytes")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read: {error}") from error


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise TaskError(f"{where} contains {value!r:.80}; it must be a list of tasks")
    return value


def _id(row: Any, key: str, number: int) -> str:
    return str(row.get(key, number)) if isinstance(row, Mapping) else str(number)


def _json(text: str, where: str) -> Any:
    try:
        return parse_json(text.encode())
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where} is not JSON: {error}") from error


# MCPMark


def mcpmark_rows(
    folder: str | os.PathLike[str],
    *,
    servers: Sequence[Any],
    state: str | os.PathLike[str],
    python: str = sys.executable,
    ungradable: Ungradable = "error",
) -> list[dict[str, Any]]:
    """Return the tasks of MCPMark's service ``filesystem``.

    An episode's workspace is a copy of the initial files; at its end, the task's ``verify.py`` decides.

    Args:
        folder: ``tasks/filesystem/standard`` or ``…/easy`` of a clone.
        servers: Servers for the files, with ``{workspace}`` in their arguments.
        state: Folder with the initial files of each category, ``state/file_context`` and so on: the unpacked archives
            at ``stateUrl`` of the tasks.
        python: Interpreter for the ``verify.py``, with what they import.
        ungradable: What to do with tasks of other services, whose ``verify.py`` need accounts or servers of theirs.

    Raises:
        TaskError: A file cannot be read, or a task cannot be graded.
    """
    root, files = Path(folder).resolve(), Path(state).resolve()

    def make(task: Path) -> dict[str, Any]:
        meta = _json(_read(task / "meta.json"), str(task / "meta.json"))
        if meta["mcp"] != ["filesystem"]:
            raise _Ungradable(f"its verify.py checks {meta['mcp']!r:.80}, not files of the workspace")
        start = files / meta["category_id"]
        if start.parent != files or not start.is_dir():
            url = (meta.get("meta_data") or {}).get("stateUrl")
            raise _Ungradable(f"its initial files are not in {start}; unpack {url!r:.200} there")
        return {
            "prompt": _read(task / "description.md"),
            "servers": list(servers),
            "setup": f"{_HERE}:copy_state",
            "check": f"{_HERE}:verified",
            "data": {"state": str(start), "verify": str(task / "verify.py"), "python": python},
        }

    tasks = sorted(path.parent for path in root.glob("*/*/verify.py"))
    return _rows(((f"{one.parent.name}__{one.name}", partial(make, one)) for one in tasks), ungradable)


def copy_state(workspace: Path, seed: int, data: Any) -> None:
    """Copy the initial files of a task of MCPMark."""
    shutil.copytree(data["state"], workspace, symlinks=True, dirs_exist_ok=True)


def verified(state: ToolState) -> bool:
    """Return whether ``verify.py`` of a task of MCPMark ends without an error."""
    environment = {"FILESYSTEM_TEST_DIR": str(state.workspace)}
    return _run([state.data["python"], state.data["verify"]], "", environment, state.timeout)[0] == 0


# MCP-Universe

_CHAIN = re.compile(r"get\(([^()]{1,200})\)|json|len|foreach|list|raw")
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda found, value: bool(found == value),
    "<": lambda found, value: bool(found < value),
    "<=": lambda found, value: bool(found <= value),
    ">": lambda found, value: bool(found > value),
    ">=": lambda found, value: bool(found >= value),
    "in": lambda found, value: found in value and not (isinstance(value, str) and not found),
    "contain": lambda found, value: value in found,
}


def mcp_universe_rows(
    files: Iterable[str | os.PathLike[str]], *, servers: NamedServers, ungradable: Ungradable = "error"
) -> list[dict[str, Any]]:
    """Return tasks of MCP-Universe.

    Evaluators with its general functions and comparisons (``json -> get(price)``, ``=``, ``>``, ``contain``, …) are
    evaluated here, and all of them must hold. Those with a function of their own (``yfinance.…``) cannot be graded.

    Args:
        files: JSON files with a task, or a list of tasks.
        servers: The servers by the names in ``mcp_servers``.
        ungradable: What to do with tasks that cannot be graded, or need a server that is not in ``servers``.

    Raises:
        TaskError: A file cannot be read, or a task cannot be graded.
    """

    def make(row: Mapping[str, Any]) -> dict[str, Any]:
        evaluators = row["evaluators"]
        if not evaluators:
            raise _Ungradable("it has no evaluators")
        for one in evaluators:
            steps = _steps(one["func"])
            if one["op"] not in _COMPARE or "value" not in one or not all(map(_CHAIN.fullmatch, steps)):
                raise _Ungradable(f"its evaluator {one['func']!r:.80} {one['op']!r:.80} is a function of MCP-Universe")
        names = [one["name"] for one in row["mcp_servers"]]
        for name in names:
            if name not in servers:
                raise _Ungradable(f"its server {name!r:.80} is not in servers=")
        text = row.get("question") or row["instruction"]
        shape = row.get("output_format")
        if shape:
            text += f"\n\nAnswer with JSON of this form alone:\n{json.dumps(shape, ensure_ascii=False, indent=2)}"
        kept = [{"func": one["func"], "op": one["op"], "value": one["value"]} for one in evaluators]
        return {
            "prompt": text,
            "servers": [servers[name] for name in names],
            "check": f"{_HERE}:evaluated",
            "data": {"evaluators": kept},
        }

    def found() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
        for file in map(Path, files):
            tasks = _json(_read(file), str(file))
            for number, row in enumerate(tasks if isinstance(tasks, list) else [tasks]):
                name = file.stem + (f"/{_id(row, 'instance_id', number)}" if isinstance(tasks, list) else "")
                yield name, partial(make, row)

    return _rows(found(), ungradable)


def evaluated(state: ToolState) -> tuple[bool, dict[str, bool]]:
    """Return whether the answer satisfies the evaluators of a task of MCP-Universe."""
    results = {}
    for number, one in enumerate(state.data["evaluators"], 1):
        try:
            values = [state.answer or ""]
            for step in _steps(one["func"]):
                values = [new for value in values for new in _step(step, value)]
            # No value satisfies nothing: "foreach" of an empty list must not be paid.
            results[f"{number}"] = bool(values) and all(_COMPARE[one["op"]](value, one["value"]) for value in values)
        except (ValueError, TypeError, RecursionError):  # the answer is not of the form that was asked for
            results[f"{number}"] = False
    return all(results.values()), results


def _steps(chain: str) -> list[str]:
    return [step.strip() for step in chain.split("->")]


def _step(step: str, value: Any) -> list[Any]:
    if step == "json":
        return [parse_json(value.strip().strip("`").strip().removeprefix("json").encode())]
    if step in ("len", "foreach"):
        if not isinstance(value, list):
            raise TypeError(f"{value!r:.80} is not a list")
        return [len(value)] if step == "len" else value
    if step.startswith("get("):
        if not isinstance(value, dict):
            raise TypeError(f"{value!r:.80} is not an object")
        return [value.get(step[4:-1])]
    return [[value]] if step == "list" else [value]


# BFCL v4, multi-turn


def bfcl_rows(
    questions: str | os.PathLike[str],
    answers: str | os.PathLike[str],
    *,
    python: str,
    ungradable: Ungradable = "error",
) -> list[dict[str, Any]]:
    """Return the multi-turn tasks of BFCL v4.

    The user says the turns of the task. The tools are the classes of the package ``bfcl_eval``, in a process of each
    episode. After each turn that expects calls, the state of their instances must be that after the expected calls, and
    the results so far must include theirs; to compare this at the end, all calls are made again in another process.

    Args:
        questions: Such as ``bfcl_eval/data/BFCL_v4_multi_turn_base.json``.
        answers: The file of the same name in ``possible_answer``.
        python: Interpreter of an environment with ``bfcl_eval``.
        ungradable: What to do with tasks whose functions are added in a later turn (``multi_turn_miss_func``).

    Raises:
        TaskError: A file cannot be read, or a task cannot be graded.
    """
    truth = {_id(row, "id", number): row for number, row in enumerate(_json_lines(Path(answers)), 1)}

    def make(row: Mapping[str, Any]) -> dict[str, Any]:
        if row.get("missed_function"):
            raise _Ungradable("it adds functions in a later turn ('missed_function'), and the tools here are fixed")
        expected = truth.get(row["id"], {}).get("ground_truth")
        if not isinstance(expected, list) or len(expected) != len(row["question"]):
            raise _Ungradable(f"{answers} has no ground_truth for its {len(row['question'])} turns")
        if not any(expected):
            raise _Ungradable("its ground_truth expects no calls, so any conversation would be a success")
        config = {
            "kind": "bfcl",
            "involved_classes": row["involved_classes"],
            "initial_config": row["initial_config"],
            "long_context": "long_context" in row["id"] or "composite" in row["id"],
            "excluded_function": row.get("excluded_function") or [],
        }
        turns = ["\n".join(message["content"] for message in turn) for turn in row["question"]]
        graded = config | {"ground_truth": [[_expected_call(call) for call in turn] for turn in expected]}
        return {
            "prompt": "You do what a user asks for with tools. When a request is done, or cannot be done, say so.",
            "user": turns,
            **_served(config, graded, python, {}),
        }

    found = enumerate(_json_lines(Path(questions)), 1)
    return _rows(((_id(row, "id", number), partial(make, row)) for number, row in found), ungradable)


def _json_lines(path: Path) -> list[Any]:
    return [_json(line, f"{path}, line {number}") for number, line in enumerate(_read(path).split("\n"), 1) if line]


def _expected_call(text: str) -> dict[str, Any]:
    """Return a call written in Python, of literals only. It is never evaluated."""
    body = parse_python(text.strip()).body if len(text) <= _MAX_CALL_CHARS else []
    node = body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"{text!r:.80} is not a call")
    arguments = {one.arg: ast.literal_eval(one.value) for one in node.keywords if one.arg is not None}
    if len(arguments) != len(node.keywords):
        raise ValueError(f"{text!r:.80} has arguments without a name")
    return {"name": node.func.id, "positional": [ast.literal_eval(one) for one in node.args], "arguments": arguments}


# tau2-bench

_TAU2_CRITERIA = {
    "DB": "",
    "ENV_ASSERTION": "env_assertions",
    "COMMUNICATE": "communicate_info",
    "ACTION": "actions",
}
"""What is graded of ``reward_basis``, with the list of what it requires. ``DB`` requires something without any actions,
too: that nothing is changed."""


def tau2_rows(folder: str | os.PathLike[str], *, python: str, ungradable: Ungradable = "error") -> list[dict[str, Any]]:
    """Return the tasks of a domain of tau2-bench.

    A model plays the user (``user_model=`` of the environment). The tools are those of the package ``tau2``, in a
    process of each episode. Of ``reward_basis``, the state of the databases, assertions about it, what the model must
    have said to the user and which calls it must have made are compared as in the benchmark; all must hold.

    Args:
        folder: Such as ``data/tau2/domains/retail`` of a clone, with ``tasks.json`` and ``policy.md``.
        python: Interpreter of an environment with ``tau2``.
        ungradable: What to do with tasks in which the conversation has begun before, or a model judges assertions in
            natural language.

    Raises:
        TaskError: A file cannot be read, or a task cannot be graded.
    """
    root = Path(folder).resolve()
    # Without the second one, its package litellm asks a server for prices when it is imported.
    variables = {"TAU2_DATA_DIR": str(root / "../../.."), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    policy, file = _policy(root), root / "tasks.json"
    tasks = _list(_json(_read(file), str(file)), str(file))

    def make(row: Mapping[str, Any]) -> dict[str, Any]:
        criteria = row["evaluation_criteria"]
        basis = criteria.get("reward_basis") or ["DB", "COMMUNICATE"]
        if "NL_ASSERTION" in basis and criteria.get("nl_assertions"):
            raise _Ungradable("its nl_assertions are judged by a model (NL_ASSERTION in reward_basis)")
        basis = [name for name in basis if name != "NL_ASSERTION"]
        if unknown := [name for name in basis if name not in _TAU2_CRITERIA]:
            raise _Ungradable(f"its reward_basis has {unknown[0]!r:.80}; {', '.join(_TAU2_CRITERIA)} are graded here")
        if not any(name == "DB" or criteria.get(_TAU2_CRITERIA[name]) for name in basis):
            raise _Ungradable(
                f"its reward_basis {basis!r:.80} requires nothing, so any conversation would be a success"
            )
        if (row.get("initial_state") or {}).get("message_history"):
            raise _Ungradable("its conversation has begun before (message_history)")
        scenario = row["user_scenario"]
        config = {"kind": "tau2", "domain": root.name, "task": dict(row)}
        shown = {key: value for key, value in row.items() if key != "evaluation_criteria"}
        served = _served({**config, "task": shown}, config, python, variables)
        served["data"] |= {
            "basis": basis,
            "communicate": criteria.get("communicate_info") or [],
            "actions": criteria.get("actions") or [],
        }
        return {
            "prompt": f"You are an agent of customer service. Keep to this policy:\n\n{policy}",
            "user": {"scenario": _scenario(scenario), "tools": [f"{OF_USER}*"]},
            **served,
        }

    named = ((f"{root.name}/{_id(row, 'id', number)}", partial(make, row)) for number, row in enumerate(tasks))
    return _rows(named, ungradable)


def _policy(root: Path) -> str:
    if not (root / "main_policy.md").is_file():
        return _read(root / "policy.md")
    # As the environment of telecom joins them.
    parts = {"main_policy": "main_policy.md", "tech_support_policy": "tech_support_manual.md"}
    return "\n".join(f"<{name}>\n{_read(root / file)}\n</{name}>" for name, file in parts.items())


def _scenario(scenario: Mapping[str, Any]) -> str:
    text = scenario["instructions"]
    parts = {"persona": scenario.get("persona"), **(text if isinstance(text, Mapping) else {"instructions": text})}
    return "\n\n".join(f"{name.replace('_', ' ').capitalize()}:\n{text}" for name, text in parts.items() if text)


# Tools and grades of BFCL and tau2-bench


def _served(
    config: Mapping[str, Any], graded: Mapping[str, Any], python: str, environment: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "servers": [{"command": python, "args": [_PROGRAM, "serve"], "env": dict(environment), "timeout": 120.0}],
        "workspace": {CONFIG: json.dumps(config)},
        "check": f"{_HERE}:replayed",
        "data": {"python": python, "config": dict(graded), "env": dict(environment)},
    }


def replayed(state: ToolState) -> tuple[bool, dict[str, bool]]:
    """Return whether the calls of an episode of BFCL or tau2-bench have had the expected effects.

    Raises:
        RuntimeError: The benchmark's package failed.
    """
    data = state.data
    if not state.messages:
        return False, {}  # before the conversation; that the package works is known from the server, which has started
    turns: list[list[Any]] = [[] for message in state.messages if message["role"] == "user"]
    for call in state.calls:
        # A user may call its tools before its first message.
        turns[max(call.turn, 1) - 1].append({"name": call.name, "arguments": call.arguments})
    request = json.dumps({"config": data["config"], "turns": turns})
    code, output, problem = _run([data["python"], _PROGRAM, "grade"], request, data["env"], state.timeout)
    if code != 0:
        raise RuntimeError(f"the calls of the episode could not be made again: {problem[-1000:]}")
    results = dict(json.loads(output))
    if "basis" not in data:
        return all(results.values()), results
    texts = [one["content"].lower().replace(",", "") for one in state.messages if one["role"] == "assistant"]
    results["COMMUNICATE"] = all(any(info.lower() in text for text in texts) for info in data["communicate"])
    results["ACTION"] = all(any(_is_action(one, call) for call in state.calls) for one in data["actions"])
    results = {name: results[name] for name in data["basis"]}
    return all(results.values()), results


def _is_action(action: Mapping[str, Any], call: Any) -> bool:
    compared = action.get("compare_args")
    names = call.arguments.keys() if compared is None else compared
    mine, theirs = ({key: one[key] for key in names if key in one} for one in (call.arguments, action["arguments"]))
    name = (OF_USER if action.get("requestor") == "user" else "") + action["name"]
    return bool(call.name == name and mine == theirs)


def _run(command: Sequence[str], text: str, environment: Mapping[str, str], seconds: float) -> tuple[int, str, str]:
    """Return a program's status and the ends of its output and error messages.

    It runs without the trainer's environment variables. Its children are ended with it.

    Raises:
        DeadlineExceeded: It took too long.
        EnvironmentFault: There is no such program; kind ``"check"``.
    """
    if shutil.which(command[0]) is None:
        raise EnvironmentFault(f"python={command[0]!r} is not a program that can be run", kind="check")
    variables = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    # A lower limit of the machine stays.
    limited = ["sh", "-c", f'ulimit -f {MAX_BLOCKS} 2>/dev/null; exec "$@"', "sh", *command]
    # Files, not pipes: a child that outlives the program would keep a pipe open.
    with contextlib.ExitStack() as files:
        given, output, problem = (files.enter_context(tempfile.TemporaryFile(dir=scratch_root())) for _ in range(3))
        given.write(text.encode())
        given.seek(0)
        program = subprocess.Popen(
            limited,
            stdin=given,
            stdout=output,
            stderr=problem,
            env={**variables, **environment},
            start_new_session=True,
        )
        try:
            code = program.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise DeadlineExceeded(f"{command[1]} did not finish within {seconds:g} s") from error
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
        return code, _end_of(output), _end_of(problem)


def _end_of(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_READ_BYTES))
    return file.read().decode(errors="replace")
