"""Errands in a real browser, on sites built in or one's own: actions by element number, reward by the end state."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rllm_gym.core import Task, TaskError, TaskSource
from rllm_gym.data import Taskset, load_tasks
from rllm_gym.envs.web.errands import errand_tasks, templates_of
from rllm_gym.envs.web.judging import Case, Ending, ErrandCase, PageCase, set_up_errand
from rllm_gym.envs.web.page_env import MAX_CHARS, ObservationMode, PageEnv
from rllm_gym.envs.web.page_state import PageState
from rllm_gym.envs.web.rows import PageRow, read_row, row_to_web_task
from rllm_gym.parsing.browser_actions import BrowserAction
from rllm_gym.sites.errand import Errand, Template

_HTML_CHARS = 2_000_000
CHECK_TIMEOUTS_S = (0.1, 600.0)


class WebEnv(PageEnv):
    """Do an errand in a web browser.

    **Description**: A real Chromium shows a site, and the goal says what is to be done on it or found out. The sites
    are built in (shop, forum, wiki, calendar, mail, issue tracker, admin tables; served inside this process, without
    a network), or servers of one's own. Every episode has a browser context of its own, with nothing of another in
    it; beyond the sites of the task the network is closed.

    **Action space**: Any text; it ends with one action, such as ``click(12)``, in a fenced block, alone on the last
    line, or as a tool call: ``click``, ``fill``, ``type``, ``clear``, ``check``, ``uncheck``, ``select``, ``press``,
    ``hover``, ``focus``, ``drag``, ``scroll``, ``goto``, ``back``, ``forward``, ``reload``, ``wait``, ``new_tab``,
    ``close_tab``, ``switch_tab``, with a picture ``mouse_click``, and to end it ``answer`` and ``report_infeasible``.
    Nothing of a reply is ever executed as code, and ``goto`` opens ``http`` and ``https`` URLs of the task alone.

    **Observation space**: Text: the goal (the first time with the actions and how to write them), what went wrong
    with the last action, the URL, the tabs, and the page as an outline of its roles, names, values and states, where
    everything that can be acted on has a number that it keeps. What was cut is said. With
    ``observation_mode="screenshot"`` or ``"both"`` a ``Dict`` of ``text`` and ``image``, an RGB picture of the
    viewport as ``uint8`` of shape (height, width, 3); with ``"screenshot"`` the text has the list of elements alone.

    **Starting state**: One task, by ``options={"task": index | task_id | Task}``, else drawn with the seed, at its
    first page. Nothing else is random.

    **Rewards**: ``task``: 1 if the task is solved when the episode ends, else 0. An errand on the built-in sites is
    solved if their state is exactly the one asked for, with nothing else changed, and ``answer("…")`` says what was
    asked for, where something was (a number, date, time, text, set or list, read as people write them). What cannot
    be done is solved by ``report_infeasible`` with nothing changed. A row of one's own is judged by its ``check``,
    its ``answer``, or both. A browser that breaks, or a check that raises, is an
    :class:`~rllm_gym.core.EnvironmentFault` and no reward.

    **Episode end**: Terminates with ``answer`` or ``report_infeasible``. When the turns run out the end state is
    looked at as well: if the task is solved without an answer it terminates with success, else it is truncated
    (``max_turns``). A last reply that cannot be read is truncated in any case.

    **Information**: The keys of :class:`~rllm_gym.core.TextEnv`, and ``url: str``, of the page, and
    ``action_error: str``, why the last action could not be done (``""`` if it could). ``tools`` has the actions as
    tool schemas.

    **Arguments**:

    >>> import gymnasium as gym, rllm_gym
    >>> env = gym.make("rllm/Web-v0", sites=["shop"], difficulty=1)  # doctest: +SKIP
    >>> observation, info = env.reset(seed=0)                       # doctest: +SKIP

    Args:
        tasks: ``None`` for the built-in errands; ``"path.jsonl"``, ``"path.parquet"``,
            ``"hf:repo[:config][@split]"``, a list of rows or tasks, or a :class:`~rllm_gym.data.Taskset`. Rows are
            ``{"url", "goal", "origins": [...], "check": "module:function", "id"?}`` with ``"answer": {"type",
            "value"}``, ``"infeasible": true`` and ``"data": {...}`` (for the check) if wanted, or built-in errands
            ``{"template", "seed", "difficulty"}``. ``check(state: PageState, answer: str | None) -> bool`` (it may be
            ``async``) is called when the episode ends; the answer is ``None`` where none was given. A row names code
            of yours that is run: take rows from people you trust.
        sites: Built-in sites to draw errands from, such as ``"shop"`` or ``["shop", "mail"]``; ``None`` for all.
        templates: Templates to draw from, by name (see ``rllm_gym.sites.TEMPLATES``) or
            :class:`~rllm_gym.sites.errand.Template` objects of one's own; ``None`` for all. With ``tasks``, what its
            rows may name beside the built-in ones.
        difficulty: Of errands: 1 (easy) to 5, a pair ``(lowest, highest)``, or ``None`` for every level there is.
        split: ``"train"``, ``"validation"`` or ``"test"``. Splits are made by the content of a task and share none.
            ``None`` is ``"train"`` for errands and every row of a file.
        task_seed: Another seed gives other errands.
        num_tasks: Number of tasks: the first so many rows, or errands (1,000,000 by default).
        max_turns: Actions the model has.
        observation_mode: ``"text"``, ``"screenshot"`` or ``"both"``.
        viewport: Width and height of the page in pixels.
        executable: The Chromium to use; ``None`` finds one.
        check_timeout_s: Seconds a check may take, 0.1 to 600; later is a fault.
        invalid_action_penalty: Taken from the reward where a reply holds no action.
        max_observation_chars: Bound of the observation's text; of a longer page the rest is cut.
        max_action_chars: Longest reply that is read.
        render_mode: ``"ansi"`` (the observation), ``"rgb_array"`` (the page as a picture) or ``None``.

    Raises:
        BrowserFault: No Chromium can be found; says the way out. Later, from ``reset`` and ``step``, that it broke.
        ModuleNotFoundError: ``pip install 'rllm-gym[web]'``.
        TaskError: The tasks cannot be used; row and way out are named.
        ValueError: Another argument is out of range.

    **Version history**: v0: first release.
    """

    def __init__(
        self,
        *,
        tasks: str | os.PathLike[str] | Iterable[Mapping[str, Any] | Task] | TaskSource | None = None,
        sites: str | Iterable[str] | None = None,
        templates: str | Template | Iterable[str | Template] | None = None,
        difficulty: int | tuple[int, int] | None = None,
        split: str | None = None,
        task_seed: int = 0,
        num_tasks: int | None = None,
        max_turns: int = 30,
        observation_mode: ObservationMode = "text",
        viewport: Sequence[int] = (1280, 720),
        executable: str | os.PathLike[str] | None = None,
        check_timeout_s: float = 30.0,
        invalid_action_penalty: float = 0.0,
        max_observation_chars: int = MAX_CHARS,
        max_action_chars: int = 1_000_000,
        render_mode: str | None = None,
    ) -> None:
        low, high = CHECK_TIMEOUTS_S
        if isinstance(check_timeout_s, bool) or not isinstance(check_timeout_s, int | float):
            raise ValueError(f"check_timeout_s={check_timeout_s!r} must be a number of seconds")
        if not low <= check_timeout_s <= high:
            raise ValueError(f"check_timeout_s={check_timeout_s!r} must be a number from {low:g} to {high:g}")
        if num_tasks is not None and (not isinstance(num_tasks, int) or isinstance(num_tasks, bool) or num_tasks < 1):
            raise ValueError(f"num_tasks={num_tasks!r} must be a whole number of at least 1, or None for all")
        self._templates = templates_of(templates, sites)
        if tasks is None:
            source: TaskSource = errand_tasks(
                self._templates, difficulty=difficulty, split=split, seed=task_seed, size=num_tasks
            )
        else:
            for name, value in (("sites", sites), ("difficulty", difficulty)):
                if value is not None:
                    raise TaskError(f"{name}={value!r} chooses among the errands; leave it out where tasks= is given")
            self._templates = templates_of() | self._templates
            source = _given_tasks(tasks, split, num_tasks)
        super().__init__(
            tasks=source,
            observation_mode=observation_mode,
            viewport=viewport,
            executable=executable,
            has_tabs=True,
            max_turns=max_turns,
            invalid_action_penalty=invalid_action_penalty,
            max_observation_chars=max_observation_chars,
            max_action_chars=max_action_chars,
            render_mode=render_mode,
        )
        self.check_timeout_s = float(check_timeout_s)
        self._case: Case | None = None

    @property
    def errand(self) -> Errand | None:
        """The errand of the episode with its solution, for demonstrations; ``None`` for rows of one's own."""
        return self._case.errand if isinstance(self._case, ErrandCase) else None

    async def _open_task(self, task: Task) -> None:
        case = self._case = await self._set_up(task)
        self._goal = case.goal
        await self._open(case.start, sites=case.sites, origins=case.origins)

    async def _set_up(self, task: Task) -> Case:
        try:
            row = read_row(task.data)
            if isinstance(row, PageRow):
                return PageCase(row, check_timeout_s=self.check_timeout_s)
            template = self._templates.get(row.template)
            if template is None:
                raise TaskError(f"there is no template {row.template!r}; there are {', '.join(self._templates)}")
            return await set_up_errand(template, row)
        except TaskError as error:
            raise TaskError(f"task {task.task_id!r}: {error}") from error

    async def _after(self, action: BrowserAction) -> tuple[float | None, bool]:
        ending = Ending()
        if action.name == "answer":
            ending = Ending(answer=action.text or "")
        elif action.name == "report_infeasible":
            ending = Ending(infeasible=action.text or "")
        elif self._turn + 1 < self.max_turns:
            return None, False
        assert self._case is not None
        solved = await self._case.solved(ending, lambda: self._state(ending))
        # Turns that ran out are truncation, not an end that the model chose.
        return (float(solved) if solved or ending.said else None), solved

    async def _state(self, ending: Ending) -> PageState:
        view, session = await self._look(), self._open_session
        html = await session.evaluate(f"document.documentElement.outerHTML.slice(0, {_HTML_CHARS})")
        return PageState(
            url=view.url,
            title=view.title,
            text=view.text,
            elements=view.elements,
            html=html if isinstance(html, str) else "",
            tabs=tuple(view.tabs),
            goal=self._goal,
            infeasible=ending.infeasible,
            data=self.task.data.get("data") or {},
            _evaluate=lambda expression: asyncio.run(session.evaluate(expression)),
        )


def _given_tasks(tasks: Any, split: str | None, num_tasks: int | None) -> TaskSource:
    name = "web" if not isinstance(tasks, str | os.PathLike) else None
    source = load_tasks(tasks, name=name, split=split, convert=row_to_web_task)
    if num_tasks is None:
        return source
    if not isinstance(source, Taskset):
        source = Taskset.from_rows(source, convert=row_to_web_task)
    return source.take(num_tasks)
