"""The web environment: tasks in a real browser, actions by element number, reward by the end state."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rllm_gym.argument_checks import check_int
from rllm_gym.core import EnvironmentFault, Outcome, StopReason, Task, TaskError, TaskSource
from rllm_gym.data import Taskset, load_tasks
from rllm_gym.envs.task_templates import choose_templates, template_tasks
from rllm_gym.envs.web import sites as built_in
from rllm_gym.envs.web.browser.network_policy import origin_of
from rllm_gym.envs.web.page_env import MAX_CHARS, ObservationMode, PageEnv
from rllm_gym.envs.web.page_server import PageServer, start_server
from rllm_gym.envs.web.page_state import PageState, TakenAction
from rllm_gym.envs.web.rows import PageRow, read_row, row_to_web_task
from rllm_gym.envs.web.sites.task import WebTask, WebTaskTemplate
from rllm_gym.envs.web.task_instance import (
    PageTaskInstance,
    SiteTaskInstance,
    WebEpisodeEnd,
    WebTaskInstance,
    make_site_task_instance,
)
from rllm_gym.grading.user_checks import FAILED
from rllm_gym.parsing.browser_actions import BrowserAction

_HTML_CHARS = 2_000_000
CHECK_TIMEOUTS_S = (0.1, 600.0)
SERVER_LOST = "The server of this site has ended, and the task with it."

_logger = logging.getLogger(__name__)


class WebEnv(PageEnv):
    """Do a task in a web browser.

    ## Description
    A real Chromium shows a site, and the goal says what to do on it or what to find out. The sites are built in (shop,
    forum, wiki, calendar, mail, issue tracker, admin tables; served by this process, without a network) or
    user-provided servers. Every episode has its own browser context, which shares nothing with others. The network
    policy allows only the sites of the task.

    ## Action space
    Any text that ends with one action, such as ``click(12)``, in a fenced block, alone on the last line, or as a tool
    call: ``click``, ``dblclick``, ``fill``, ``type``, ``clear``, ``check``, ``uncheck``, ``select``, ``press``,
    ``keyboard_down``, ``keyboard_up``, ``select_text``, ``hover``, ``focus``, ``drag``, ``scroll``, ``scroll_to``,
    ``handle_dialog``, ``goto``, ``back``, ``forward``, ``reload``, ``wait``, ``new_tab``, ``close_tab``,
    ``switch_tab``; with coordinates ``mouse_move``, ``mouse_click``, ``mouse_dblclick``, ``mouse_down``, ``mouse_up``,
    ``mouse_drag_and_drop``, ``drag_to`` and ``mouse_wheel``; if the task has files ``upload_file`` and
    ``mouse_upload_file``; and to end the episode ``answer`` and ``report_infeasible``. BrowserGym's names and
    parameters are accepted as well. The prompt describes actions with coordinates if there is a picture or ``boxes``
    is set. No part of a reply is ever executed as code, and ``goto`` opens only ``http`` and ``https`` URLs of the
    task.

    ## Observation space
    Text: the goal (in the first observation with the actions and their format), the error message of the last action,
    the URL, the tabs, and the page as an outline of roles, names, values and states, in which every interactive element
    has a number that it keeps. While a dialog of the browser (``confirm``, ``prompt``) waits for ``handle_dialog``, the
    text shows the dialog instead of the page. Cuts are marked. With ``observation_mode="screenshot"`` or ``"both"``, a
    ``Dict`` of ``text`` and ``image``, an RGB picture of the viewport as ``uint8`` of shape (height, width, 3); with
    ``"screenshot"`` the text contains only the list of elements.

    ## Starting state
    One task, chosen by ``options={"task": index | task_id | Task}``, else drawn with the seed, at its first page.
    Nothing else is random.

    ## Rewards
    ``task``: 1 if the task is solved when the episode ends, else 0. A task on the built-in sites is solved if their
    state is exactly the requested one, with nothing else changed, and, if the goal asks for an answer, ``answer("…")``
    gives it (a number, date, time, text, set or list, in the usual notations). A task that cannot be done is solved by
    ``report_infeasible`` with nothing changed. A user-provided row is graded by its ``check``, its ``answer``, or both;
    a check may return a part of the reward, which counts if the model ended the episode.
    A check that raises, exceeds its deadline or returns anything else gives 0 and a logged warning, because the model
    may have caused it. If it cannot work, which is tried before the first action, it is an environment fault. A browser
    that ends is a fault.

    ## Episode end
    Terminates with ``answer`` or ``report_infeasible``. When no turns are left, the end state is checked as well: if
    the task is solved without an answer, the episode terminates with success, else it is truncated (``max_turns``). It
    is always truncated if the last reply cannot be parsed. If the program that serves a row ends after an action, the
    episode terminates with reward 0 (``server_lost``).

    ## Information
    The keys of :class:`~rllm_gym.core.TextEnv`, and ``url: str``, of the page, ``action_error: str``, why the last
    action failed (``""`` if it did not), ``check_components: dict[str, float]``, the named components of a check at the
    end (else empty), and ``check_error: str``, the assertion that failed in a check, or why it has not finished (else
    ``""``). ``tools`` contains the actions as tool schemas. With ``boxes``, ``boxes: str`` is a JSON object of the
    numbered elements: ``{"12": [left, top, width, height]}``, in pixels of the view.

    ## Arguments

    >>> import gymnasium as gym, rllm_gym
    >>> env = gym.make("rllm/Web-v0", sites=["shop"], difficulty=1)  # doctest: +SKIP
    >>> observation, info = env.reset(seed=0)                       # doctest: +SKIP

    Args:
        tasks: ``None`` for the built-in tasks; ``"path.jsonl"``, ``"path.parquet"``, ``"hf:repo[:config][@split]"``, a
            list of rows or tasks, or a :class:`~rllm_gym.data.Taskset`. Rows are ``{"url", "goal", "origins": [...],
            "check": "module:function", "id"?}`` with optional ``"answer": {"type", "value"}``, ``"infeasible": true``,
            ``"files": {name: content}`` (for uploads), ``"setup": "module:function"`` (prepares the server, and returns
            cookies to log in), ``"server": {"command", "args"}`` (a program that serves ``url``, with ``{port}``,
            started for the episode), ``"workspace": {path: content}`` (initial files of its directory) and ``"data":
            {...}`` (for the check), or built-in tasks ``{"template", "seed", "difficulty"}``. ``check(state: PageState,
            answer: str | None)`` (it may be ``async``) is called when the episode ends; the answer is ``None`` if none
            was given. It returns a truth value or a number from 0 to 1, or a pair of it and named components (``{name:
            number from 0 to 1}``). A row names code that is run on this machine: use only rows that you trust. Rows of
            the hub must not name any.
        sites: Built-in sites to draw tasks from, such as ``"shop"`` or ``["shop", "mail"]``; ``None`` for all.
        templates: Templates to draw from, by name (see ``rllm_gym.envs.web.sites.TEMPLATES``) or your own
            :class:`~rllm_gym.envs.web.sites.task.WebTaskTemplate` objects; ``None`` for all. With ``tasks``, the
            templates that its rows may name in addition to the built-in ones.
        difficulty: Of built-in tasks: 1 (easy) to 5, a pair ``(lowest, highest)``, or ``None`` for every level.
        split: ``"train"``, ``"validation"`` or ``"test"``. The split of a task is decided by its content; no two
            splits share a task. ``None`` means ``"train"`` for built-in tasks and every row of a file.
        task_seed: A different seed gives different built-in tasks.
        num_tasks: Number of tasks: the first rows of a file, or built-in tasks (1,000,000 by default).
        max_turns: Number of actions.
        observation_mode: ``"text"``, ``"screenshot"`` or ``"both"``.
        viewport: Width and height of the page in pixels.
        boxes: Whether the text shows where elements, pictures and shapes are (``box="x,y WxH"``, in pixels), the prompt
            describes the actions with coordinates, and ``info["boxes"]`` contains the boxes.
        marks: Whether the picture shows a numbered box around every numbered element.
        executable: The Chromium to use; ``None`` searches for one.
        check_timeout: Time limit in seconds for a check, 0.1 to 600.
        invalid_action_penalty: Subtracted from the reward if a reply contains no action.
        max_observation_chars: Bound of the observation's text; a longer page is cut.
        max_action_chars: Longest accepted reply.
        render_mode: ``"ansi"`` (the observation), ``"rgb_array"`` (the page as a picture) or ``None``.

    Raises:
        BrowserFault: No Chromium was found; the message names a solution. ``reset`` and ``step`` raise it if the
            browser fails.
        ModuleNotFoundError: ``pip install 'rllm-gym[web]'``.
        TaskError: The tasks are unusable; the message names the row and a solution.
        ValueError: Another argument is out of range.

    ## Version history
    v0: first release.
    """

    def __init__(
        self,
        *,
        tasks: str | os.PathLike[str] | Iterable[Mapping[str, Any] | Task] | TaskSource | None = None,
        sites: str | Iterable[str] | None = None,
        templates: str | WebTaskTemplate | Iterable[str | WebTaskTemplate] | None = None,
        difficulty: int | tuple[int, int] | None = None,
        split: str | None = None,
        task_seed: int = 0,
        num_tasks: int | None = None,
        max_turns: int = 30,
        observation_mode: ObservationMode = "text",
        boxes: bool = False,
        marks: bool = False,
        viewport: Sequence[int] = (1280, 720),
        executable: str | os.PathLike[str] | None = None,
        check_timeout: float = 30.0,
        invalid_action_penalty: float = 0.0,
        max_observation_chars: int = MAX_CHARS,
        max_action_chars: int = 1_000_000,
        render_mode: str | None = None,
    ) -> None:
        low, high = CHECK_TIMEOUTS_S
        if isinstance(check_timeout, bool) or not isinstance(check_timeout, int | float):
            raise ValueError(f"check_timeout={check_timeout!r} must be a number of seconds")
        if not low <= check_timeout <= high:
            raise ValueError(f"check_timeout={check_timeout!r} must be a number from {low:g} to {high:g}")
        if num_tasks is not None:
            check_int("num_tasks", num_tasks, otherwise="None for all")
        self._templates = choose_templates(built_in.templates(), WebTaskTemplate, templates, sites, "site")
        if tasks is None:
            source: TaskSource = template_tasks(
                self._templates, "web", difficulty=difficulty, split=split, seed=task_seed, size=num_tasks
            )
        else:
            for name, value in (("sites", sites), ("difficulty", difficulty)):
                if value is not None:
                    raise TaskError(f"{name}={value!r} selects built-in tasks; it cannot be combined with tasks=")
            self._templates = built_in.templates() | self._templates
            source = _tasks_from_argument(tasks, split, num_tasks)
        super().__init__(
            tasks=source,
            observation_mode=observation_mode,
            boxes=boxes,
            marks=marks,
            viewport=viewport,
            executable=executable,
            has_tabs=True,
            max_turns=max_turns,
            invalid_action_penalty=invalid_action_penalty,
            max_observation_chars=max_observation_chars,
            max_action_chars=max_action_chars,
            render_mode=render_mode,
        )
        self.check_timeout = float(check_timeout)
        self.max_step_s += self.check_timeout
        self._instance: WebTaskInstance | None = None
        self._server: PageServer | None = None
        self._served: Any = None  # what the server was started for
        self._taken: list[TakenAction] = []

    @property
    def web_task(self) -> WebTask | None:
        """The built-in task of the episode with its solution, for demonstrations; ``None`` for user-provided rows."""
        return self._instance.task if isinstance(self._instance, SiteTaskInstance) else None

    async def _open_task(self, task: Task) -> None:
        case = self._instance = await self._set_up(task)
        self._graded = FAILED
        self._goal = case.goal
        self._taken = []
        await self._end_session()  # the page of the last episode may still send requests to what is prepared now
        # Drawn only if it is used, so that the other tasks of a seed do not depend on it.
        seed = functools.cache(lambda: int(self.np_random.integers(2**31)))
        server = await self._server_of(case, seed)
        storage = await case.set_up(seed, server)
        await self._open(
            case.start,
            sites=case.sites,
            origins=case.origins,
            servers={} if server is None else {origin_of(case.start): server.port},
            files=case.files,
            storage=storage,
        )

    async def _server_of(self, case: WebTaskInstance, seed: Callable[[], int]) -> PageServer | None:
        """Return the running server of a task: that of the last episode, if it may be used again, or a new one."""
        row = case.row if isinstance(case, PageTaskInstance) else None
        command, files = (None, {}) if row is None else (row.server, row.workspace)
        wanted = command, files, case.start
        server = self._server
        if server is not None:
            same = command is not None and command.reuse and wanted == self._served
            if same and server.is_of_this_process and not server.has_ended:
                return server
            await self._end_server()
        if command is not None:
            self._server = await start_server(command, case.start, seed(), files)
            self._served = wanted
        return self._server

    async def _end_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    async def _async_end(self) -> None:
        try:
            await super()._async_end()
        finally:
            await self._end_server()

    async def _set_up(self, task: Task) -> WebTaskInstance:
        try:
            row = read_row(task.to_json()["data"])  # lists and dicts again, as a check gets them from its rows
            if isinstance(row, PageRow):
                return PageTaskInstance(row, check_timeout=self.check_timeout)
            template = self._templates.get(row.template)
            if template is None:
                raise TaskError(f"unknown template {row.template!r}; choose from {', '.join(self._templates)}")
            return await make_site_task_instance(template, row)
        except TaskError as error:
            raise TaskError(f"task {task.task_id!r}: {error}") from error

    def _add_info(self, info: dict[str, Any]) -> None:
        super()._add_info(info)
        info["check_components"] = dict(self._graded.components)
        info["check_error"] = self._graded.error

    async def _after(self, action: BrowserAction) -> tuple[float | None, bool]:
        ending = WebEpisodeEnd()
        if action.name == "answer":
            ending = WebEpisodeEnd(answer=action.text or "")
        elif action.name == "report_infeasible":
            ending = WebEpisodeEnd(infeasible=action.text or "")
        elif self._turn + 1 < self.max_turns:
            return None, False
        assert self._instance is not None
        can_be_caused = self._open_session.can_be_caused_by_model
        self._graded = graded = await self._instance.graded(ending, self._state, can_be_caused)
        # Running out of turns is a truncation, because the model did not choose to end the episode.
        return (graded.score if graded.passed or ending.ended_by_model else None), graded.passed

    async def _take(self, action: BrowserAction) -> None:
        url = self.page.url
        await super()._take(action)
        self._taken.append(TakenAction(action, url, self._error))

    def _env_state(self) -> dict[str, Any]:
        if not isinstance(self._instance, SiteTaskInstance):
            raise NotImplementedError(
                "the state of a user-provided server cannot be saved or copied; repeat the same actions after "
                "reset(options={'task': …})"
            )
        return super()._env_state()

    async def _async_act(self, action: str) -> Outcome:
        outcome = await super()._async_act(action)
        server = self._server
        if outcome.terminated or server is None or not server.has_ended:
            return outcome
        words = f"the server of task {self.task.task_id!r} ended: {await server.how_it_ended()}"
        if not await self._open_session.can_be_caused_by_model():
            raise EnvironmentFault(words, kind="server_died")
        _logger.warning("%s; the episode ends unsolved", words)
        observation = f"{SERVER_LOST}\n{outcome.observation}"[: self._max_chars]
        return Outcome(observation, {"task": 0.0}, True, info={"stop_reason": StopReason.SERVER_LOST.value})

    async def _begin_on_page(self, task: Task) -> str:
        fault: EnvironmentFault | None = None
        observation = ""
        try:
            observation = await super()._begin_on_page(task)
            assert self._instance is not None
            await self._instance.try_check(task.task_id, self._state)
        except EnvironmentFault as error:
            fault = error
        if self._server is not None and self._server.has_ended:
            words = f"the server of task {task.task_id!r} ended before the first action"
            raise EnvironmentFault(f"{words}: {await self._server.how_it_ended()}", kind="server_died") from fault
        if fault is not None:
            raise fault
        return observation

    async def _state(self, end: WebEpisodeEnd) -> PageState:
        view, session = await self._observe(), self._open_session
        html: Any = ""
        with contextlib.suppress(ValueError):
            html = await session.evaluate(f"(document.documentElement?.outerHTML ?? '').slice(0, {_HTML_CHARS})")
        return PageState(
            url=view.url,
            title=view.title,
            text=view.text,
            elements=view.elements,
            html=html if isinstance(html, str) else "",
            tabs=tuple(view.tabs),
            goal=self._goal,
            infeasible=end.infeasible,
            data=self._instance.row.data if isinstance(self._instance, PageTaskInstance) else {},
            actions=tuple(self._taken),
            workspace=None if self._server is None else self._server.workspace,
            server_url="" if self._server is None else self._server.url,
            _evaluate=lambda expression: asyncio.run(session.evaluate(expression)),
        )


def _tasks_from_argument(tasks: Any, split: str | None, num_tasks: int | None) -> TaskSource:
    name = "web" if not isinstance(tasks, str | os.PathLike) else None
    trusted = not (isinstance(tasks, str) and tasks.startswith("hf:"))
    source = load_tasks(tasks, name=name, split=split, convert=functools.partial(row_to_web_task, trusted=trusted))
    if num_tasks is None:
        return source
    if not isinstance(source, Taskset):
        source = Taskset.from_rows(source, convert=row_to_web_task)
    return source.take(num_tasks)
