"""Rows of tool tasks: a built-in task by template and seed, or user-provided servers with an answer or a check."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rllm_gym.core import Task, TaskError
from rllm_gym.envs.mcp.user import MAX_MESSAGE_CHARS
from rllm_gym.envs.task_templates import TEMPLATE_KEYS, TemplateTaskRow, read_template_row, template_task_content
from rllm_gym.envs.workspace_files import read_workspace
from rllm_gym.grading.answers import check_answer_spec
from rllm_gym.grading.user_checks import check_signature, find_function
from rllm_gym.mcp.servers import HttpServer, InProcessServer, Server, StdioServer

MAX_PROMPT_CHARS = 50_000
MAX_SERVERS = 16
MAX_USER_TURNS = 100

_ROW_KEYS = ("prompt", "servers", "answer", "check", "infeasible", "tools", "workspace", "setup", "data", "user")
_RUNS_CODE = ("servers", "check", "setup")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_OFFERED = ("offers", "elicitations", "samples")
_SERVER_KEYS: dict[str, tuple[str, ...]] = {
    "command": ("command", "args", "env", "cwd", "name", "shared", "prestart", "restartable", "timeout", *_OFFERED),
    "url": ("url", "headers", "transport", "name", "shared", "restartable", "timeout", *_OFFERED),
    "in_process": ("in_process", "name", "restartable", "timeout", "offers"),
}


@dataclass(frozen=True, slots=True)
class ServerTaskRow:
    """A task with user-provided servers.

    Attributes:
        prompt: The request.
        servers: The servers that provide the tools.
        answer: The required final answer, as :mod:`rllm_gym.grading.answers` reads it, or ``None``.
        check: ``"module:function"`` (or the function) that checks the end state, or ``None``.
        infeasible: Whether reporting that the task cannot be done is right.
        tools: Names of the offered tools; ``None`` for all.
        workspace: Initial files, by relative path.
        setup: ``"module:function"`` (or the function) that prepares the workspace, or ``None``.
        data: Additional data for the check, the setup and the user.
        user: The simulated user: what it says, a scenario that a model plays, or a function; ``None`` if there is none.
        user_tools: Names of the tools that the user has, and the model has not; ``"phone_*"`` for all that begin so.
    """

    prompt: str
    servers: tuple[Server, ...]
    answer: Mapping[str, Any] | None = None
    check: Callable[..., Any] | None = None
    infeasible: bool = False
    tools: tuple[str, ...] | None = None
    workspace: Mapping[str, bytes] = field(default_factory=dict)
    setup: Callable[..., Any] | None = None
    data: Any = None
    user: tuple[str, ...] | str | Callable[..., Any] | None = None
    user_tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ToolRowParser:
    """Converts rows to tasks.

    Attributes:
        defaults: ``servers``, ``check``, ``setup`` and ``tools`` for rows without their own.
        trusted: Whether rows may name programs to run and functions to call; rows from the hub may not.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    trusted: bool = True

    def __call__(self, row: Mapping[str, Any], task_id: str) -> Task:
        """Return the task of a saved task or a row, ``{"prompt", "servers", …}`` or ``{"template", "seed", …}``.

        Raises:
            TaskError: The row is unusable; the message says why.
        """
        data = row.get("data")
        if isinstance(row.get("content"), str) and isinstance(data, Mapping) and "prompt" not in row:
            values = dict(data)
        else:
            values = {
                str(key): value for key, value in row.items() if value is not None and key not in ("id", "task_id")
            }
        self._check_untrusted(values)
        if "template" in values:
            builtin = _builtin_row(values, self.defaults)
            return Task(task_id, *template_task_content(builtin.template, builtin.seed, builtin.difficulty))
        values = {**self.defaults, **values}
        parsed = _server_row(values)
        user = values.get("user")  # the policy of an assistant may be the prompt of many tasks
        about = "" if user is None else f"\n\n{_name(user) if callable(user) else json.dumps(user, ensure_ascii=False)}"
        return Task(task_id, parsed.prompt + about, values)

    def _check_untrusted(self, value: Mapping[str, Any]) -> None:
        runs_code = (*_RUNS_CODE, *(["user"] if isinstance(value.get("user"), str) else []))
        named = [] if self.trusted else [key for key in runs_code if key in value]
        if named:
            raise TaskError(
                f"it has {' and '.join(map(repr, named))}, which run programs and functions on this machine; rows from "
                "the hub must not: pass servers=, check= and setup= to the environment, or review the rows and save "
                "them to a file"
            )


def read_task(task: Task, defaults: Mapping[str, Any]) -> TemplateTaskRow | ServerTaskRow:
    """Return the row in a task, also in a task created by hand.

    Raises:
        TaskError: The task is unusable; the message names the task and the field.
    """
    try:
        data = task.to_json()["data"]  # lists and dicts again, as a check gets them from its rows
        if "template" in data:
            return _builtin_row(data, defaults)
        return _server_row({"prompt": task.content, **defaults, **data})
    except TaskError as error:
        raise TaskError(f"task {task.task_id!r}: {error}") from error


def _known(row: Mapping[str, Any], keys: Sequence[str], what: str) -> None:
    unknown = sorted(str(key) for key in row if key not in keys)
    if unknown:
        raise TaskError(f"its field(s) {unknown!r:.200} are unknown; the fields of {what} are {', '.join(keys)}")


def _builtin_row(row: Mapping[str, Any], defaults: Mapping[str, Any]) -> TemplateTaskRow:
    _known(row, TEMPLATE_KEYS, "a row with a template")
    for option in defaults:
        raise TaskError(
            f"{option}= of the environment has no effect on a built-in task, which has a template; set {option!r} "
            "in the rows that need it, or remove rows with a template"
        )
    return read_template_row(row)


def _server_row(row: Mapping[str, Any]) -> ServerTaskRow:
    _known(row, _ROW_KEYS, "a row")
    prompt = row.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip() or len(prompt) > MAX_PROMPT_CHARS:
        raise TaskError(f"its prompt is {prompt!r:.80}; it must be a string of 1 to {MAX_PROMPT_CHARS} characters")
    answer, check, infeasible, tools, setup = (
        row.get(key) for key in ("answer", "check", "infeasible", "tools", "setup")
    )
    infeasible = False if infeasible is None else infeasible
    if not isinstance(infeasible, bool):
        raise TaskError(f"its infeasible is {infeasible!r:.80}; it must be true or false")
    if answer is not None:
        _check_answer(answer)
    user, user_tools = _user(row.get("user"))
    if user is not None and infeasible:
        raise TaskError("it has a 'user', which ends the conversation, so 'infeasible' has no effect; set a 'check'")
    if answer is None and check is None and not infeasible:
        raise TaskError("it has neither an 'answer' nor a 'check', so it cannot be graded; set one")
    if tools is not None and (isinstance(tools, str) or not all(isinstance(name, str) for name in tools)):
        raise TaskError(f"its tools are {tools!r:.80}; they must be a list of names")
    return ServerTaskRow(
        prompt,
        servers_of(row.get("servers")),
        answer,
        None if check is None else _function("check", check, "state"),
        infeasible,
        None if tools is None else tuple(tools),
        read_workspace(row.get("workspace")),
        None if setup is None else _function("setup", setup, "workspace", "seed", "data"),
        row.get("data"),
        user,
        user_tools,
    )


def _name(function: Callable[..., Any]) -> str:
    """Return the name of a function, the same in every process."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def _user(user: Any) -> tuple[tuple[str, ...] | str | Callable[..., Any] | None, tuple[str, ...]]:
    """Return the user of a row, and the names of its tools."""
    if user is None or callable(user) or isinstance(user, str):
        return None if user is None else _function("user", user, "messages", "data"), ()
    scenario = user.get("scenario") if isinstance(user, Mapping) and user.keys() <= {"scenario", "tools"} else None
    tools = user.get("tools", ()) if scenario is not None else ()
    if not isinstance(tools, list | tuple) or not all(isinstance(name, str) for name in tools):
        raise TaskError(f"the tools of its user are {tools!r:.80}; they must be a list of names")
    turns, longest = (user, MAX_MESSAGE_CHARS) if scenario is None else ([scenario], MAX_PROMPT_CHARS)
    if (
        not isinstance(turns, list | tuple)
        or not 1 <= len(turns) <= MAX_USER_TURNS
        or not all(isinstance(turn, str) and turn.strip() and len(turn) <= longest for turn in turns)
    ):
        raise TaskError(
            f"its user is {user!r:.80}; it must be a list of 1 to {MAX_USER_TURNS} texts of 1 to {MAX_MESSAGE_CHARS} "
            f"characters, {{'scenario': text of 1 to {MAX_PROMPT_CHARS}}} (with 'tools': names, if it has any) or "
            "'module:function'"
        )
    return tuple(turns) if scenario is None else str(scenario), tuple(tools)


def _check_answer(answer: Any) -> None:
    if not isinstance(answer, Mapping):
        raise TaskError(
            f"its answer is {answer!r:.80}; it must include its type, as in {{'type': 'number', 'value': 12.5}}"
        )
    try:
        check_answer_spec(answer)
    except ValueError as error:
        raise TaskError(f"its answer is invalid: {error}") from error


def _function(field_name: str, value: Any, *parameters: str) -> Callable[..., Any]:
    if callable(value):
        check_signature(value, getattr(value, "__qualname__", repr(value)), *parameters)
        return value  # type: ignore[no-any-return]
    if not isinstance(value, str) or not _FUNCTION.fullmatch(value):
        raise TaskError(f"its {field_name} is {value!r:.80}; it must be 'module:function'")
    return find_function(value, *parameters)


# Servers


def servers_of(servers: Any) -> tuple[Server, ...]:
    """Return servers from a row, or from a user's argument.

    Raises:
        TaskError: One is unusable; the message says which and why.
    """
    if isinstance(servers, Mapping | StdioServer | HttpServer | InProcessServer) or callable(servers):
        servers = [servers]
    if isinstance(servers, str) or not isinstance(servers, Sequence) or not 1 <= len(servers) <= MAX_SERVERS:
        raise TaskError(
            f"its servers are {servers!r:.80}; they must be a list of 1 to {MAX_SERVERS}, each "
            "{'command', 'args', …}, "
            "{'url', …} or {'in_process': 'module:function'}"
        )
    return tuple(_server(one, number) for number, one in enumerate(servers, 1))


def _server(values: Any, number: int) -> Server:
    if isinstance(values, StdioServer | HttpServer | InProcessServer):
        return values
    if not isinstance(values, Mapping) and callable(values):
        return InProcessServer(values)
    kind = next((key for key in _SERVER_KEYS if isinstance(values, Mapping) and key in values), None)
    if kind is None:
        raise TaskError(
            f"its server {number} is {values!r:.80}; it must have 'command', 'url' or 'in_process'. An MCPServer "
            "object would be shared by all episodes: pass a function make(workspace, seed) that creates it"
        )
    _known(values, _SERVER_KEYS[kind], f"a server with {kind!r}")
    try:
        if kind == "command":
            return StdioServer(**{**values, "args": tuple(values.get("args", ()))})
        if kind == "url":
            return HttpServer(**values)
        options = {key: value for key, value in values.items() if key != "in_process"}
        return InProcessServer(_maker(values["in_process"]), **options)
    except (TypeError, ValueError, AttributeError) as error:
        raise TaskError(f"its server {number} cannot be used: {error}") from error


def _maker(name: Any) -> Callable[..., Any]:
    if callable(name):
        return name  # type: ignore[no-any-return]
    if not isinstance(name, str) or not _FUNCTION.fullmatch(name):
        raise TaskError(f"in_process is {name!r:.80}; it must be 'module:function', called as make(workspace, seed)")
    return find_function(name, "workspace", "seed")
