"""A directory of employees that can only be read page by page, without a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from rllm_gym.envs.mcp.serving import Refusal, server
from rllm_gym.envs.mcp.task import Call, DomainState, FinalAnswer, ToolTask, ToolTaskTemplate
from rllm_gym.envs.mcp.wording import CITIES, people, words
from rllm_gym.mcp.servers import InProcessServer

PAGE = 10
MAX_CHARS = 100
DEPARTMENTS = words("design finance legal logistics marketing production research sales support")
_EMPLOYEES = {1: 24, 2: 55, 3: 110}


@dataclass
class Employee:
    employee_id: str
    name: str
    department: str
    city: str
    desk: str
    extension: int


@dataclass(frozen=True)
class EmployeePage:
    """Some employees, and the cursor of the next page where there is one."""

    employees: list[Employee]
    next_cursor: str | None


class Directory(DomainState):
    """Employees in an order that gives no hint."""

    def __init__(self, employees: Sequence[Employee], cursors: Sequence[str]) -> None:
        self.employees = {employee.employee_id: employee for employee in employees}
        self._cursors = list(cursors)

    def servers(self, workspace: Path) -> Sequence[InProcessServer]:
        tools = (self.list_employees, self.update_employee)
        return [server("directory", lambda: tools, instructions="The employees of a company, page by page.")]

    def facts(self, workspace: Path) -> Any:
        return [asdict(employee) for employee in self.employees.values()]

    def list_employees(self, cursor: str | None = None) -> EmployeePage:
        """Ten employees, and a cursor that leads to the next ten. Without a cursor: the first ten.

        Args:
            cursor: next_cursor of the page before.
        """
        page = 0
        if cursor:
            if cursor.strip() not in self._cursors:
                raise Refusal(f"{cursor[:MAX_CHARS]!r} is no cursor; take next_cursor of the page before.")
            page = self._cursors.index(cursor.strip()) + 1
        everybody = list(self.employees.values())
        return EmployeePage(
            everybody[page * PAGE : (page + 1) * PAGE], self._cursors[page] if page < len(self._cursors) else None
        )

    def update_employee(self, employee_id: str, field: str, value: str) -> Employee:
        """Change one field of an employee.

        Args:
            employee_id: Such as E417.
            field: department, city or desk.
            value: The new value.
        """
        employee = self.employees.get(employee_id.strip())
        if employee is None:
            raise Refusal(f"There is no employee {employee_id[:MAX_CHARS]!r}.")
        if field not in ("department", "city", "desk") or not 1 <= len(value.strip()) <= MAX_CHARS:
            raise Refusal("department, city and desk can be changed, to 1 to 100 characters.")
        setattr(employee, field, value.strip())
        return employee

    def walk(self) -> list[Call]:
        """Return the calls that read all pages in order."""
        return [Call("list_employees"), *(Call("list_employees", {"cursor": cursor}) for cursor in self._cursors)]


def build(seed: int, difficulty: int) -> Directory:
    rng = Random(f"paging/{seed}/{difficulty}")
    count = _EMPLOYEES[difficulty] + rng.randint(0, 8)
    departments, cities = rng.sample(DEPARTMENTS, 3 + difficulty), rng.sample(CITIES, 2 + difficulty)
    numbers, extensions = rng.sample(range(100, 1000), count), rng.sample(range(1000, 10_000), count)
    all_desks = [f"{floor}{letter}{number}" for floor in range(1, 7) for letter in "ABCD" for number in range(10)]
    desks = rng.sample(all_desks, count)
    employees = [
        Employee(f"E{number}", name, rng.choice(departments), rng.choice(cities), desk, extension)
        for number, name, desk, extension in zip(numbers, people(rng, count), desks, extensions, strict=True)
    ]
    cursors = [f"p{number:05d}" for number in rng.sample(range(100_000), (count - 1) // PAGE)]
    return Directory(employees, cursors)


def find(state: Directory, rng: Random, difficulty: int) -> ToolTask:
    everybody = list(state.employees.values())
    # Never on the first page. Two are drawn so that the goal of a seed stays the same.
    wanted, _ = rng.sample(everybody[PAGE:], 2)
    who = rng.choice(
        (
            f"the employee {wanted.name}",
            f"the employee whose desk is {wanted.desk}",
            f"the employee with the id {wanted.employee_id}",
        )
    )
    goal = f"What is the extension of {who}? Answer with the number."
    return ToolTask(
        goal, (*state.walk(), FinalAnswer(str(wanted.extension))), answer={"type": "number", "value": wanted.extension}
    )


def count(state: Directory, rng: Random, difficulty: int) -> ToolTask:
    everybody = list(state.employees.values())
    example = rng.choice(everybody)
    found = [employee for employee in everybody if employee.department == example.department]
    where = ""
    if difficulty > 1:
        found = [employee for employee in found if employee.city == example.city]
        where = f" and in {example.city}"
    floor = ""
    if difficulty > 2:
        found = [employee for employee in found if employee.desk[0] == example.desk[0]]
        floor = f", with a desk on floor {example.desk[0]} (what a desk begins with)"
    names = sorted(employee.name for employee in found)
    if len(names) <= 6:
        goal = f"Who works in the department {example.department}{where}{floor}? Answer with the full names."
        return ToolTask(goal, (*state.walk(), FinalAnswer(", ".join(names))), answer={"type": "set", "value": names})
    goal = f"How many employees work in the department {example.department}{where}{floor}? Answer with the number."
    number = len(names)
    return ToolTask(goal, (*state.walk(), FinalAnswer(str(number))), answer={"type": "number", "value": number})


def relocate(state: Directory, rng: Random, difficulty: int) -> ToolTask:
    everybody = list(state.employees.values())
    example = rng.choice(everybody)
    chosen = [e for e in everybody if e.department == example.department and e.city == example.city]
    field, new = rng.choice(
        (
            ("city", rng.choice([city for city in CITIES if city != example.city])),
            ("department", rng.choice([name for name in DEPARTMENTS if name != example.department])),
        )
    )
    goal = rng.choice(
        (
            f"Everybody of the department {example.department} in {example.city} changes to the {field} {new}: enter "
            "that in the directory.",
            f"In the directory, set the {field} of all employees who work in {example.city} in the department "
            f"{example.department} to {new}.",
        )
    )

    def outcome(state: Directory, workspace: Path) -> None:
        for employee in chosen:
            setattr(state.employees[employee.employee_id], field, new)

    calls = [
        Call("update_employee", {"employee_id": employee.employee_id, "field": field, "value": new})
        for employee in chosen
    ]
    return ToolTask(goal, (*state.walk(), *calls, FinalAnswer()), outcome)


TEMPLATES = (
    ToolTaskTemplate("paging/find", build, find),
    ToolTaskTemplate("paging/list", build, count),
    ToolTaskTemplate("paging/relocate", build, relocate),
)
