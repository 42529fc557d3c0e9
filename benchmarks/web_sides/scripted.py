"""The script that both sides play: three MiniWoB tasks, solved from the goal by role, name and order of elements."""

from __future__ import annotations

import re
from dataclasses import dataclass

TASKS = ("click-test", "click-checkboxes", "login-user")


@dataclass(frozen=True)
class Move:
    """Click on, or fill with ``text``, the ``nth`` element of a role (and of a name, if one is given)."""

    role: str
    name: str = ""
    nth: int = 0
    text: str | None = None


def solve(task: str, goal: str) -> list[Move]:
    """Return the moves that solve a task of :data:`TASKS`."""
    if task == "click-test":
        return [Move("button", "Click Me!")]
    if task == "click-checkboxes":
        wanted = re.fullmatch(r"Select (.*) and click Submit\.?", goal.strip())
        assert wanted, goal
        names = [] if wanted[1] == "nothing" else wanted[1].split(", ")
        return [*(Move("checkbox", name) for name in names), Move("button", "Submit")]
    if task == "login-user":
        user, password = re.findall(r'"([^"]*)"', goal)
        return [Move("textbox", nth=0, text=user), Move("textbox", nth=1, text=password), Move("button", "Login")]
    raise ValueError(f"no script for {task!r}")


def number_of(move: Move, tree: str) -> str:
    """Return the element's number in either side's tree of the page: ``[12] button 'OK'`` or ``[12] button "OK"``."""
    found = re.findall(r"^\s*\[(\w+)\] (\w+) (?:'([^'\n]*)'|\"([^\"\n]*)\")?", tree, re.MULTILINE)
    fitting = [
        number
        for number, role, single, double in found
        if role == move.role and (not move.name or move.name in (single, double))
    ]
    return fitting[move.nth]
