"""MiniWoB++: the 130 small tasks of the PyPI package ``miniwob``, on its own pages, seeded and without a time limit."""

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
from rllm_gym.envs.web.sites.http import Handler, Request, Response
from rllm_gym.parsing.browser_actions import BrowserAction

ORIGIN = "http://miniwob.test"
VIEWPORT = (332, 214)
"""Viewport of BrowserGym: the task has 160 by 210 pixels; some tasks open further content next to it."""

_SEEDS = 2**32
_SHARED = ("core", "common")
_INSTALL = "pip install 'rllm-gym[miniwob]'"

# Inserted after the last line of core.js; it runs before the page's own scripts.
_SEEDED = """
;(function () {
  // The same day in every run: some tasks ask for dates, and calendars open at today. Time goes on from there.
  var RealDate = Date, shift = RealDate.now() - RealDate.UTC(2016, 9, 12, 12);
  Date = new Proxy(RealDate, {
    construct: function (target, args, newTarget) {
      return args.length ? Reflect.construct(target, args, newTarget) : new target(target.now() - shift);
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
"""Placeholders for an episode's seed and nonce in cached pages."""

_SCRIPT_TAG = re.compile(rb'<script src="([^"]*)"></script>')
_SHEET_TAG = re.compile(rb'<link rel="stylesheet"(?: type="text/css")? href="([^"]*)" ?/?>')
_RELATIVE_URL = re.compile(rb"url\((?![\"']?(?:/|#|[a-z]+:))([\"']?)")
_HIDDEN = b"""
#reward-display, #click-canvas, #sync-task-cover { display: none !important; }
#query { visibility: hidden !important; }
"""
# The variables are those of core.js; pages outside of MiniWoB++ do not have them.
_STATE = """typeof WOB_DONE_GLOBAL === 'undefined' || !core.ept0 ? null : {
  done: Boolean(WOB_DONE_GLOBAL), raw: Number(WOB_RAW_REWARD_GLOBAL)}"""
# Some goals show a colour or an icon instead of a word: they are named, since the line is hidden.
_GOAL = """(() => {
  const query = document.getElementById('query'), copy = query.cloneNode(true), words = copy.querySelectorAll('*');
  let shown = false;
  query.querySelectorAll('*').forEach((item, index) => {
    if (item.textContent.trim() || item.children.length) return;
    const icon = [...item.classList].find((name) => name.startsWith('ui-icon-'));
    const color = getComputedStyle(item).backgroundColor;
    const look = icon ? icon.slice(8) : color === 'rgba(0, 0, 0, 0)' ? '' : color;
    words[index].textContent = look;
    shown ||= look !== '';
  });
  if (shown) return copy.textContent;
  const said = core.getUtterance();
  return typeof said === 'string' ? said : said.utterance;
})()"""


class MiniWoBEnv(PageEnv):
    """Do a small task on one web page: MiniWoB++.

    ## Description
    The pages of MiniWoB++ as shipped in the package ``miniwob``: buttons, forms, menus, calendars, mailboxes, shapes.
    The page states the goal and grades it. Its random numbers follow the seed, its date is fixed, and its time limit is
    disabled: turns are counted instead. Every episode has its own browser context and can load only the files of its
    task.

    ## Action space
    As ``rllm/Web-v0``, without tabs and files.

    ## Observation space
    As ``rllm/Web-v0``. The line in which the page repeats the goal, and its display of rewards and time, are hidden.

    ## Starting state
    The page of the task, generated with a seed chosen by ``options={"task": index | task_id | Task}``, else drawn with
    the seed of the reset.

    ## Rewards
    ``task``: when the page ends the episode, 1 if its own reward is above 0, else 0, as in BrowserGym. The page's
    reward is in ``info["raw_reward"]``. It is read from the page's variables, which no action can write:
    ``javascript:`` URLs are refused, typed text is never executed, and leaving the page is a failure.

    ## Episode end
    Terminates when the page says so, when the model leaves the page, or with ``answer`` or ``report_infeasible``, which
    no task here requires and which get 0; truncated (``max_turns``) when no turns are left.

    ## Information
    As ``rllm/Web-v0``, and ``raw_reward: float``, the page's own reward, from -1 to 1 (0 until the page ends the
    episode).

    ## Arguments

    >>> import gymnasium as gym, rllm_gym
    >>> env = gym.make("rllm/MiniWoB-click-checkboxes-v0")  # doctest: +SKIP

    Args:
        task: Name of the task, such as ``"click-checkboxes"``; each has its own environment id.
        split: ``"train"``, ``"validation"`` or ``"test"``: the seeds of a page are divided among them; ``None`` means
            ``"train"``.
        task_seed: A different value gives different seeds of the page.
        num_tasks: Number of seeds, 1,000,000 by default.
        max_turns: Number of actions.
        observation_mode: ``"text"``, ``"screenshot"`` or ``"both"``.
        viewport: Width and height of the page in pixels.
        boxes: Whether the text shows where elements, pictures and shapes are (``box="x,y WxH"``, in pixels), the prompt
            describes the actions with coordinates, and ``info["boxes"]`` contains the boxes.
        marks: Whether the picture shows a numbered box around every numbered element.
        executable: The Chromium to use; ``None`` searches for one.
        invalid_action_penalty: Subtracted from the reward if a reply contains no action.
        max_observation_chars: Bound of the observation's text; a longer page is cut.
        max_action_chars: Longest accepted reply.
        render_mode: ``"ansi"`` (the observation), ``"rgb_array"`` (the page as a picture) or ``None``.

    Raises:
        BrowserFault: No Chromium was found; the message names a solution. ``reset`` and ``step`` raise it if the
            browser fails.
        ModuleNotFoundError: ``pip install 'rllm-gym[miniwob]'``.
        TaskError: There is no such task.
        ValueError: Another argument is out of range.

    ## Version history
    v0: first release.
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
        boxes: bool = False,
        marks: bool = False,
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
            raise TaskError(f"unknown MiniWoB++ task {task!r}; choose from {', '.join(miniwob_tasks())}")
        super().__init__(
            tasks=ProceduralTaskset(
                MiniWoBTaskGenerator(task),
                name=f"miniwob-{task}",
                split=split,
                seed=task_seed,
                size=1_000_000 if num_tasks is None else num_tasks,
            ),
            observation_mode=observation_mode,
            boxes=boxes,
            marks=marks,
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
                f"task {task.task_id!r} has the data {dict(task.data)!r:.200}; it must be {{'task': "
                f"{self.task_name!r}, 'seed': a whole number}}"
            )
        self._raw_reward = 0.0
        sites = {ORIGIN: site(self._folder, self.task_name, seed)}
        await self._open(f"{ORIGIN}/miniwob/{self.task_name}.html", sites=sites, origins=())
        goal = await self._open_session.evaluate(f"({_STATE}) && {_GOAL}", world="main")
        if goal is None:
            raise EnvironmentFault(f"the page of the MiniWoB++ task {self.task_name!r} did not start", kind="site")
        self._goal = " ".join(str(goal).split())

    async def _after(self, action: BrowserAction) -> tuple[float | None, bool]:
        state = await self._open_session.evaluate(_STATE, world="main")
        if not isinstance(state, Mapping):  # the model left the page
            return 0.0, False
        if not state.get("done"):
            return (0.0 if action.name in ("answer", "report_infeasible") else None), False
        self._raw_reward = float(state.get("raw") or 0.0)
        return float(self._raw_reward > 0), self._raw_reward > 0

    def _add_info(self, info: dict[str, Any]) -> None:
        super()._add_info(info)
        info["raw_reward"] = self._raw_reward


@dataclass(frozen=True)
class MiniWoBTaskGenerator:
    """A generator of seeds of one page."""

    task: str

    def __call__(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        seed = rng.randrange(_SEEDS)
        return f"{self.task}, seed {seed}", {"task": self.task, "seed": seed}


def site(folder: Path, task: str, seed: int) -> Handler:
    """Return the site of one episode: the page of the task, generated with the seed, and the files all pages share.

    Args:
        folder: As returned by :func:`rllm_gym.envs.miniwob_folder`.
        task: Name of the task; the pages of other tasks are not served.
        seed: Seed of the page's random numbers.
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
            content, headers["content-security-policy"] = _with_script_policy(content)
        return Response(content, 200, headers)

    return answer


def _with_script_policy(page: bytes) -> tuple[bytes, str]:
    """Return the page and a content security policy that allows only the scripts it was shipped with.

    Some pages insert typed text into their markup (the terminal does): a script in it would end the episode with any
    reward.
    """
    mark = secrets.token_hex(16)  # never shown to the model
    allowed = f"'self' 'nonce-{mark}'"
    if b"data-jscolor" in page:  # the color picker evaluates its options as code
        allowed += " 'unsafe-eval'"
    return page.replace(_NONCE, mark.encode()), f"script-src {allowed}"


@lru_cache(maxsize=32)
def _whole(folder: Path, path: str) -> bytes | None:
    """Return a page with its scripts and style sheets inlined.

    Every file that a page requests costs the browser's processes about 3 ms, and such a page requests five.
    """
    page = read(folder, path)
    if page is None:
        return None

    def script(tag: re.Match[bytes]) -> bytes:
        content = _served(folder, _named(path, tag[1]))
        if content is None or not content.isascii() or b"</script" in content.lower() or b"<!--" in content:
            return tag[0]  # a script that would be parsed differently when inlined remains a file
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
    """Return the path of a file that a page references."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), reference.decode("ascii", "replace")))


def _served(folder: Path, path: str) -> bytes | None:
    """Return a file as served to pages, with a placeholder for the seed."""
    content = read(folder, path)
    if content is not None and path == "/core/core.js":
        return content + _SEEDED.replace("%d", _SEED.decode()).encode()
    if content is not None and path == "/core/core.css":
        return content + _HIDDEN
    return content


def read(folder: Path, path: str) -> bytes | None:
    """Return a file by its absolute path below the folder; ``None`` otherwise, also for ``..`` and links out of it."""
    return _content(folder, path) if path in _files(folder) else None


@cache
def _files(folder: Path) -> frozenset[str]:
    return frozenset(f"/{file.relative_to(folder).as_posix()}" for file in folder.rglob("*") if file.is_file())


@cache
def _content(folder: Path, path: str) -> bytes:
    # A few hundred files, 6 MiB in total: small enough to cache all.
    return (folder / path.lstrip("/")).read_bytes()
