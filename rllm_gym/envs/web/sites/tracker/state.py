"""The state of the issue tracker: projects with issues, labels, milestones, comments and board columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

from rllm_gym.envs.web.sites.errors import FormError
from rllm_gym.envs.web.sites.people import Person

KINDS = ("Bug", "Feature", "Task")
COLUMNS = ("Backlog", "In progress", "Review", "Done")
PRIORITIES = ("Low", "Medium", "High", "Urgent")
REASONS = ("completed", "not planned", "duplicate")
SORTS = {"newest": "Newest", "oldest": "Oldest", "comments": "Most commented", "priority": "Priority"}


@dataclass(frozen=True)
class Comment:
    author: str
    day: date
    text: str


@dataclass(frozen=True)
class Issue:
    """An issue.

    Attributes:
        project: Key of its project, such as ``"WEB"``.
        number: Number within the project, from 1 in order of creation.
        title: Title line.
        text: The report.
        kind: One of :data:`KINDS`.
        priority: One of :data:`PRIORITIES`.
        author: Address of the reporter.
        created: Day of creation.
        assignee: Address, or "".
        labels: Names of its labels, sorted.
        milestone: Name, or "".
        column: One of :data:`COLUMNS`; closed issues are in "Done".
        closed: "" if open, otherwise one of :data:`REASONS`.
        duplicate_of: Key of the issue that a closed duplicate refers to, or "".
        comments: Comments in chronological order.
    """

    project: str
    number: int
    title: str
    text: str
    kind: str
    priority: str
    author: str
    created: date
    assignee: str = ""
    labels: tuple[str, ...] = ()
    milestone: str = ""
    column: str = "Backlog"
    closed: str = ""
    duplicate_of: str = ""
    comments: tuple[Comment, ...] = ()

    @property
    def key(self) -> str:
        """The key of the issue, such as ``"WEB-12"``."""
        return f"{self.project}-{self.number}"

    def facts(self) -> list[Any]:
        return [
            self.title,
            self.text,
            self.kind,
            self.priority,
            self.assignee,
            list(self.labels),
            self.milestone,
            self.column,
            self.closed,
            self.duplicate_of,
            [[comment.author, comment.text] for comment in self.comments],
        ]


@dataclass(frozen=True)
class Milestone:
    name: str
    due: date
    closed: bool = False


@dataclass
class Project:
    """A project. The keys of its issues begin with its key."""

    key: str
    name: str
    labels: tuple[str, ...]
    milestones: dict[str, Milestone]


@dataclass(frozen=True)
class Filter:
    """The filter of an issue list; "" matches everything. ``assignee`` may be "none"."""

    state: str = "open"
    kind: str = ""
    label: str = ""
    assignee: str = ""
    milestone: str = ""
    priority: str = ""
    text: str = ""

    def accepts(self, issue: Issue) -> bool:
        return (
            (self.state not in ("open", "closed") or (self.state == "closed") == bool(issue.closed))
            and self.kind in ("", issue.kind)
            and (not self.label or self.label in issue.labels)
            and (not self.assignee or (issue.assignee or "none") == self.assignee)
            and (not self.milestone or (issue.milestone or "none") == self.milestone)
            and self.priority in ("", issue.priority)
            and self._says(issue)
        )

    def _says(self, issue: Issue) -> bool:
        comment = f"{issue.key} {issue.title} {issue.text}".lower()
        return all(word in comment for word in self.text.lower().split()[:20])


@dataclass
class Tracker:
    """The state of the site.

    Attributes:
        today: The fixed current date.
        me: The signed-in user.
        members: Everybody to whom issues can be assigned, including ``me``.
        projects: Projects by key.
        issues: Issues by key, such as ``"WEB-12"``.
    """

    today: date
    me: Person
    members: list[Person]
    projects: dict[str, Project]
    issues: dict[str, Issue] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Return all data of every issue and milestone. Looking at pages changes nothing."""
        return {
            "issues": {key: issue.facts() for key, issue in sorted(self.issues.items())},
            "milestones": [
                [project.key, milestone.name, milestone.due.isoformat(), milestone.closed]
                for project in self.projects.values()
                for milestone in project.milestones.values()
            ],
        }

    # Queries

    def name_of(self, email: str) -> str:
        return next((person.name for person in self.members if person.email == email), email)

    def of_project(self, project: str, asked: Filter | None = None, sort: str = "newest") -> list[Issue]:
        """Return the issues of a project that match a filter."""
        asked = asked or Filter(state="")
        found = [issue for issue in self.issues.values() if issue.project == project and asked.accepts(issue)]
        found.sort(key=lambda issue: issue.number, reverse=sort != "oldest")
        if sort == "comments":
            found.sort(key=lambda issue: len(issue.comments), reverse=True)
        elif sort == "priority":
            found.sort(key=lambda issue: PRIORITIES.index(issue.priority), reverse=True)
        return found

    # Changes

    def report(
        self,
        project: str,
        title: str,
        text: str,
        *,
        kind: str = "Task",
        priority: str = "Medium",
        assignee: str = "",
        milestone: str = "",
        labels: Iterable[str] = (),
    ) -> Issue:
        """Create an issue reported by the user."""
        if project not in self.projects:
            raise FormError(f"There is no project {project[:40]!r}.")
        _one_of("kind", kind, KINDS)
        _one_of("priority", priority, PRIORITIES)
        number = 1 + max((issue.number for issue in self.issues.values() if issue.project == project), default=0)
        issue = Issue(project, number, title, text, kind, priority, self.me.email, self.today)
        self._check(issue, assignee, milestone, labels)
        return self._put(issue, assignee=assignee, milestone=milestone, labels=tuple(sorted(set(labels))))

    def edit(self, key: str, title: str, text: str) -> None:
        self._put(self._get(key), title=title, text=text)

    def assign(self, key: str, email: str) -> None:
        """Assign an issue, or unassign it with ""."""
        issue = self._get(key)
        self._check(issue, email, issue.milestone, ())
        self._put(issue, assignee=email)

    def set_labels(self, key: str, labels: Iterable[str]) -> None:
        issue, chosen = self._get(key), tuple(sorted(set(labels)))
        self._check(issue, issue.assignee, issue.milestone, chosen)
        self._put(issue, labels=chosen)

    def set_milestone(self, key: str, name: str) -> None:
        """Set the open milestone of an issue, or remove it with ""."""
        issue = self._get(key)
        self._check(issue, issue.assignee, name, ())
        self._put(issue, milestone=name)

    def set_priority(self, key: str, priority: str) -> None:
        _one_of("priority", priority, PRIORITIES)
        self._put(self._get(key), priority=priority)

    def move(self, key: str, column: str) -> None:
        """Move an open issue on the board. The column "Done" does not close it."""
        _one_of("column", column, COLUMNS)
        issue = self._get(key)
        if issue.closed:
            raise FormError(f"{key} is closed: reopen it before it is moved on the board.")
        self._put(issue, column=column)

    def comment(self, key: str, text: str) -> None:
        issue = self._get(key)
        self._put(issue, comments=(*issue.comments, Comment(self.me.email, self.today, text)))

    def close(self, key: str, reason: str = "completed", duplicate_of: str = "") -> None:
        """Close an open issue. A duplicate names another issue of the same project."""
        issue = self._get(key)
        _one_of("reason", reason, REASONS)
        if issue.closed:
            raise FormError(f"{key} is closed already.")
        if reason == "duplicate":
            other = self.issues.get(duplicate_of)
            if other is None or other.project != issue.project or duplicate_of == key:
                raise FormError(f"A duplicate names another issue of {issue.project}, not {duplicate_of[:40]!r}.")
        else:
            duplicate_of = ""
        self._put(issue, closed=reason, duplicate_of=duplicate_of, column="Done")

    def reopen(self, key: str) -> None:
        """Reopen a closed issue in the backlog."""
        issue = self._get(key)
        if not issue.closed:
            raise FormError(f"{key} is open.")
        self._put(issue, closed="", duplicate_of="", column="Backlog")

    def close_milestone(self, project: str, name: str) -> None:
        """Close a milestone without open issues."""
        milestone = self.projects[project].milestones.get(name) if project in self.projects else None
        if milestone is None or milestone.closed:
            raise FormError(f"There is no open milestone {name[:40]!r}.")
        left = self.of_project(project, Filter(milestone=name))
        if left:
            raise FormError(f"“{name}” still has {len(left)} open issue{'s' * (len(left) > 1)}.")
        self.projects[project].milestones[name] = replace(milestone, closed=True)

    def _check(self, issue: Issue, assignee: str, milestone: str, labels: Iterable[str]) -> None:
        project = self.projects[issue.project]
        _one_of("member", assignee, ("", *(person.email for person in self.members)))
        still_open = [item.name for item in project.milestones.values() if not item.closed]
        _one_of("open milestone", milestone, ("", *still_open, issue.milestone))
        for label in labels:
            _one_of("label", label, project.labels)

    def _get(self, key: str) -> Issue:
        issue = self.issues.get(key)
        if issue is None:
            raise FormError(f"There is no issue {key[:40]!r}.")
        return issue

    def _put(self, issue: Issue, **changes: Any) -> Issue:
        issue = self.issues[issue.key] = replace(issue, **changes)
        return issue


def _one_of(name: str, value: str, choices: Iterable[str]) -> None:
    if value not in choices:
        raise FormError(f"{value[:40]!r} is no {name}.")
