"""Errands carried out on the real page: what a person would do, as the replies of a model that does it."""

from __future__ import annotations

import json
import random
import re
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rllm_gym.envs.web.env import WebEnv
from rllm_gym.sites.errand import Answer, Click, Errand, Fill, Goto, Move, Press, ReportInfeasible, Select

if TYPE_CHECKING:
    from rllm_gym.browser.observation import PageView

EDITABLE = ("textbox", "searchbox", "spinbutton", "combobox", "slider", "textarea")
CHOOSABLE = ("combobox", "listbox")

_NUMBER = re.compile(r"\[(\d+)\] ")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


def oracle(env: WebEnv, rng: random.Random | None = None) -> str:
    """The next reply of one that knows the errand: a demonstration policy of ``rllm-gym sft``.

    Called with the unwrapped environment before every turn that it is to play; the reply has to be played then.
    Turns in between may be anything that leaves the page as it is.

    Args:
        env: In an episode of an errand.
        rng: Not used: there is one way.

    Raises:
        ValueError: The episode is a row of one's own, or its page does not have what the errand speaks of.
    """
    if env.errand is None:
        raise ValueError(f"task {env.task.task_id!r} is no errand: nobody knows how it is done")
    errand, made = _made.get(env, (None, 0))
    if errand is not env.errand:
        made = 0
    _made[env] = env.errand, made + 1
    return reply_for(env.errand.moves[made], env.page)


# Per environment the errand that it plays, and how many of its moves were given.
_made: weakref.WeakKeyDictionary[WebEnv, tuple[Errand, int]] = weakref.WeakKeyDictionary()


def play(env: WebEnv, moves: Iterable[Move]) -> tuple[float, list[str]]:
    """Carry moves out in an episode that was just reset.

    Returns:
        The sum of the rewards, and the replies. Moves after the end of the episode are left out.

    Raises:
        ValueError: The page does not have what a move speaks of; says which move and shows the page.
    """
    total, replies = 0.0, []
    for move in moves:
        replies.append(reply_for(move, env.page))
        _, reward, terminated, truncated, info = env.step(replies[-1])
        total += _accepted(reward, info, replies[-1], env)
        if terminated or truncated:
            break
    return total, replies


def _accepted(reward: float, info: dict[str, Any], reply: str, env: WebEnv) -> float:
    if info["invalid_action"] or info["action_error"]:
        raise ValueError(f"{reply} was refused: {info['action_error'] or 'it is no action'}\n{env.page.text}")
    return float(reward)


def reply_for(move: Move, view: PageView) -> str:
    """What a model writes to make a move on this page, as a fenced block.

    Raises:
        ValueError: Nothing on the page is what the move speaks of, or several things are.
    """
    return f"```\n{call_for(move, view)}\n```"


def call_for(move: Move, view: PageView) -> str:
    """:func:`reply_for` without its fence."""
    match move:
        case Click(role, name, within):
            return f"click({_find(view, (role,), name, within, move)})"
        case Fill(name, text, within):
            return f"fill({_find(view, EDITABLE, name, within, move)}, {_quoted(text)})"
        case Select(name, option, within):
            return f"select({_find(view, CHOOSABLE, name, within, move)}, {_quoted(option)})"
        case Press(key):
            return f"press({_quoted(key)})"
        case Goto(url):
            return f"goto({_quoted(url)})"
        case Answer(text):
            return f"answer({_quoted(text)})"
        case ReportInfeasible(reason):
            return f"report_infeasible({_quoted(reason)})"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _find(view: PageView, roles: tuple[str, ...], name: str, within: str | None, move: Move) -> int:
    """The number of the one element that is meant."""
    alike = [number for number, seen in view.elements.items() if seen.role in roles and seen.name == name]
    if within is not None and alike:
        alike = _nearest(view.text, alike, within)
    if len(alike) == 1:
        return alike[0]
    what = "nothing on the page is" if not alike else f"the elements {alike} all are"
    raise ValueError(f"{what} what {move} speaks of:\n{view.text}")


def _nearest(text: str, numbers: list[int], within: str) -> list[int]:
    """Those of the elements that stand closest to a text: in its row, card or form."""
    lines = text.splitlines()
    depths = [len(line) - len(line.lstrip(" ")) for line in lines]
    told = [at for at, line in enumerate(lines) if json.dumps(within, ensure_ascii=False)[1:-1] in line]
    distances: dict[int, tuple[float, float]] = {}
    for at, line in enumerate(lines):
        for found in _NUMBER.finditer(_QUOTED.sub("", line)):
            if int(found[1]) in numbers and told:
                distances[int(found[1])] = (_common(depths, at, told), _behind(at, told))
    closest = min(distances.values(), default=None)
    return [number for number, distance in distances.items() if distance == closest]


def _common(depths: list[int], at: int, told: list[int]) -> float:
    """Lines of the smallest part of the outline that holds a line and one of those that tell."""
    first, last = at, at
    while not any(first <= line <= last for line in told):
        wider = _parent(depths, first, last)
        if wider == (first, last):
            return float("inf")
        first, last = wider
    return last - first


def _behind(at: int, told: list[int]) -> float:
    """How far a line is below the last that tells: what belongs to a heading follows it."""
    return min((at - line for line in told if line <= at), default=float("inf"))


def _parent(depths: list[int], first: int, last: int) -> tuple[int, int]:
    """The lines of the outline one level above these."""
    start = first
    while start > 0 and depths[start] >= depths[first]:
        start -= 1
    if depths[start] >= depths[first]:  # already the whole page
        return 0, len(depths) - 1
    end = start
    while end + 1 < len(depths) and depths[end + 1] > depths[start]:
        end += 1
    return start, max(end, last)
