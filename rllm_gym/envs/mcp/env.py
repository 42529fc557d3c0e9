"""The MCP environment: MCP servers provide the tools; the end state and the final answer decide the reward."""

from __future__ import annotations

import asyncio
import difflib
import importlib.util
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rllm_gym.core import (
    AsyncTextEnv,
    EnvironmentFault,
    InvalidAction,
    Outcome,
    StopReason,
    Task,
    TaskError,
    TaskSource,
)
from rllm_gym.data import Taskset, load_tasks
from rllm_gym.envs.mcp.arguments import ValidationBudget, checked_arguments
from rllm_gym.envs.mcp.domains import TEMPLATES, ToolTaskTemplate
from rllm_gym.envs.mcp.images import MAX_IMAGES, check_available, data_urls
from rllm_gym.envs.mcp.prompt import (
    ANSWERS,
    DECLINE,
    ENDINGS,
    EXAMPLE,
    FINISH,
    HOW_TO_ANSWER,
    LOST,
    USER_LOST,
    answer_tools,
    changed_tools,
    first_observation,
    request_text,
    results_text,
    user_message,
)
from rllm_gym.envs.mcp.rows import ToolRowParser, read_task, servers_of
from rllm_gym.envs.mcp.running_calls import RunningCalls
from rllm_gym.envs.mcp.task_instance import (
    BuiltinTaskInstance,
    ServerTaskInstance,
    ToolCallLog,
    ToolEpisodeEnd,
    ToolTaskInstance,
)
from rllm_gym.envs.mcp.user import MAX_ASKED, SimulatedUser, UserFactory, UserLost, UserTools, bounded
from rllm_gym.envs.mcp.workspace_alias import WorkspaceAlias
from rllm_gym.envs.task_templates import TemplateTaskRow, choose_templates, template_tasks
from rllm_gym.envs.transcript import transcript
from rllm_gym.grading.user_checks import FAILED, find_function
from rllm_gym.mcp import MCPTool, Server, ServerPool, ToolResult, ToolSession, shared_pool, tools_json
from rllm_gym.mcp.protocol import sendable_json
from rllm_gym.mcp.server_requests import BY_MODEL, ServerRequest
from rllm_gym.parsing.function_calls import FunctionCall
from rllm_gym.parsing.tool_calls import parse_tool_calls

MAX_CALLS = 32
MIN_OBSERVATION_CHARS = 10_000
MIN_RESULT_CHARS = 100
MIN_TOOLS_CHARS = 1_000

_logger = logging.getLogger(__name__)
_ANSWER_CHARS = 1_000
_SERVERS_S = 600.0
_NAMES_CHARS = 1_000

ServersLike = Server | Mapping[str, Any] | Callable[..., Any] | Sequence[Any]


class MCPEnv(AsyncTextEnv):
    """Do a task with the tools of MCP servers.

    ## Description
    The tools of a task come from servers that use the Model Context Protocol. Built-in domains
    (:data:`rllm_gym.envs.mcp.domains.TEMPLATES`: databases, files, a shop's back office, and more) provide unlimited
    tasks without a download. Rows can use other servers: programs, URLs, or servers created in this process. Each
    episode has its own servers and workspace (:mod:`rllm_gym.mcp`), which are removed when it ends.

    ## Action space
    Any text. Tool calls are read in every notation that models are trained with
    (:func:`rllm_gym.parsing.tool_calls.parse_tool_calls`). A reply may contain several calls, which run concurrently.
    The tool ``finish`` ends the episode, and so does a reply without a call, whose text is the final answer; in a row
    with a ``user`` it is a message to that user, who answers, and who ends the episode instead. The tool
    ``report_infeasible`` ends it with the statement that the task cannot, or must not, be done; the same statement in
    plain text counts as an ordinary answer. A tool that ends the episode must be the only call of its reply.

    A server with ``elicitations="model"`` or ``samples="model"`` may ask the model something while it works on a call.
    The next reply answers with ``answer_request`` or ``decline_request``, or ends the episode.

    ## Observation space
    Text. First the task, the instructions of the servers, the tools with their parameters, and how to call them; then
    the results of a turn's calls, in order, each under its tool's name, and the tools that a server has changed; or
    what a server asks before it answers. The middle of a long result is cut, with a note. Results show the episode's
    directory as ``/workspace``, and arguments may use that name.

    ## Starting state
    One task, chosen by ``options={"task": index | task_id | Task}``, else drawn with the seed. A server that takes
    ``{seed}`` gets one drawn with the seed too; the state of a built-in task is a function of the task only.

    ## Rewards
    ``task``: 1 if the episode ends as requested, else 0. A built-in task compares its complete end state with that of a
    copy to which exactly the requested change was applied, so that a side effect costs the reward, and checks the
    answer with :mod:`rllm_gym.grading.answers`. A row has a typed answer, a check, or both; a check may give a part of
    the reward. A check that raises, hangs or returns anything else gives reward 0, since the model may have caused
    this, and is reported in ``check_error``. If it cannot work, which is tried before the first action, it is an
    environment fault. A task that cannot be done requires ``report_infeasible`` and no change. If a reply cannot be
    parsed, names an unknown tool, or has arguments that do not fit a schema, none of its calls is sent, and it costs
    ``invalid_action_penalty``. A failing tool call returns its error message and costs nothing; so does a call in which
    the server hangs or dies. A server that is ``restartable`` then starts again; the end of any other server ends the
    episode with reward 0. A server that cannot be started for the episode, or ends before the first call, raises
    :class:`~rllm_gym.mcp.ServerFault`: an environment fault, for which no reward is given.

    ## Episode end
    Terminates with the final answer or report: ``success`` or ``failure``; if a server has ended after a call and
    cannot go on: ``server_lost``; or if the user does not answer any more: ``user_lost``. Truncated (``max_turns``)
    when no turns are left.

    ## Information
    The keys of :class:`~rllm_gym.core.TextEnv`, and ``tools_called: int`` and ``tool_errors: int``, the numbers of sent
    and of failed calls in the episode so far, ``answer: str``, the final answer (its first 1,000 characters; ``""``
    until then), ``check_components: dict[str, float]``, the named components of a check at the end (else empty),
    ``check_error: str``, the assertion that failed in a check, or why it has not finished (else ``""``), and
    ``template: str`` of a built-in task (``""`` for rows). ``tools`` from ``reset`` contains the schemas of all tools.
    With ``max_images``, ``images: str`` is a JSON list of ``data:`` URLs: the pictures in the results of this turn, in
    order.

    ## Arguments

    >>> import gymnasium as gym, rllm_gym
    >>> env = gym.make("rllm/MCP-v0", domains="sqlite", difficulty=1)        # doctest: +SKIP
    >>> observation, info = env.reset(seed=0)                               # doctest: +SKIP

    Args:
        tasks: ``None`` for the built-in tasks; ``"path.jsonl"``, ``"path.parquet"``, ``"hf:repo[:config][@split]"``,
            a list of rows or tasks, or a :class:`~rllm_gym.data.Taskset`. Rows are ``{"prompt", "servers":
            [{"command", "args", "env"} | {"url"} | {"in_process": "module:function"}], "answer": {"type", "value"},
            "check": "module:function"}``, with optional ``infeasible``, ``tools`` (names of the offered tools),
            ``workspace`` (``{path: text | {"base64"}}``), ``setup`` (``"module:function"``, called with the workspace,
            seed and data before the servers start), ``user`` (a simulated user: a list of texts, ``{"scenario",
            "tools"}`` or ``"module:function"``) and ``data``, or ``{"template", "seed", "difficulty"}``.
            ``check(state)`` gets a :class:`~rllm_gym.envs.mcp.ToolState`. It returns a truth value or a number from 0
            to 1, or a pair of it and named components (``{name: number from 0 to 1}``). In Python, servers, checks and
            setups may be objects. Rows run programs on this machine, so use only rows that you trust; rows from the hub
            may not run any.
        templates: Built-in tasks to draw from, by name, ``None`` for all; also your own
            :class:`~rllm_gym.envs.mcp.domains.ToolTaskTemplate` objects.
        domains: Built-in domains to draw tasks from, ``None`` for all: the part before the ``/`` of a template's name.
        difficulty: Of built-in tasks: 1 (easy) to 3, a pair ``(lowest, highest)``, or ``None`` for all.
        split: ``"train"``, ``"validation"`` or ``"test"``. The split of a task is decided by its content; no two
            splits share a task. ``None`` means ``"train"`` for built-in tasks and every row of a file.
        task_seed: A different seed gives different built-in tasks.
        num_tasks: Number of tasks: the first rows of a file, or built-in tasks (1,000,000 by default).
        servers: Servers for rows that name none; as ``check``, ``setup`` and ``tools``, an error with built-in tasks.
        check: Check for rows that name none.
        setup: Setup for rows that name none.
        tools: Names of the offered tools, for rows that name none.
        user_model: The model that plays the users of rows with a scenario: a
            :class:`~rllm_gym.user_model.UserModel`, or ``"module:function"`` of a function that creates one, which is
            closed with the environment.
        pool: Your own :class:`~rllm_gym.mcp.ServerPool`, which you close; by default the environments of a process
            share one.
        tools_in_prompt: Whether the first observation lists the tools. Not needed if the agent's chat template renders
            ``info["tools"]``.
        max_tools_chars: Longest list of tools with the servers' instructions in the first observation, at least 1,000.
            Descriptions of parameters are cut first, then those of tools.
        call_timeout: Time limit in seconds for a call; ``None`` for the server's own limit (30 by default).
        check_timeout: Time limit in seconds for a check.
        max_calls: Most calls in one reply, 1 to 32.
        max_result_chars: Longest result of a call in an observation, at least 100.
        max_images: Pictures of a turn's results that ``info["images"]`` contains for models that take them, 0 to 16.
            ``MCPAgent`` adds them to the observation. Without them, pictures are only described.
        max_turns: Number of replies.
        invalid_action_penalty: Subtracted from the reward on every turn whose calls were not sent.
        max_observation_chars: Bound of the observation space, at least 10,000.
        max_action_chars: Longest accepted reply.
        render_mode: ``"ansi"`` (the task, replies and results) or ``None``.

    Raises:
        ModuleNotFoundError: The extra is missing: ``pip install 'rllm-gym[mcp]'``.
        TaskError: The tasks are unusable; the message names the file, the row and a solution.
        ValueError: Another argument is out of range.

    ## Version history
    v0: first release.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 4}  # type: ignore[misc]
    bound_to_loop: ClassVar[bool] = False  # sessions live on an event loop of their pool

    def __init__(
        self,
        *,
        tasks: str | os.PathLike[str] | Iterable[Mapping[str, Any] | Task] | TaskSource | None = None,
        templates: str | ToolTaskTemplate | Iterable[str | ToolTaskTemplate] | None = None,
        domains: str | Iterable[str] | None = None,
        difficulty: int | tuple[int, int] | None = None,
        split: str | None = None,
        task_seed: int = 0,
        num_tasks: int | None = None,
        servers: ServersLike | None = None,
        check: str | Callable[..., Any] | None = None,
        setup: str | Callable[..., Any] | None = None,
        tools: Sequence[str] | None = None,
        user_model: UserFactory | str | None = None,
        pool: ServerPool | None = None,
        tools_in_prompt: bool = True,
        max_tools_chars: int = 20_000,
        call_timeout: float | None = None,
        check_timeout: float = 30.0,
        max_calls: int = 16,
        max_result_chars: int = 8_000,
        max_images: int = 0,
        max_turns: int = 40,
        invalid_action_penalty: float = 0.0,
        max_observation_chars: int = 100_000,
        max_action_chars: int = 1_000_000,
        render_mode: str | None = None,
    ) -> None:
        _need("jsonschema", "mcp")
        _check_count("max_calls", max_calls, 1, MAX_CALLS)
        _check_count("max_result_chars", max_result_chars, MIN_RESULT_CHARS)
        _check_count("max_observation_chars", max_observation_chars, MIN_OBSERVATION_CHARS)
        _check_count("max_tools_chars", max_tools_chars, MIN_TOOLS_CHARS)
        _check_count("max_images", max_images, 0, MAX_IMAGES)
        if max_images:
            check_available()
        if not isinstance(tools_in_prompt, bool):
            raise ValueError(f"tools_in_prompt={tools_in_prompt!r} must be True or False")
        _check_seconds("check_timeout", check_timeout)
        if call_timeout is not None:
            _check_seconds("call_timeout", call_timeout)
        if num_tasks is not None:
            _check_count("num_tasks", num_tasks, 1)
        if pool is not None and not isinstance(pool, ServerPool):
            raise ValueError(f"pool={pool!r:.80} must be a rllm_gym.mcp.ServerPool, or None for the shared one")
        defaults = {"servers": servers, "check": check, "setup": setup, "tools": tools}
        self._defaults = {key: value for key, value in defaults.items() if value is not None}
        if servers is not None:
            self._defaults["servers"] = servers_of(servers)
        if user_model is not None and tasks is None:
            raise TaskError("user_model= plays the users of your own rows; set tasks=, or omit it")
        users = find_function(user_model)() if isinstance(user_model, str) else user_model
        if users is not None and not hasattr(users, "user"):
            raise ValueError(f"user_model={users!r:.80} must be a rllm_gym.user_model.UserModel, or None")
        self._templates = dict(TEMPLATES)
        if tasks is None:
            self._templates = choose_templates(TEMPLATES, ToolTaskTemplate, templates, domains, "domain")
        built_in = {"templates": templates, "domains": domains, "difficulty": difficulty}
        super().__init__(
            tasks=_built_in(self._templates, difficulty, split, task_seed, num_tasks, self._defaults)
            if tasks is None
            else _own(tasks, split, num_tasks, self._defaults, built_in),
            max_turns=max_turns,
            invalid_action_penalty=invalid_action_penalty,
            max_observation_chars=max_observation_chars,
            max_action_chars=max_action_chars,
            render_mode=render_mode,
        )
        self._pool, self._users, self._owns_users = pool, users, isinstance(user_model, str)
        self.tools_in_prompt, self.max_calls, self.max_result_chars = tools_in_prompt, max_calls, max_result_chars
        self.max_tools_chars, self.max_images = max_tools_chars, max_images
        self.call_timeout, self.check_timeout = call_timeout, check_timeout
        # Calls of a reply run at the same time; a server may have to start again. A function that plays the user has
        # the deadline of a check, and is followed by one.
        users_s = MAX_ASKED * getattr(users, "timeout", 0.0)
        self.max_step_s = _SERVERS_S + 2 * (call_timeout or 0.0) + 2 * check_timeout + users_s
        self._session: ToolSession | None = None
        self._user: SimulatedUser | None = None
        self._instance: ToolTaskInstance | None = None
        self._available_tools: dict[str, MCPTool] = {}
        self._running: RunningCalls | None = None
        self._asked: ServerRequest | None = None
        self._answer_tools: dict[str, MCPTool] = {}
        self._calls = ToolCallLog()
        self._log: list[tuple[str, str]] = []
        self._images: list[str] = []
        self._errors, self._answer, self._template = 0, "", ""
        self._graded = FAILED

    # Episode

    async def _async_begin(self, task: Task) -> str:
        await self._async_end()
        self._calls, self._log, self._images = ToolCallLog(), [], []
        self._running, self._asked, self._answer_tools = None, None, {}
        self._errors, self._answer, self._graded = 0, "", FAILED
        self._instance = case = await self._instance_of(task)
        seed = int(self.np_random.integers(2**31)) if case.seed is None else case.seed
        try:
            self._session = session = await self._open(case, seed)
            self._name = WorkspaceAlias(session.workspace)
            tools = self._tools_of_user(session, case)
            self._user = case.user(self._users, lambda: int(self.np_random.integers(2**63)), tools)
            self._available_tools = _available_tools(_of_model(session.tools, case), case.tools, self._endings)
            opening = await self._first_message()
            observation = self._first_observation(session, case, opening)
            await case.try_check(task.task_id, session)
        except TaskError as error:
            await self._async_end()
            raise TaskError(f"task {task.task_id!r}: {error}") from error
        except BaseException:
            await asyncio.shield(self._async_end())
            raise
        return observation

    @property
    def _endings(self) -> Sequence[MCPTool]:
        """The tools that end the episode: a conversation is ended by its user."""
        return ENDINGS if self._user is None else ()

    def _tools_of_user(self, session: ToolSession, case: ToolTaskInstance) -> UserTools | None:
        """Return the tools of the user, ``None`` if it has none.

        Raises:
            TaskError: A server has no such tool.
        """
        tools = {tool.name: tool for tool in session.tools if _is_of_user(tool, case)}
        known = {name for tool in tools.values() for name in (tool.name, tool.remote_name)}
        for name in case.user_tools:
            if not name.endswith("*") and name not in known:
                names = ", ".join(tool.name for tool in session.tools)
                raise TaskError(f"its servers have no tool {name!r} for its user; they have {names}")
        if not tools:
            return None

        async def make_call(name: str, arguments: dict[str, Any]) -> ToolResult:
            result = await session.call(name, arguments, timeout=self.call_timeout)
            self._calls.add(name, arguments, result, by_user=True)
            return self._name.hidden(result)

        return UserTools(tools, make_call)

    async def _first_message(self) -> str | None:
        if self._user is None:
            return None
        message = await self._user.reply(())
        assert self._session is not None
        if self._session.lost:
            raise EnvironmentFault("a server ended in a call of the user, before the conversation began", kind="user")
        if message is None:
            raise EnvironmentFault("the user ended the conversation before it began", kind="user")
        self._calls.messages.append({"role": "user", "content": message})
        return message

    async def _instance_of(self, task: Task) -> ToolTaskInstance:
        row = read_task(task, self._defaults)
        if not isinstance(row, TemplateTaskRow):
            self._template = ""
            longest = max(server.timeout for server in row.servers)
            if self.call_timeout is None and longest > _SERVERS_S / 2:
                raise TaskError(
                    f"task {task.task_id!r}: a server has timeout={longest:g}; a call that hangs could exceed the "
                    f"deadline of a step: set call_timeout= of the environment, or at most {_SERVERS_S / 2:g} s there"
                )
            return ServerTaskInstance(row, check_timeout=self.check_timeout)
        self._template = row.template
        template = self._templates.get(row.template) or TEMPLATES.get(row.template)
        if template is None:
            raise TaskError(
                f"task {task.task_id!r}: unknown template {row.template!r}; choose from {', '.join(TEMPLATES)}"
            )
        return await BuiltinTaskInstance.make(template, row)

    async def _open(self, instance: ToolTaskInstance, seed: int) -> ToolSession:
        # Looked up on every call: after a fork, as in vector environments, the shared pool is a different one.
        pool = self._pool or shared_pool()
        workspace = await pool.workspace(instance.servers)
        try:
            servers = await instance.prepare(workspace, seed)
        except BaseException:
            await asyncio.shield(pool.discard(workspace))
            raise
        asking = any(BY_MODEL in (getattr(one, "elicitations", ()), getattr(one, "samples", ())) for one in servers)
        reserved = [*(tool.name for tool in ENDINGS), *(ANSWERS if asking else ())]
        return await pool.open(servers, workspace=workspace, seed=seed, reserved=reserved)

    def _first_observation(self, session: ToolSession, instance: ToolTaskInstance, opening: str | None) -> str:
        observation = first_observation(
            instance.goal,
            [*self._available_tools.values()],
            {name: self._name.without_path(text) for name, text in session.instructions.items()},
            listed=self.tools_in_prompt,
            max_tools_chars=self.max_tools_chars,
            max_calls=self.max_calls,
            max_turns=self.max_turns,
            opening=opening,
        )
        longest = self.observation_space.max_length  # type: ignore[attr-defined]
        if len(observation) > longest:
            raise TaskError(
                f"it needs an observation of {len(observation)} characters, which exceeds "
                f"max_observation_chars={longest}; increase it, lower max_tools_chars, or set tools_in_prompt=False"
            )
        return observation

    async def async_step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        try:
            result = await super().async_step(action)
        except EnvironmentFault:
            await self._async_end()
            raise
        self._log.append((action, result[0]))
        if result[2] or result[3]:
            await self._async_end()
        return result

    async def _async_act(self, action: str) -> Outcome:
        self._images = []
        reply = parse_tool_calls(action)
        if not reply.calls:
            if self._asked is not None:
                raise InvalidAction(f"A server waits for an answer. {HOW_TO_ANSWER}")
            if not reply.text:
                other = "with the final answer to end the task" if self._user is None else "with a message to the user"
                raise InvalidAction(f"The reply is empty. Call a tool with {EXAMPLE}, or reply {other}.")
            return await self._talk(reply.text)
        prepared = self._prepared(reply.calls)
        ending = _ending_of(prepared)
        if ending is not None:
            if self._running is not None:
                await self._running.end()
                self._take_results()
            return await self._end(ending)
        if self._asked is not None:
            tool, arguments = prepared[0]
            try:
                self._asked.answer(None if tool is DECLINE else sendable_json(self._name.real(arguments)))
            except ValueError as error:
                raise InvalidAction(f"The answer cannot be sent: {error}. {HOW_TO_ANSWER}") from error
            self._asked, self._answer_tools = None, {}
        else:
            assert self._session is not None
            self._running = RunningCalls(self._session, prepared, self._name.real, self.call_timeout)
        assert self._running is not None
        if (asked := await self._running.wait()) is not None:
            return Outcome(self._request(*asked), {"task": 0.0})
        called = self._take_results()
        images = [image for _, result in called for image in result.images]
        if images and self.max_images:
            self._images = await asyncio.to_thread(data_urls, images, self.max_images)
        changes = await self._changes_of_tools()
        observation = results_text(
            called,
            max_result_chars=self.max_result_chars,
            max_chars=self.observation_space.max_length - len(LOST) - len(changes),  # type: ignore[attr-defined]
        )
        observation += changes
        assert self._session is not None
        if self._session.lost:
            lost = {"stop_reason": StopReason.SERVER_LOST.value}
            return Outcome(observation + LOST, {"task": 0.0}, terminated=True, info=lost)
        return Outcome(observation, {"task": 0.0})

    async def _talk(self, text: str) -> Outcome:
        """Pass a reply without a call to the user; without one, it is the final answer."""
        messages = self._calls.messages
        if self._user is not None:
            text = bounded(text)  # a check must not find what the user has not read
            messages.append({"role": "assistant", "content": text})
            try:
                message = await self._user.reply(messages)
            except UserLost as lost:
                _logger.warning("%s; the episode ends unsolved", lost)
                return Outcome(USER_LOST, {"task": 0.0}, True, info={"stop_reason": StopReason.USER_LOST.value})
            assert self._session is not None
            if self._session.lost:  # in a call of the user, which does what the model says
                reason = {"stop_reason": StopReason.SERVER_LOST.value}
                return Outcome(LOST.strip(), {"task": 0.0}, terminated=True, info=reason)
            if message is not None:
                messages.append({"role": "user", "content": message})
                return Outcome(user_message(message), {"task": 0.0})
        return await self._end(ToolEpisodeEnd(answer=text))

    def _prepared(self, calls: Sequence[FunctionCall]) -> list[tuple[MCPTool, dict[str, Any]]]:
        """Return each call's tool and arguments, or raise for all of them: the model must know which calls were made.

        Raises:
            InvalidAction: There are too many calls, or one is wrong.
        """
        if len(calls) > self.max_calls:
            raise InvalidAction(
                f"The reply has {len(calls)} tool calls, and at most {self.max_calls} are taken; none was sent."
            )
        several, work = len(calls) > 1, ValidationBudget()
        if several and self._asked is not None:
            raise InvalidAction(f"A server waits for an answer, and no other call is sent before. {HOW_TO_ANSWER}")
        prepared = []
        for number, call in enumerate(calls, 1):
            tool = self.available_tools.get(call.name)
            if tool is None:
                raise InvalidAction(_no_such_tool(call.name, number if several else 0, self.available_tools))
            if several and tool in ENDINGS:
                raise InvalidAction(
                    f"Call {number} is {call.name!r}, which ends the task; it must be the only call of its reply. None "
                    "was sent."
                )
            try:
                prepared.append((tool, checked_arguments(call, tool, number if several else 0, work=work)))
            except InvalidAction as error:
                raise InvalidAction(f"{error}{' No other call was sent either.' * several}") from error
        return prepared

    def _take_results(self) -> list[tuple[str, ToolResult]]:
        """Record the calls that are answered; return the tool's name and the result of each."""
        assert self._running is not None
        running, self._running = self._running, None
        self._asked, self._answer_tools = None, {}
        called = []
        for (tool, arguments), result in zip(running.calls, running.results()):
            self._calls.add(tool.name, arguments, result)
            self._errors += result.is_error
            called.append((tool.name, self._name.hidden(result)))
        return called

    def _request(self, server: str, request: ServerRequest) -> str:
        """Let the model answer a request of a server in its next reply; return what to tell it."""
        tools = answer_tools(request)
        self._asked, self._answer_tools = request, {tool.name: tool for tool in [*tools, *self._endings]}
        text = self._name.without_path(ToolResult(request.text).shortened(self.max_result_chars))
        observation = request_text(server, request.wanted, text, tools, self.max_tools_chars)
        return observation[: self.observation_space.max_length]  # type: ignore[attr-defined]

    async def _changes_of_tools(self) -> str:
        """Follow changes of the servers' tools; return what to tell the model, or ``""``."""
        assert self._session is not None
        assert self._instance is not None
        if not await self._session.refresh(self.call_timeout):
            return ""
        before = self._available_tools
        self._available_tools = _offered(
            _of_model(self._session.tools, self._instance), self._instance.tools, self._endings
        )
        longest: int = self.observation_space.max_length // 3  # type: ignore[attr-defined]
        return changed_tools(before, self._available_tools, self.max_tools_chars)[:longest]

    async def _end(self, end: ToolEpisodeEnd) -> Outcome:
        assert self._instance is not None
        assert self._session is not None
        self._answer = (end.answer or "")[:_ANSWER_CHARS]
        self._graded = graded = await self._instance.graded(end, self._session, self._calls)
        done = {1.0: "done", 0.0: "not done"}.get(graded.score, "partly done")
        observation = f"The task is {done} as asked."
        return Outcome(observation, {"task": graded.score}, terminated=True, success=graded.passed)

    async def _async_end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def async_close(self) -> None:
        await super().async_close()
        close = getattr(self._users, "close", None)
        if self._owns_users and close is not None:
            await asyncio.to_thread(close)

    def _tools(self) -> str:
        return tools_json(self._available_tools.values())

    def _add_info(self, info: dict[str, Any]) -> None:
        info["tools_called"] = sum(not call.by_user for call in self._calls.calls)
        info["tool_errors"] = self._errors
        info["answer"] = self._answer
        info["check_components"] = dict(self._graded.components)
        info["check_error"] = self._graded.error
        info["template"] = self._template
        if self.max_images:
            # A reply without an action leaves those of the turn before.
            info["images"] = json.dumps([] if info["invalid_action"] else self._images)

    @property
    def available_tools(self) -> Mapping[str, MCPTool]:
        """The tools of the episode by name, including those that end it; while a server waits for an answer, those that
        give it."""
        return self._answer_tools or self._available_tools

    @property
    def turn(self) -> int:
        """Number of replies in this episode."""
        return self._turn

    @property
    def workspace(self) -> Path:
        """The episode's directory, which is removed when the episode is over.

        Raises:
            TaskError: No episode is running.
        """
        if self._session is None:
            raise TaskError("no episode is running, so there is no workspace; call reset() first")
        return self._session.workspace

    def render(self) -> str | np.ndarray | None:
        """Return the task and each reply with its observation, for ``render_mode="ansi"``."""
        if self.render_mode != "ansi":
            return None
        return transcript(self.task.task_id, self._instance.goal if self._instance else "", self._log)

    def _env_state(self) -> dict[str, Any]:
        raise NotImplementedError(
            "MCPEnv has no get_state, set_state or fork: the state of an episode is in its servers and cannot be saved"
        )


def _need(*modules: str) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f"rllm/MCP-v0 needs {' and '.join(missing)}: pip install 'rllm-gym[mcp]'", name=missing[0]
        )


def _check_count(name: str, value: Any, minimum: int, maximum: int | None = None) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < minimum or (maximum is not None and value > maximum):
        bounds = f"at least {minimum}" if maximum is None else f"{minimum} to {maximum}"
        raise ValueError(f"{name}={value!r} must be a whole number, {bounds}")


def _check_seconds(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{name}={value!r} must be a number of seconds > 0")


def _is_of_user(tool: MCPTool, case: ToolTaskInstance) -> bool:
    names = (tool.name, tool.remote_name)
    return any(
        name.startswith(given[:-1]) if given.endswith("*") else name == given
        for given in case.user_tools
        for name in names
    )


def _of_model(tools: Sequence[MCPTool], case: ToolTaskInstance) -> list[MCPTool]:
    """Return the tools without those of the user."""
    return [tool for tool in tools if not _is_of_user(tool, case)]


def _available_tools(
    tools: Sequence[MCPTool], allowed: Sequence[str] | None, endings: Sequence[MCPTool]
) -> dict[str, MCPTool]:
    """Return the server tools that the task allows, and those that end the episode."""
    known = {name for tool in tools for name in (tool.name, tool.remote_name)}
    for name in allowed or ():
        if name not in known:
            raise TaskError(f"its servers have no tool {name!r}; they have {', '.join(tool.name for tool in tools)}")
    return _offered(tools, allowed, endings)


def _offered(tools: Sequence[MCPTool], allowed: Sequence[str] | None, endings: Sequence[MCPTool]) -> dict[str, MCPTool]:
    chosen = [tool for tool in tools if allowed is None or tool.name in allowed or tool.remote_name in allowed]
    return {tool.name: tool for tool in [*chosen, *endings]}


def _no_such_tool(name: str, number: int, available: Mapping[str, MCPTool]) -> str:
    near = [known for known in available if known.endswith(f"__{name}")][:3]
    near = near or difflib.get_close_matches(name[:100], available, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    names = ", ".join(available)
    if len(names) > _NAMES_CHARS:
        names = f"{names[:_NAMES_CHARS]}…"
    which = f" (call {number}); no call was sent" if number else ""
    return f"There is no tool {name.encode('utf-8', 'replace').decode()[:80]!r}{which}.{hint} The tools are {names}."


def _ending_of(prepared: Sequence[tuple[MCPTool, dict[str, Any]]]) -> ToolEpisodeEnd | None:
    tool, arguments = prepared[0]
    if tool not in ENDINGS:
        return None
    if tool is not FINISH:
        return ToolEpisodeEnd(infeasible=arguments["reason"])
    answer = arguments.get("answer")
    if answer is None or isinstance(answer, str):
        return ToolEpisodeEnd(answer=answer or "")
    return ToolEpisodeEnd(answer=json.dumps(answer, ensure_ascii=False))


def _built_in(
    templates: Mapping[str, ToolTaskTemplate],
    difficulty: Any,
    split: str | None,
    seed: int,
    num_tasks: int | None,
    of_rows: Mapping[str, Any],
) -> TaskSource:
    for option in of_rows:
        raise TaskError(f"{option}= applies to your own rows only; set tasks=, or omit it")
    return template_tasks(templates, "mcp", difficulty=difficulty, split=split, seed=seed, size=num_tasks)


def _own(
    tasks: Any, split: str | None, num_tasks: int | None, defaults: Mapping[str, Any], built_in: Mapping[str, Any]
) -> TaskSource:
    for option, value in built_in.items():
        if value is not None:
            raise TaskError(f"{option}={value!r:.80} selects built-in tasks; it cannot be combined with tasks=")
    read = ToolRowParser(defaults, trusted=not (isinstance(tasks, str) and tasks.startswith("hf:")))
    name = "mcp" if not isinstance(tasks, str | os.PathLike) else None
    source = load_tasks(tasks, name=name, split=split, convert=read)
    if num_tasks is None:
        return source
    return (source if isinstance(source, Taskset) else Taskset.from_rows(source, convert=read)).take(num_tasks)
