"""MiniWoB++: the 130 small tasks of the PyPI package ``miniwob``, on its own pages, seeded and without its clock."""

from __future__ import annotations

import mimetypes
import os
import posixpath
import random
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from rllm_gym.core import EnvironmentFault, Task, TaskError
from rllm_gym.data import ProceduralTaskset
from rllm_gym.envs import miniwob_folder, miniwob_tasks
from rllm_gym.envs.web.page_env import MAX_CHARS, ObservationMode, PageEnv
from rllm_gym.parsing.browser_actions import BrowserAction
from rllm_gym.sites.http import Handler, Request, Response

ORIGIN = "http://miniwob.test"
VIEWPORT = (332, 214)
"""As BrowserGym shows the pages: the task is 160 by 210 pixels, beside it stands what some of them open."""

_SEEDS = 2**32
_SHARED = ("core", "common")
_INSTALL = "pip install 'rllm-gym[miniwob]'"

# Behind the last line of core.js, before the page's own scripts run.
_SEEDED = """
;(function () {
  // The same day in every run: some tasks ask for dates, and calendars open at today. Time goes on from there.
  var RealDate = Date, shift = RealDate.now() - RealDate.UTC(2016, 9, 12, 12);
  Date = new Proxy(RealDate, {
    construct: function (target, given, made) {
      return given.length ? Reflect.construct(target, given, made) : new target(target.now() - shift);
    },
    apply: function (target) { return new target(target.now() - shift).toString(); },
    get: function (target, key) {
      return key === 'now' ? function () { return target.now() - shift; } : Reflect.get(target, key);
    },
  });
  // Turns bound an episode, not seconds: the pages set their limits, and nothing comes of it.
  Object.defineProperty(core, 'EPISODE_MAX_TIME', { get: function () { return 1e9; }, set: function () {} });
  core.countdownTimer = core.clearTimer = function () {};
  // The page begins when it is loaded, without its START cover, and stays as it is when the episode is over.
  var cover = core.startEpisode, begun = false;
  core.startEpisode = function () {
    if (begun) return;
    begun = true;
    cover();
    Math.seedrandom('%d');
    core.startEpisodeReal();
  };
  Math.seedrandom('%d');
})();
"""
_SEED, _NONCE = (f"--{name}-{secrets.token_hex(16)}--".encode() for name in ("seed", "nonce"))
"""What stands for an episode's own seed and mark in pages that are kept."""

_SCRIPT_TAG = re.compile(rb'<script src="([^"]*)"></script>')
_SHEET_TAG = re.compile(rb'<link rel="stylesheet"(?: type="text/css")? href="([^"]*)" ?/?>')
_RELATIVE_URL = re.compile(rb"url\((?![\"']?(?:/|#|[a-z]+:))([\"']?)")
_HIDDEN = b"""
#reward-display, #click-canvas, #sync-task-cover { display: none !important; }
#query { visibility: hidden !important; }
"""
# The variables are those of core.js; a page that is none of its own has none.
_STATE = """typeof WOB_DONE_GLOBAL === 'undefined' || !core.ept0 ? null : {
  done: Boolean(WOB_DONE_GLOBAL), raw: Number(WOB_RAW_REWARD_GLOBAL)}"""
_GOAL = """(() => { const said = core.getUtterance(); return typeof said === 'string' ? said : said.utterance; })()"""


class MiniWoBEnv(PageEnv):
    """Do a small task on one web page: MiniWoB++.

    **Description**: The pages of MiniWoB++ as the package ``miniwob`` ships them: buttons, forms, menus, calendars,
    mailboxes, shapes. The page says what it asks for and judges it. Its random numbers follow the seed, its day is
    always the same, and its time limit is off: turns are counted instead. Every episode has a browser context of its
    own and reaches nothing but the files of its task.

    **Action space**: As ``rllm/Web-v0``, without tabs.

    **Observation space**: As ``rllm/Web-v0``. The line in which the page itself repeats the goal, and its display of
    rewards and time, are hidden.

    **Starting state**: The page of the task, made with a seed, by ``options={"task": index | task_id | Task}``, else
    drawn with the seed of the reset.

    **Rewards**: ``task``: when the page ends the episode, 1 if its own reward is above 0, else 0, as BrowserGym
    counts. The page's reward is in ``info["raw_reward"]``. It is read from the page's variables, which no action
    can write: ``javascript:`` URLs are refused, nothing runs of what is typed, and leaving the page is a failure.

    **Episode end**: Terminates when the page says so, when the page is left, or with ``answer`` or
    ``report_infeasible``, which no task here asks for and which get 0; truncated (``max_turns``) when the turns run
    out.

    **Information**: As ``rllm/Web-v0``, and ``raw_reward: float``, the page's own reward, from -1 to 1 (0 before its
    end).

    **Arguments**:

    >>> import gymnasium as gym, rllm_gym
    >>> env = gym.make("rllm/MiniWoB-click-checkboxes-v0")  # doctest: +SKIP

    Args:
        task: Name of the task, such as ``"click-checkboxes"``; each has an id of its own.
        split: ``"train"``, ``"validation"`` or ``"test"``: the seeds of a page are divided among them; ``None`` is
            ``"train"``.
        task_seed: Another seed gives other seeds of the page.
        num_tasks: Number of seeds, 1,000,000 by default.
        max_turns: Actions the model has.
        observation_mode: ``"text"``, ``"screenshot"`` or ``"both"``.
        viewport: Width and height of the page in pixels.
        executable: The Chromium to use; ``None`` finds one.
        invalid_action_penalty: Taken from the reward where a reply holds no action.
        max_observation_chars: Bound of the observation's text; of a longer page the rest is cut.
        max_action_chars: Longest reply that is read.
        render_mode: ``"ansi"`` (the observation), ``"rgb_array"`` (the page as a picture) or ``None``.

    Raises:
        BrowserFault: No Chromium can be found; says the way out. Later, from ``reset`` and ``step``, that it broke.
        ModuleNotFoundError: ``pip install 'rllm-gym[miniwob]'``.
        TaskError: There is no such task.
        ValueError: Another argument is out of range.

    **Version history**: v0: first release.
    """

    def __init__(
        self,
        *,
        task: str,
        split: str | None = None,
        task_seed: int = 0,
        num_tasks: int | None = None,
        max_turns: int = 10,
        observation_mode: ObservationMode = "text",
        viewport: Sequence[int] = VIEWPORT,
        executable: str | os.PathLike[str] | None = None,
        invalid_action_penalty: float = 0.0,
        max_observation_chars: int = MAX_CHARS,
        max_action_chars: int = 1_000_000,
        render_mode: str | None = None,
    ) -> None:
        folder = miniwob_folder()
        if folder is None:
            raise ModuleNotFoundError(f"the pages of MiniWoB++ are not installed: {_INSTALL}", name="miniwob")
        if task not in miniwob_tasks():
            raise TaskError(f"there is no MiniWoB++ task {task!r}; there are {', '.join(miniwob_tasks())}")
        super().__init__(
            tasks=ProceduralTaskset(
                Draw(task),
                name=f"miniwob-{task}",
                split=split,
                seed=task_seed,
                size=1_000_000 if num_tasks is None else num_tasks,
            ),
            observation_mode=observation_mode,
            viewport=viewport,
            executable=executable,
            has_tabs=False,
            max_turns=max_turns,
            invalid_action_penalty=invalid_action_penalty,
            max_observation_chars=max_observation_chars,
            max_action_chars=max_action_chars,
            render_mode=render_mode,
        )
        self.task_name = task
        self._folder = folder
        self._raw_reward = 0.0

    async def _open_task(self, task: Task) -> None:
        seed = task.data.get("seed")
        if task.data.get("task") != self.task_name or not isinstance(seed, int) or isinstance(seed, bool):
            raise TaskError(
                f"task {task.task_id!r} has the data {dict(task.data)!r:.200}; here it is "
                f"{{'task': {self.task_name!r}, 'seed': a whole number}}"
            )
        self._raw_reward = 0.0
        sites = {ORIGIN: site(self._folder, self.task_name, seed)}
        await self._open(f"{ORIGIN}/miniwob/{self.task_name}.html", sites=sites, origins=())
        goal = await self._open_session.evaluate(f"({_STATE}) && {_GOAL}", world="main")
        if goal is None:
            raise EnvironmentFault(f"the page of MiniWoB++ {self.task_name!r} did not begin", kind="site")
        self._goal = " ".join(str(goal).split())

    async def _after(self, action: BrowserAction) -> tuple[float | None, bool]:
        state = await self._open_session.evaluate(_STATE, world="main")
        if not isinstance(state, Mapping):  # the page was left
            return 0.0, False
        if not state.get("done"):
            return (0.0 if action.name in ("answer", "report_infeasible") else None), False
        self._raw_reward = float(state.get("raw") or 0.0)
        return float(self._raw_reward > 0), self._raw_reward > 0

    def _add_info(self, info: dict[str, Any]) -> None:
        super()._add_info(info)
        info["raw_reward"] = self._raw_reward


@dataclass(frozen=True)
class Draw:
    """Draws a seed of one page."""

    task: str

    def __call__(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        seed = rng.randrange(_SEEDS)
        return f"{self.task}, seed {seed}", {"task": self.task, "seed": seed}


def site(folder: Path, task: str, seed: int) -> Handler:
    """The site of one episode: the page of the task, made with the seed, and the files all pages share.

    Args:
        folder: As :func:`rllm_gym.envs.miniwob_folder` finds it.
        task: Name of the task; no other task's page is there.
        seed: Of the page's random numbers.
    """

    def answer(request: Request) -> Response:
        path = PurePosixPath(request.path)
        content = None
        if request.path == f"/miniwob/{task}.html":
            content = _whole(folder, request.path)
        elif len(path.parts) > 2 and path.parts[1] in _SHARED:
            content = _served(folder, request.path)
        if content is None:
            return Response(b"not found", 404, {"content-type": "text/plain"})
        content = content.replace(_SEED, str(seed).encode())
        headers = {"content-type": mimetypes.guess_type(path.name)[0] or "application/octet-stream"}
        if path.suffix == ".html":
            content, headers["content-security-policy"] = _own_scripts_alone(content)
        return Response(content, 200, headers)

    return answer


def _own_scripts_alone(page: bytes) -> tuple[bytes, str]:
    """The page and the rule by which it runs the scripts it was shipped with and no other.

    Some pages write what was typed into their markup (the terminal does): a script in it would end the episode with
    any reward it likes.
    """
    mark = secrets.token_hex(16)  # never shown
    allowed = f"'self' 'nonce-{mark}'"
    if b"data-jscolor" in page:  # the colour wheel reads its options by evaluating them
        allowed += " 'unsafe-eval'"
    return page.replace(_NONCE, mark.encode()), f"script-src {allowed}"


@lru_cache(maxsize=32)
def _whole(folder: Path, path: str) -> bytes | None:
    """A page with the scripts and style sheets it names written into it, in their places.

    Every file that a page asks for costs the browser's processes some 3 ms, and a page of these asks for five.
    """
    page = read(folder, path)
    if page is None:
        return None

    def script(tag: re.Match[bytes]) -> bytes:
        content = _served(folder, _named(path, tag[1]))
        if content is None or not content.isascii() or b"</script" in content.lower() or b"<!--" in content:
            return tag[0]  # what would read otherwise as a part of the page stays a file
        return b'<script nonce="%b">%b</script>' % (_NONCE, content)

    def sheet(tag: re.Match[bytes]) -> bytes:
        where = _named(path, tag[1])
        content = _served(folder, where)
        if content is None or not content.isascii() or b"</style" in content.lower() or b"@import" in content:
            return tag[0]
        beside = where.rpartition("/")[0].encode()
        return b"<style>%b</style>" % _RELATIVE_URL.sub(rb"url(\1%b/" % beside, content)

    page = page.replace(b"<script>", b'<script nonce="%b">' % _NONCE)
    return _SHEET_TAG.sub(sheet, _SCRIPT_TAG.sub(script, page))


def _named(page: str, reference: bytes) -> str:
    """The path of a file that a page names."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), reference.decode("ascii", "replace")))


def _served(folder: Path, path: str) -> bytes | None:
    """A file as pages get it, with a mark where the seed goes."""
    content = read(folder, path)
    if content is not None and path == "/core/core.js":
        return content + _SEEDED.replace("%d", _SEED.decode()).encode()
    if content is not None and path == "/core/core.css":
        return content + _HIDDEN
    return content


def read(folder: Path, path: str) -> bytes | None:
    """A file below the folder by its absolute path there; ``None`` for everything else, ``..`` and links out of it."""
    return _content(folder, path) if path in _files(folder) else None


@cache
def _files(folder: Path) -> frozenset[str]:
    return frozenset(f"/{file.relative_to(folder).as_posix()}" for file in folder.rglob("*") if file.is_file())


@cache
def _content(folder: Path, path: str) -> bytes:
    # A few hundred files, 6 MiB together: all may stay in memory.
    return (folder / path.lstrip("/")).read_bytes()
