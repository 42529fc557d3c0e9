"""The base class of web page environments: the browser session, observations, and the execution of actions."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import gymnasium
import numpy as np

from rllm_gym.core import AsyncTextEnv, EnvironmentFault, Outcome, Task, TaskError
from rllm_gym.core.async_env import shared_loop
from rllm_gym.envs.web.browser.storage_state import StorageState
from rllm_gym.envs.web.sites.http import Handler
from rllm_gym.parsing.browser_actions import (
    ACTIONS,
    BrowserAction,
    action_tools,
    describe_actions,
    parse_browser_action,
)

if TYPE_CHECKING:
    from rllm_gym.envs.web.browser import BrowserPool, BrowserSession
    from rllm_gym.envs.web.browser.observation import PageView

ObservationMode = Literal["text", "screenshot", "both"]

SIDES = (64, 4_096)
"""Shortest and longest side of a viewport, in pixels."""

_RULES = """\
You work in a web browser, one action a turn. Think first if you like, then write the action alone in a last fenced \
block:
```
click(12)
```
It can be one of these; [12] and the like are the numbers of elements in the {shown} below. Only the sites of the task \
can be reached.
{actions}
"""
_SHOWN = {"text": "page", "screenshot": "list", "both": "page"}
_CUT = "\n[The rest was left out: it is too long.]"

PAGE_CHARS = 20_000
"""Characters of a page that a check sees."""

LEAST_PAGE_CHARS = 1_000
_URL_CHARS = 2_000

MAX_CHARS = 24_000
"""Default limit of an observation in characters: about 6,000 tokens."""


class PageEnv(AsyncTextEnv):
    """A base class of web page environments. Subclasses implement :meth:`_open_task` and :meth:`_after`.

    A page cannot be copied, with the state of its scripts. ``set_state`` and ``fork`` open the task again in a new
    browser context and repeat the actions of the episode.

    Args:
        observation_mode: ``"text"``, or ``"screenshot"`` or ``"both"``, with a picture.
        viewport: Width and height of the page in pixels.
        executable: The Chromium to use; ``None`` searches for one.
        has_tabs: Whether the prompt describes the actions for tabs.
        boxes: Whether the text and ``info["boxes"]`` locate elements, and the prompt describes the mouse.
        marks: Whether the picture shows the numbers and boxes of the elements.
        **arguments: See :class:`~rllm_gym.core.TextEnv`.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # type: ignore[misc]
    bound_to_loop: ClassVar[bool] = False  # the browser has its own event loop and works with every other
    max_step_s = 300.0  # the session ends actions and observations that take longer

    def __init__(
        self,
        *,
        observation_mode: ObservationMode,
        viewport: Sequence[int],
        executable: str | os.PathLike[str] | None,
        has_tabs: bool,
        boxes: bool,
        marks: bool,
        **arguments: Any,
    ) -> None:
        if observation_mode not in _SHOWN:
            raise ValueError(f"observation_mode={observation_mode!r} is not one of {', '.join(map(repr, _SHOWN))}")
        for name, value in (("boxes", boxes), ("marks", marks)):
            if not isinstance(value, bool):
                raise ValueError(f"{name}={value!r} must be True or False")
        if marks and observation_mode == "text":
            raise ValueError("marks=True draws into the picture; it needs observation_mode='screenshot' or 'both'")
        super().__init__(**arguments)
        self.observation_mode = observation_mode
        self.viewport = _viewport(viewport)
        self._executable = None if executable is None else os.fspath(executable)
        self._has_tabs = has_tabs
        self._has_image = observation_mode != "text"
        self._pictures = self._has_image or self.render_mode == "rgb_array"
        self._boxes, self._marks = boxes, marks
        self._files: Mapping[str, bytes] = {}
        if self._has_image:
            width, height = self.viewport
            picture = gymnasium.spaces.Box(0, 255, (height, width, 3), np.uint8)
            both = gymnasium.spaces.Dict({"text": self.observation_space, "image": picture})
            self.observation_space = both  # type: ignore[assignment]
        if importlib.util.find_spec("playwright") is None:
            raise ModuleNotFoundError("web pages need Playwright: pip install 'rllm-gym[web]'", name="playwright")
        self._pool()  # without a Chromium, gym.make() raises
        self._session: BrowserSession | None = None
        self._view: PageView | None = None
        self._actions: list[BrowserAction] = []
        self._goal = ""
        self._error = ""

    # Implemented by a subclass

    @abstractmethod
    async def _open_task(self, task: Task) -> None:
        """Call :meth:`_open` with the task's sites, bring up its first page, and set ``_goal``."""

    @abstractmethod
    async def _after(self, action: BrowserAction) -> tuple[float | None, bool]:
        """Return the task's reward and whether the task is solved, ``(None, False)`` while the episode continues.

        Called after each action; ``answer`` and ``report_infeasible`` have no other effect.
        """

    # Episode

    @property
    def goal(self) -> str:
        """The goal of this episode, as shown to the model."""
        return self._goal

    @property
    def page(self) -> PageView:
        """The last observed state of the page: its text, its elements by number, and the picture if there is one.

        Raises:
            gymnasium.error.ResetNeeded: No episode has started.
        """
        if self._view is None:
            raise gymnasium.error.ResetNeeded("there is no page yet: call reset() first")
        return self._view

    async def async_reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, info = await super().async_reset(seed=seed, options=options)
        return self._with_picture(observation), info

    async def async_step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, *rest = await super().async_step(action)
        return self._with_picture(observation), *rest

    async def _async_begin(self, task: Task) -> str:
        try:
            return await self._begin_on_page(task)
        except BaseException:  # the context would stay open until the next reset
            await asyncio.shield(self._async_end())
            raise

    async def _begin_on_page(self, task: Task) -> str:
        self._goal = self._error = ""
        self._actions = []
        await self._open_task(task)
        rules = _RULES.format(shown=_SHOWN[self.observation_mode], actions=describe_actions(**self._kinds))
        if self._files:
            rules += f"Files that can be uploaded: {', '.join(map(json.dumps, self._files))}\n"
        head = f"Goal: {self._goal}\n\n{rules}"
        if len(head) + LEAST_PAGE_CHARS > self._max_chars:
            raise TaskError(
                f"task {task.task_id!r} needs {len(head)} characters above its page and {LEAST_PAGE_CHARS} for it, too "
                f"many for max_observation_chars={self._max_chars}; increase it"
            )
        return await self._shown(head)

    async def _async_act(self, action: str) -> Outcome:
        parsed = parse_browser_action(action)
        self._error = ""
        ends = parsed.name in ("answer", "report_infeasible")
        if not ends:
            await self._take(parsed)
        reward, solved = await self._after(parsed)
        if ends:
            return Outcome(f"The task is over.\nGoal: {self._goal}", {"task": reward or 0.0}, True, solved)
        rewards = {} if reward is None else {"task": reward}
        return Outcome(await self._shown(self._head()), rewards, reward is not None, solved)

    async def _take(self, action: BrowserAction) -> None:
        """Carry out an action on the page."""
        self._error = await self._open_session.act(action)
        self._actions.append(action)

    def _head(self) -> str:
        """Return the lines above the page, except in the first observation."""
        head = f"Goal: {self._goal}\n"
        return f"The last action failed: {self._error}\n{head}" if self._error else head

    async def _async_end(self) -> None:
        await self._end_session()

    async def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None and self._opened_in == os.getpid():
            await session.close()

    # Browser

    def _pool(self) -> BrowserPool:
        # Looked up on every call: after a fork, as in vector environments, the shared pool is a different one.
        from rllm_gym.envs.web.browser import shared_pool

        return shared_pool(self._executable)

    async def _open(
        self,
        url: str,
        *,
        sites: Mapping[str, Handler],
        origins: Sequence[str],
        servers: Mapping[str, int] | None = None,
        files: Mapping[str, bytes] | None = None,
        storage: StorageState | None = None,
    ) -> None:
        """Open a new context at ``url``; see :meth:`~rllm_gym.envs.web.browser.BrowserPool.open`."""
        await self._end_session()
        self._view = None
        self._files = files or {}
        self._session = await self._pool().open(
            sites=sites, origins=origins, servers=servers, viewport=self.viewport, files=self._files
        )
        self._opened_in = os.getpid()
        await self._session.goto(url, storage)

    @property
    def _open_session(self) -> BrowserSession:
        assert self._session is not None
        if self._opened_in != os.getpid():  # only that process runs the session's event loop: waiting would never end
            raise EnvironmentFault(
                f"the page of this episode belongs to process {self._opened_in}, and this process is a fork of it; "
                "call reset()",
                kind="browser_died",
            )
        return self._session

    async def _observe(self, chars: int = PAGE_CHARS) -> PageView:
        self._view = await self._open_session.observe(
            screenshot=self._pictures, chars=chars, boxes=self._boxes, marks=self._marks
        )
        return self._view

    # Observations

    @property
    def _max_chars(self) -> int:
        space = self.observation_space
        text = space["text"] if isinstance(space, gymnasium.spaces.Dict) else space
        return int(text.max_length)  # type: ignore[attr-defined]

    async def _shown(self, head: str) -> str:
        """Return the page below a head, within the bound of the observation space."""
        max_chars = self._max_chars - len(head) - 1
        view = await self._observe(max_chars)
        body = view.text if self.observation_mode != "screenshot" else _tab_summary(view)
        if len(body) > max_chars:  # for example if the bound is too small for the lines above the page
            body = body[: max(0, max_chars - len(_CUT))] + _CUT
        return f"{head}\n{body}"[: self._max_chars]

    def _with_picture(self, observation: str) -> Any:
        if not self._has_image:
            return observation
        assert self.page.image is not None
        return {"text": observation, "image": self.page.image.copy()}

    @property
    def _kinds(self) -> dict[str, bool]:
        """Which kinds of actions the model is offered."""
        return {"tabs": self._has_tabs, "mouse": self._has_image or self._boxes, "files": bool(self._files)}

    def _tools(self) -> str:
        return json.dumps(action_tools(**self._kinds))

    def _add_info(self, info: dict[str, Any]) -> None:
        info["url"] = self.page.url[:_URL_CHARS]
        if self._boxes:
            boxes = {number: element.box for number, element in self.page.elements.items() if element.box is not None}
            info["boxes"] = json.dumps(boxes)
        # A reply without an action leaves that of the turn before.
        info["action_error"] = "" if info["invalid_action"] else self._error

    def render(self) -> str | np.ndarray | None:
        """Return the latest observation (``"ansi"``) or the page as a picture (``"rgb_array"``)."""
        if self.render_mode != "rgb_array":
            return super().render()
        image = self.page.image
        return None if image is None else image.copy()

    # Saving and restoring state

    def _env_state(self) -> dict[str, Any]:
        # The page is part of the state only to check that the repeated actions lead to it.
        shown = None if self._done or self._view is None else [self._view.url, self._view.text]
        return {"actions": [asdict(action) for action in self._actions], "page": shown}

    def _restore_env_state(self, state: dict[str, Any]) -> None:
        actions, page = [_action_from_json(item) for item in state["actions"]], state["page"]
        shared_loop().run(self._repeat(actions, page))

    async def _repeat(self, actions: Sequence[BrowserAction], page: list[str] | None) -> None:
        """Begin the task again and repeat the actions.

        Raises:
            EnvironmentFault: They do not lead to the same page; kind ``"restore"``.
        """
        try:
            await self._async_begin(self.task)
            for action in actions:
                await self._take(action)
                await self._shown(self._head())
            if page is not None and page != [self.page.url, self.page.text]:
                raise EnvironmentFault(
                    f"the actions of the saved episode of {self.task.task_id!r} lead to another page now: either the "
                    "state was saved with other arguments of the environment, or the page changes by itself",
                    kind="restore",
                )
        except BaseException:
            self._done = True
            await asyncio.shield(self._async_end())
            raise


def _action_from_json(item: Mapping[str, Any]) -> BrowserAction:
    """Return an action of ``dataclasses.asdict``, as JSON has it.

    Raises:
        TypeError, ValueError: It is none.
    """
    if item["name"] not in ACTIONS:
        raise ValueError(f"there is no action {item['name']!r:.80}")
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in item.items()}
    return BrowserAction(**fields)


def _tab_summary(view: PageView) -> str:
    """Return what a picture does not show: URL, last action's result, and the numbers of interactive elements."""
    above, _, _ = view.text.partition("\nPage:\n")
    return "\n".join([above, "Elements:", *(element.text for element in view.elements.values())])


def _viewport(viewport: Any) -> tuple[int, int]:
    sides = tuple(viewport) if isinstance(viewport, tuple | list) else ()
    if len(sides) != 2 or not all(
        isinstance(side, int) and not isinstance(side, bool) and SIDES[0] <= side <= SIDES[1] for side in sides
    ):
        raise ValueError(f"viewport={viewport!r} must be (width, height) in pixels, each from {SIDES[0]} to {SIDES[1]}")
    return sides
