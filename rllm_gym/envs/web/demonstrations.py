"""Reference solutions of built-in tasks on the real page, as the replies of a model."""

from __future__ import annotations

import json
import random
import re
import weakref
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rllm_gym.envs.web.env import WebEnv
from rllm_gym.envs.web.sites.moves import Answer, Click, Fill, Goto, Move, ReportInfeasible, Select, Upload
from rllm_gym.envs.web.sites.task import WebTask

if TYPE_CHECKING:
    from rllm_gym.envs.web.browser.observation import PageView

EDITABLE = ("textbox", "searchbox", "spinbutton", "combobox", "slider", "textarea")
CHOOSABLE = ("combobox", "listbox")

_NUMBER = re.compile(r"\[(\d+)\] ")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


def oracle(env: WebEnv, rng: random.Random | None = None) -> str:
    """Return the next reply of the reference solution: a demonstration policy for ``rllm-gym sft``.

    Call it with the unwrapped environment before every turn that it decides, and step the environment with its reply.
    Any turns in between must leave the page unchanged.

    Args:
        env: In an episode of a built-in task.
        rng: Not used: there is only one solution.

    Raises:
        ValueError: The task is a user-provided row, or an element that the solution needs is not on the page.
    """
    if env.web_task is None:
        raise ValueError(f"task {env.task.task_id!r} is not a built-in site task, so it has no reference solution")
    task, move_index = _progress.get(env, (None, 0))
    if task is not env.web_task:
        move_index = 0
    if env.page.is_dialog:
        _progress[env] = env.web_task, move_index
        return _ACCEPT
    _progress[env] = env.web_task, move_index + 1
    return reply_for(env.web_task.moves[move_index], env.page)


_ACCEPT = '```\nhandle_dialog("accept")\n```'
# Per environment: its current task, and how many moves of the solution were returned.
_progress: weakref.WeakKeyDictionary[WebEnv, tuple[WebTask, int]] = weakref.WeakKeyDictionary()


def play(env: WebEnv, moves: Iterable[Move]) -> tuple[float, list[str]]:
    """Execute moves in an episode that was just reset.

    Returns:
        The sum of the rewards, and the replies, among them those that accept the page's dialogs. Moves after the end of
        the episode are skipped.

    Raises:
        ValueError: The element of a move is not on the page; the message names the move and shows the page.
    """
    total, replies = 0.0, []
    waiting = deque(moves)
    while waiting:
        replies.append(_ACCEPT if env.page.is_dialog else reply_for(waiting.popleft(), env.page))
        _, reward, terminated, truncated, info = env.step(replies[-1])
        total += _accepted(reward, info, replies[-1], env)
        if terminated or truncated:
            break
    return total, replies


def _accepted(reward: float, info: dict[str, Any], reply: str, env: WebEnv) -> float:
    if info["invalid_action"] or info["action_error"]:
        raise ValueError(f"{reply} was refused: {info['action_error'] or 'not an action'}\n{env.page.text}")
    return float(reward)


def reply_for(move: Move, view: PageView) -> str:
    """Return the reply that makes a move on this page, as a fenced block.

    Raises:
        ValueError: No element on the page matches the move, or several do.
    """
    return f"```\n{call_for(move, view)}\n```"


def call_for(move: Move, view: PageView) -> str:
    """Return :func:`reply_for` without its fence."""
    match move:
        case Click(role, name, within):
            return f"click({_find(view, (role,), name, within, move)})"
        case Fill(name, text, within):
            return f"fill({_find(view, EDITABLE, name, within, move)}, {_quoted(text)})"
        case Select(name, option, within):
            return f"select({_find(view, CHOOSABLE, name, within, move)}, {_quoted(option)})"
        case Upload(name, file):
            return f"upload_file({_find(view, ('file',), name, None, move)}, {_quoted(file)})"
        case Goto(url):
            return f"goto({_quoted(url)})"
        case Answer(text):
            return f"answer({_quoted(text)})"
        case ReportInfeasible(reason):
            return f"report_infeasible({_quoted(reason)})"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _find(view: PageView, roles: tuple[str, ...], name: str, within: str | None, move: Move) -> int:
    """Return the number of the one matching element."""
    matching = [number for number, seen in view.elements.items() if seen.role in roles and seen.name == name]
    if within is not None and matching:
        matching = _nearest(view.text, matching, within)
    if len(matching) == 1:
        return matching[0]
    what = "no element of the page matches" if not matching else f"several elements, {matching}, match"
    raise ValueError(f"{what} {move}:\n{view.text}")


def _nearest(text: str, numbers: list[int], within: str) -> list[int]:
    """Return the elements that are closest to a text: in its row, card or form."""
    lines = text.splitlines()
    depths = [len(line) - len(line.lstrip(" ")) for line in lines]
    matches = [at for at, line in enumerate(lines) if json.dumps(within, ensure_ascii=False)[1:-1] in line]
    distances: dict[int, tuple[float, float]] = {}
    for at, line in enumerate(lines):
        for found in _NUMBER.finditer(_QUOTED.sub("", line)):
            if int(found[1]) in numbers and matches:
                distances[int(found[1])] = (_common(depths, at, matches), _behind(at, matches))
    closest = min(distances.values(), default=None)
    return [number for number, distance in distances.items() if distance == closest]


def _common(depths: list[int], at: int, matches: list[int]) -> float:
    """Return the lines of the smallest part of the outline that contains a line and one of the ``matches`` lines."""
    first, last = at, at
    while not any(first <= line <= last for line in matches):
        wider = _parent(depths, first, last)
        if wider == (first, last):
            return float("inf")
        first, last = wider
    return last - first


def _behind(at: int, matches: list[int]) -> float:
    """Return how far a line is below the last line of ``matches``: content follows its heading."""
    return min((at - line for line in matches if line <= at), default=float("inf"))


def _parent(depths: list[int], first: int, last: int) -> tuple[int, int]:
    """Return the lines of the outline one level above these."""
    start = first
    while start > 0 and depths[start] >= depths[first]:
        start -= 1
    if depths[start] >= depths[first]:  # already the whole page
        return 0, len(depths) - 1
    end = start
    while end + 1 < len(depths) and depths[end + 1] > depths[start]:
        end += 1
    return start, max(end, last)
