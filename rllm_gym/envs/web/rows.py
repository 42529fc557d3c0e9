"""Rows of web tasks: a built-in task by template and seed, or a user-provided page with a check."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from rllm_gym.core import Task, TaskError
from rllm_gym.envs.task_templates import TEMPLATE_KEYS, TemplateTaskRow, read_template_row, template_task_content
from rllm_gym.envs.web.browser.network_policy import origin_of
from rllm_gym.envs.web.page_server import ServerCommand
from rllm_gym.envs.workspace_files import read_workspace
from rllm_gym.grading.answers import check_answer_spec

MAX_GOAL_CHARS = 20_000
MAX_URL_CHARS = 2_000
MAX_ORIGINS = 100
MAX_START_S = 600.0

_CHECK = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
MAX_FILES = 20
MAX_FILE_BYTES = 5_000_000
"""Of all files of a row together."""

_FILE_NAME = re.compile(r"[^/\\\x00-\x1f]{1,200}")
_PAGE_KEYS = (
    "url",
    "goal",
    "origins",
    "server",
    "workspace",
    "setup",
    "check",
    "answer",
    "infeasible",
    "files",
    "data",
)
_CODE_KEYS = ("server", "setup", "check")
"""Fields that run programs or functions on this machine."""

_SERVER_KEYS = ("command", "args", "env", "cwd", "timeout", "reuse")


@dataclass(frozen=True, slots=True)
class PageRow:
    """A page of a server.

    Attributes:
        url: URL at which the episode begins.
        goal: The request.
        origins: Origins that the browser may reach, such as ``http://127.0.0.1:8000``; includes that of ``url``.
        check: ``"module:function"`` that checks the end state, or ``None``.
        answer: The required argument of ``answer("…")``, as :mod:`rllm_gym.grading.answers` reads it, or ``None``.
        infeasible: Whether reporting that the task cannot be done is right.
        data: Additional data for the check.
        files: What can be uploaded, by name.
        setup: ``"module:function"`` that prepares the server for an episode, or ``None``.
        server: The program that serves ``url``, or ``None`` if it is already served.
        workspace: Initial files of the server's directory, by relative path.
    """

    url: str
    goal: str
    origins: tuple[str, ...]
    check: str | None
    answer: Mapping[str, Any] | None
    infeasible: bool
    data: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    setup: str | None = None
    server: ServerCommand | None = None
    workspace: Mapping[str, bytes] = field(default_factory=dict)


def row_to_web_task(row: Mapping[str, Any], task_id: str, *, trusted: bool = True) -> Task:
    """Return the task of a row ``{"url", "goal", …}`` or ``{"template", "seed", "difficulty"}``, or of a saved task.

    Args:
        row: The row.
        task_id: Its id.
        trusted: Whether it may name a program to run or functions to call; a row from the hub may not.

    Raises:
        TaskError: The row is unusable; the message says why.
    """
    data = row.get("data")
    for source in (row, data if isinstance(data, Mapping) else {}):
        named = [key for key in _CODE_KEYS if source.get(key) is not None and "url" in source]
        if named and not trusted:
            raise TaskError(
                f"it names a {named[0]}, which runs code on this machine, and rows of the hub must not: review the "
                "rows, save them to a file, and pass its path"
            )
    if isinstance(row.get("content"), str) and isinstance(data, Mapping) and "url" not in row:
        read_row(data)
        return Task(task_id, row["content"], data)
    values = {str(key): value for key, value in row.items() if value is not None and key not in ("id", "task_id")}
    parsed = read_row(values)
    if isinstance(parsed, TemplateTaskRow):
        return site_task(task_id, parsed.template, parsed.seed, parsed.difficulty)
    return Task(task_id, f"{parsed.goal}\n{parsed.url}", values | {"origins": list(parsed.origins)})


def site_task(task_id: str, template: str, seed: int, difficulty: int) -> Task:
    """Return a built-in task. No site is created: template, difficulty and seed define the task completely."""
    return Task(task_id, *template_task_content(template, seed, difficulty))


def read_row(row: Mapping[str, Any]) -> TemplateTaskRow | PageRow:
    """Return the row in a task's data.

    Raises:
        TaskError: The data is unusable; the message names the field.
    """
    known = TEMPLATE_KEYS if "template" in row else _PAGE_KEYS
    unknown = sorted(set(row) - set(known))
    if unknown:
        raise TaskError(f"its field(s) {unknown!r:.200} are unknown; the fields of a row are {', '.join(known)}")
    return read_template_row(row) if "template" in row else _page_row(row)


def _page_row(row: Mapping[str, Any]) -> PageRow:
    for name, longest in (("url", MAX_URL_CHARS), ("goal", MAX_GOAL_CHARS)):
        value = row.get(name)
        if not isinstance(value, str) or not value.strip() or len(value) > longest:
            raise TaskError(f"its {name} is {value!r:.80}; it must be a string of 1 to {longest} characters")
    check, answer, infeasible, data = (row.get(name) for name in ("check", "answer", "infeasible", "data"))
    setup = row.get("setup")
    for name, function in (("check", check), ("setup", setup)):
        if function is not None and (not isinstance(function, str) or not _CHECK.fullmatch(function)):
            raise TaskError(f"its {name} is {function!r:.80}; it must be 'module:function'")
    if answer is not None:
        if not isinstance(answer, Mapping):
            raise TaskError(f"its answer is {answer!r:.80}; it must be {{'type': …, 'value': …}}")
        answer = {key: value for key, value in answer.items() if value is not None}  # columns of a Parquet file
        try:
            check_answer_spec(answer)
        except ValueError as error:
            raise TaskError(f"its answer is invalid: {error}") from error
    if infeasible is not None and not isinstance(infeasible, bool):
        raise TaskError(f"its infeasible is {infeasible!r:.80}; it must be true or false")
    if check is None and answer is None and not infeasible:
        raise TaskError("it cannot be graded: set 'check', 'answer', or 'infeasible': true")
    if data is not None and not isinstance(data, Mapping):
        raise TaskError(f"its data is {data!r:.80}; it must be an object for the check")
    files = _files(row.get("files") or {})
    server = None if row.get("server") is None else _server(row["server"], row["url"])
    workspace = read_workspace(row.get("workspace"))
    if workspace and server is None:
        raise TaskError("its workspace has no effect without a server; remove it")
    return PageRow(
        row["url"],
        row["goal"],
        _origins(row),
        check,
        answer,
        bool(infeasible),
        data or {},
        files,
        setup,
        server,
        workspace,
    )


def _server(values: Any, url: str) -> ServerCommand:
    if not isinstance(values, Mapping) or not isinstance(values.get("command"), str) or not values["command"]:
        raise TaskError(f"its server is {values!r:.80}; it must be {{'command': …, 'args': […]}}")
    values = {key: value for key, value in values.items() if value is not None}  # columns of a Parquet file
    if unknown := sorted(set(values) - set(_SERVER_KEYS)):
        raise TaskError(f"its server has unknown fields {unknown!r:.200}; they are {', '.join(_SERVER_KEYS)}")
    args, env = values.get("args", ()), values.get("env", {})
    if isinstance(args, str) or not isinstance(args, Sequence) or not isinstance(env, Mapping):
        raise TaskError(f"its server has args={args!r:.80} and env={env!r:.80}; they must be a list and an object")
    env = {key: value for key, value in env.items() if value is not None}
    cwd, timeout, reuse = values.get("cwd", "{workspace}"), values.get("timeout", 60.0), values.get("reuse", False)
    texts = (values["command"], *args, *env, *env.values(), cwd)
    for text in texts:
        if not isinstance(text, str) or "\0" in text:
            raise TaskError(f"its server has {text!r:.80}, which must be a string without NUL characters")
    if wrong := [name for name in env if not name or "=" in name]:
        raise TaskError(
            f"its server has env={{{wrong[0]!r:.80}: …}}; names of variables are not empty, and have no '='"
        )
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= MAX_START_S:
        raise TaskError(f"its server has timeout={timeout!r:.80}; it must be a number of seconds up to {MAX_START_S:g}")
    if not isinstance(reuse, bool):
        raise TaskError(f"its server has reuse={reuse!r:.80}; it must be true or false")
    if not any("{port}" in text for text in texts):
        raise TaskError("its server does not get its port: put {port} into its args or env")
    if reuse and any("{seed}" in text for text in texts):
        raise TaskError("its server has {seed} and reuse=true, but later episodes have other seeds; use that of setup")
    if not _origin(url).startswith("http://"):
        raise TaskError(f"its url is {url!r:.80}; the page of a server that is started here begins with http://")
    return ServerCommand(values["command"], tuple(args), env, cwd, float(timeout), reuse)


def _files(files: Any) -> dict[str, bytes]:
    """Return the content of a row's files: each a text, or ``{"base64": …}``."""
    if not isinstance(files, Mapping) or len(files) > MAX_FILES:
        raise TaskError(f"its files are {files!r:.80}; they must be an object of at most {MAX_FILES} contents by name")
    contents: dict[str, bytes] = {}
    for name, value in files.items():
        if value is None:  # a column of a Parquet file
            continue
        if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
            raise TaskError(f"its file {name!r:.80} must have a name of 1 to 200 characters, without a folder")
        try:
            encoded = value["base64"] if isinstance(value, Mapping) and set(value) == {"base64"} else None
            contents[name] = value.encode() if isinstance(value, str) else base64.b64decode(encoded, validate=True)  # type: ignore[arg-type]
        except (ValueError, TypeError) as error:
            raise TaskError(f"its file {name!r} is {value!r:.80}; it must be a text or {{'base64': …}}") from error
    if sum(map(len, contents.values())) > MAX_FILE_BYTES:
        raise TaskError(f"its files have more than {MAX_FILE_BYTES} bytes together; leave some out")
    return contents


def _origins(row: Mapping[str, Any]) -> tuple[str, ...]:
    origins_value = row.get("origins") or ()
    if (
        isinstance(origins_value, str)
        or not all(isinstance(one, str) for one in origins_value)
        or len(origins_value) > MAX_ORIGINS
    ):
        raise TaskError(
            f"its origins are {origins_value!r:.80}; they must be a list of strings such as 'http://127.0.0.1:8000'"
        )
    for one in origins_value:
        parts = urlsplit(one)
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise TaskError(f"its origin {one!r:.200} must be only scheme, host and port")
    return tuple(dict.fromkeys(_origin(url) for url in (row["url"], *origins_value)))


def _origin(url: str) -> str:
    try:
        return origin_of(url)
    except ValueError as error:
        raise TaskError(str(error)) from error
