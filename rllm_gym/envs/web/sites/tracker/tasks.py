"""The tracker's tasks: triaging, reporting, closing, moving and counting issues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from random import Random

from rllm_gym.envs.web.sites.moves import Click, Fill, Move, Moves, Select
from rllm_gym.envs.web.sites.task import WebTask, WebTaskTemplate, change_task, infeasible_task, question_task
from rllm_gym.envs.web.sites.tracker.generate import PARTS, PROBLEMS, REMARKS, REPORTS, build
from rllm_gym.envs.web.sites.tracker.pages import ORIGIN, TrackerApp
from rllm_gym.envs.web.sites.tracker.state import COLUMNS, KINDS, PRIORITIES, Filter, Issue, Project, Tracker
from rllm_gym.envs.web.sites.wording import FIRST_NAMES, listed, long_date

START_URL = f"{ORIGIN}/"
_LEVELS = (1, 2, 3, 4, 5)
# Each issue takes five steps of the thirty that an episode has by default.
_MAX_ISSUES = 4
# Repeated "" entries make "any priority" more frequent than a uniform draw would.
_ANY_PRIORITY = ("", "", "", *PRIORITIES)
_FIELDS = {"state": "State", "kind": "Kind", "label": "Label", "priority": "Priority", "milestone": "Milestone"}

# Move sequences


def open_project(project: Project) -> Moves:
    return Click("link", "Projects"), Click("link", project.name)


def open_issue(issue: Issue) -> Moves:
    return Fill("Search issues", f"{issue.key} {issue.title}"), Click("button", "Search"), Click("link", issue.title)


def filtered(project: Project, asked: Filter, names: dict[str, str]) -> Moves:
    """Return the moves from any page to a filtered list. ``names`` maps addresses of assignees to names."""
    chosen = {label: getattr(asked, field) for field, label in _FIELDS.items()}
    if chosen["State"] != "open":
        chosen["State"] = "open and closed" if asked.state == "all" else asked.state
    else:
        del chosen["State"]
    if asked.assignee:
        chosen["Assignee"] = names.get(asked.assignee, "nobody")
    selects = [Select(label, option) for label, option in chosen.items() if option]
    return *open_project(project), *selects, Click("button", "Filter")


def _for_each(issues: Iterable[Issue], *act: Move) -> Moves:
    return tuple(move for issue in issues for move in (*open_issue(issue), *act))


def _set(label: str, option: str) -> Moves:
    return Select(label, option), Click("button", f"Set {label.lower()}")


def _comment(text: str) -> Moves:
    return (Fill("Add a comment", text), Click("button", "Comment")) if text else ()


def report(project: Project, title: str, text: str, chosen: dict[str, str], labels: Sequence[str]) -> Moves:
    """Return the moves from any page to a new issue."""
    return (
        *open_project(project),
        Click("link", "New issue"),
        Fill("Title", title),
        Fill("Description", text),
        *(Select(label, option) for label, option in chosen.items()),
        *(Click("checkbox", label) for label in labels),
        Click("button", "Create issue"),
    )


# Selection


def _main(app: Tracker) -> Project:
    return next(iter(app.projects.values()))


def _names(app: Tracker) -> dict[str, str]:
    return {person.email: person.name for person in app.members}


def _filter_with(app: Tracker, rng: Random, project: Project, low: int, high: int, **fixed: str) -> Filter:
    """Return a filter that finds from ``low`` to ``high`` issues, or as close to this as possible."""
    choices = [
        (label, kind, priority) for label in project.labels for kind in ("", *KINDS) for priority in _ANY_PRIORITY
    ]
    best, least = Filter(**fixed), 10_000
    for label, kind, priority in rng.sample(choices, len(choices)):
        asked = replace(Filter(label=label, kind=kind, priority=priority), **fixed)
        found = len(app.of_project(project.key, asked))
        distance = max(low - found, found - high, 0)
        if found and distance < least:
            best, least = asked, distance
        if not least:
            break
    return best


def _words(asked: Filter) -> str:
    """Return a description such as ``open issues of the kind Bug with the label “design”``."""
    state = {"open": "open ", "closed": "closed ", "all": "open or closed "}[asked.state]
    kind = f"issues of the kind {asked.kind}" if asked.kind else "issues"
    label = f" with the label “{asked.label}”" if asked.label else ""
    priority = f" and the priority {asked.priority}" if asked.priority and label else ""
    priority = priority or (f" with the priority {asked.priority}" if asked.priority else "")
    return f"{state}{kind}{label}{priority}"


# Templates


def assign_all(app: TrackerApp, rng: Random, difficulty: int) -> WebTask:
    """Return a task: assign every unassigned open issue of a kind to one person."""
    project = _main(app)
    most = min(_MAX_ISSUES, 1 + difficulty)
    asked = _filter_with(app, rng, project, min(most, 1 + difficulty // 2), most, assignee="none")
    found = app.of_project(project.key, asked)
    person = rng.choice(app.members)
    infeasible = rng.random() < 0.12
    name = person.name
    if infeasible:
        known = set(_names(app).values())
        name = next(n for f in rng.sample(FIRST_NAMES, len(FIRST_NAMES)) if (n := f"{f} {person.last}") not in known)
    goal = rng.choice(
        (
            f"In the project {project.name}, assign all {_words(asked)} that nobody is assigned to yet to {name}.",
            f"{name} takes over the {_words(asked)} in {project.name} that have no assignee. Assign all of them.",
        )
    )
    if infeasible:
        goal += " If there is no such person here, change nothing and say so."
        return infeasible_task(goal, START_URL, [Click("link", "People")], f"{name} is not among the people.")

    def outcome(expected: TrackerApp) -> None:
        for issue in found:
            expected.assign(issue.key, person.email)

    moves = *filtered(project, asked, {}), *_for_each(found, *_set("Assignee", name))
    return change_task(goal, START_URL, moves, outcome)


def close_duplicate(app: TrackerApp, rng: Random, difficulty: int) -> WebTask:
    project = _main(app)
    issues = app.of_project(project.key, Filter(), "oldest")
    older, newer = sorted(rng.sample(issues, 2), key=lambda issue: issue.number)
    infeasible = difficulty >= 2 and rng.random() < 0.12
    comment = rng.choice(REMARKS) if difficulty >= 3 else ""
    then = f" Before that, write the comment “{comment}” on the one that you close." if comment else ""
    if infeasible:
        missing = f"{project.key}-{len(app.issues) + rng.randint(5, 60)}"
        goal = (
            f"Close the issue “{newer.title}” in {project.name} as a duplicate of {missing}. If there is no {missing}, "
            "leave it open and say so."
        )
        search = Fill("Search issues", missing), Click("button", "Search")
        return infeasible_task(goal, START_URL, search, f"No {missing}.")
    goal = rng.choice(
        (
            f"In {project.name}, “{newer.title}” and “{older.title}” report the same. Close the one with the higher "
            f"number as a duplicate of the other.{then}",
            f"Close the newer of the two issues “{older.title}” and “{newer.title}” ({project.name}) as a duplicate of "
            f"the older one.{then}",
        )
    )

    def outcome(expected: TrackerApp) -> None:
        if comment:
            expected.comment(newer.key, comment)
        expected.close(newer.key, "duplicate", older.key)

    moves = (
        *open_issue(newer),
        *_comment(comment),
        Click("button", "Close …"),
        Click("tab", "Duplicate"),
        Fill("Key of the other issue", older.key),
        Click("button", "Close as duplicate"),
    )
    return change_task(goal, START_URL, moves, outcome)


def count_issues(app: TrackerApp, rng: Random, difficulty: int) -> WebTask:
    project = rng.choice(list(app.projects.values()))
    fixed = {"state": rng.choice(("open", "closed", "all"))}
    if difficulty >= 4:
        fixed["assignee"] = rng.choice([person.email for person in app.members])
        fixed["label"] = ""
    asked = _filter_with(app, rng, project, 3 * difficulty, 10 * difficulty, **fixed)
    found = app.of_project(project.key, asked)
    owner = f" that are assigned to {_names(app)[asked.assignee]}" if asked.assignee else ""
    since = ""
    if difficulty >= 3 and found:
        day = rng.choice(found).created
        found = [issue for issue in found if issue.created >= day]
        since = f" and were created on {long_date(day)} or later" if owner else f" created on {long_date(day)} or later"
    goal = rng.choice(
        (
            f"How many {_words(asked)}{owner}{since} are there in the project {project.name}?",
            f"Count the {_words(asked)}{owner}{since} in {project.name} and answer with the number.",
        )
    )
    moves = filtered(project, asked, _names(app))
    return question_task(goal, START_URL, moves, str(len(found)), {"type": "number", "value": len(found)})


def new_issue(app: TrackerApp, rng: Random, difficulty: int) -> WebTask:
    project = rng.choice(list(app.projects.values()))
    kind = rng.choice(KINDS)
    titles = {issue.title for issue in app.issues.values()}
    title = next(
        t for _ in range(999) if (t := f"{rng.choice(PARTS)} {rng.choice(PROBLEMS[kind])} again") not in titles
    )
    text = " ".join(rng.sample(REPORTS, min(3, 1 + difficulty // 2)))
    priority = rng.choice([name for name in PRIORITIES if name != "Medium"])
    person = rng.choice(app.members)
    labels = sorted(rng.sample(project.labels, min(2, difficulty // 2)))
    still_open = [milestone.name for milestone in project.milestones.values() if not milestone.closed]
    milestone = rng.choice(still_open) if difficulty >= 3 else ""
    infeasible = difficulty >= 3 and rng.random() < 0.15
    if infeasible:
        milestone = next(name for name, item in project.milestones.items() if item.closed)
    named = f"the label{'s' * (len(labels) > 1)} {listed([f'“{label}”' for label in labels])}" if labels else "no label"
    planned = f"the milestone {milestone}" if milestone else "no milestone"
    goal = (
        f"Report a new issue in {project.name}: title “{title}”, description “{text}”, kind {kind}, priority "
        f"{priority}, assigned to {person.name}, with {named} and {planned}."
    )
    if infeasible:
        goal += " If that milestone is closed already, report nothing in the tracker and say so."
        moves = *open_project(project), Click("link", "Milestones")
        return infeasible_task(goal, START_URL, moves, "The milestone is closed.")

    def outcome(expected: TrackerApp) -> None:
        options = {"kind": kind, "priority": priority, "assignee": person.email, "milestone": milestone}
        expected.report(project.key, title, text, **options, labels=labels)

    chosen = {"Kind": kind, "Priority": priority, "Assignee": person.name}
    chosen |= {"Milestone": milestone} if milestone else {}
    return change_task(goal, START_URL, report(project, title, text, chosen, labels), outcome)


def move_milestone(app: TrackerApp, rng: Random, difficulty: int) -> WebTask:
    """Return a task: move all issues of a milestone to another and close it, or move some of its issues."""
    project = _main(app)
    still_open = [milestone.name for milestone in project.milestones.values() if not milestone.closed]
    sizes = {name: len(app.of_project(project.key, Filter(milestone=name))) for name in still_open}
    small = [name for name in still_open if 0 < sizes[name] < _MAX_ISSUES]
    closing = bool(small) and rng.random() < 0.6
    source = rng.choice(small if closing else [name for name in still_open if sizes[name]])
    target = rng.choice([name for name in still_open if name != source])
    asked = Filter(milestone=source)
    if not closing:
        most = min(_MAX_ISSUES, 1 + difficulty)
        asked = _filter_with(app, rng, project, min(most, 1 + difficulty // 2), most, milestone=source)
    found = app.of_project(project.key, asked)
    then = f" Then close the milestone {source}." if closing else ""
    goal = rng.choice(
        (
            f"In {project.name}, move all {_words(asked)} of the milestone {source} to the milestone {target}. "
            f"Everything else stays where it is.{then}",
            f"The {_words(asked)} that are planned for {source} in {project.name} go to the milestone {target}, and "
            f"nothing else does.{then}",
        )
    )

    def outcome(expected: TrackerApp) -> None:
        for issue in found:
            expected.set_milestone(issue.key, target)
        if closing:
            expected.close_milestone(project.key, source)

    moves = *filtered(project, asked, {}), *_for_each(found, *_set("Milestone", target))
    if closing:
        moves = *moves, *open_project(project), Click("link", "Milestones"), Click("button", f"Close {source}")
    return change_task(goal, START_URL, moves, outcome)


def move_on_board(app: TrackerApp, rng: Random, difficulty: int) -> WebTask:
    """Return a task: move cards to other columns and, from difficulty 3 on, write a comment."""
    project = _main(app)
    issues = rng.sample(app.of_project(project.key, Filter()), min(3, 1 + difficulty // 2))
    targets = [rng.choice([column for column in COLUMNS if column != issue.column]) for issue in issues]
    comment = rng.choice(REMARKS) if difficulty >= 3 else ""
    orders = listed([f"“{issue.title}” to “{target}”" for issue, target in zip(issues, targets)])
    then = f" Then write the comment “{comment}” on the first of them." if comment else ""
    goal = f"On the board of {project.name}, move {orders}.{then} Close nothing."
    moves: list[Move] = [Click("link", f"Board of {project.name}")]
    for issue, target in zip(issues, targets):
        moves += [Select(f"Column of {issue.key}", target), Click("button", f"Move {issue.key}")]
    moves += [*open_issue(issues[0]), *_comment(comment)] if comment else []

    def outcome(expected: TrackerApp) -> None:
        for issue, column in zip(issues, targets):
            expected.move(issue.key, column)
        if comment:
            expected.comment(issues[0].key, comment)

    return change_task(goal, START_URL, moves, outcome)


def look_up(app: TrackerApp, rng: Random, difficulty: int) -> WebTask:
    """Return a question about the oldest issue of a kind, the reporter of an issue, or the busiest assignee."""
    project = rng.choice(list(app.projects.values()))
    issues = app.of_project(project.key, Filter())
    load = Counter(issue.assignee for issue in issues if issue.assignee).most_common(2)
    busiest = len(load) == 2 and load[0][1] > load[1][1]
    question = rng.choice(("oldest", "reporter", "busiest" if busiest else "oldest"))
    moves: Moves
    if question == "oldest":
        asked = _filter_with(app, rng, project, 2, 30)
        goal = rng.choice(
            (
                f"What is the key of the oldest of the {_words(asked)} in {project.name}?",
                f"Which of the {_words(asked)} in {project.name} was created first? Answer with its key.",
            )
        )
        moves = (*filtered(project, asked, {})[:-1], Select("Sort by", "Oldest"), Click("button", "Filter"))
        text = app.of_project(project.key, asked, "oldest")[0].key
    elif question == "reporter":
        issue = rng.choice(issues)
        goal = f"Who reported “{issue.title}” in {project.name}? Answer with first name and surname."
        moves = open_issue(issue)
        text = _names(app)[issue.author]
    else:
        goal = f"Who is assigned to the most open issues of the project {project.name}? Answer with the whole name."
        moves = open_project(project)
        text = _names(app)[load[0][0]]
    return question_task(goal, START_URL, moves, text, {"type": "string", "value": text})


def close_stale(app: TrackerApp, rng: Random, difficulty: int) -> WebTask:
    """Return a task: close old issues of a kind as not planned."""
    project = _main(app)
    asked = _filter_with(app, rng, project, 1 + difficulty, 4 + 2 * difficulty)
    issues = app.of_project(project.key, asked, "oldest")
    count = rng.randint(1, min(len(issues), difficulty, _MAX_ISSUES - 1))
    before = issues[count - 1].created + timedelta(days=1)
    stale = [issue for issue in issues if issue.created < before]
    goal = rng.choice(
        (
            f"Close as “not planned” all {_words(asked)} in {project.name} created before {long_date(before)}.",
            f"In {project.name}, the {_words(asked)} from before {long_date(before)} will not be done: close each of "
            "them with the reason “not planned”.",
        )
    )

    def outcome(expected: TrackerApp) -> None:
        for issue in stale:
            expected.close(issue.key, "not planned")

    close = Click("button", "Close …"), Select("Reason", "not planned"), Click("button", "Close issue")
    return change_task(goal, START_URL, (*filtered(project, asked, {}), *_for_each(stale, *close)), outcome)


def reopen_regression(app: TrackerApp, rng: Random, difficulty: int) -> WebTask:
    """Return a task: reopen an issue and set its priority; higher difficulties add a label, an assignee, a comment."""
    project = _main(app)
    issue = rng.choice(app.of_project(project.key, Filter(state="closed")))
    priority = rng.choice([name for name in PRIORITIES if name != issue.priority])
    label = rng.choice([label for label in project.labels if label not in issue.labels]) if difficulty >= 2 else ""
    person = rng.choice([p for p in app.members if p.email != issue.assignee]) if difficulty >= 3 else None
    comment = rng.choice(REMARKS) if difficulty >= 4 else ""
    orders = ["reopen it", f"set its priority to {priority}"]
    orders += [f"add the label “{label}” to those it has"] if label else []
    orders += [f"assign it to {person.name}"] if person else []
    orders += [f"write the comment “{comment}”"] if comment else []
    goal = f"“{issue.title}” in {project.name} is back after it was closed: {listed(orders)}. Change nothing else."
    moves = (
        *open_issue(issue),
        Click("button", "Reopen"),
        *_set("Priority", priority),
        *((Click("checkbox", label), Click("button", "Save labels")) if label else ()),
        *(_set("Assignee", person.name) if person else ()),
        *_comment(comment),
    )

    def outcome(expected: TrackerApp) -> None:
        expected.reopen(issue.key)
        expected.set_priority(issue.key, priority)
        if label:
            expected.set_labels(issue.key, [*issue.labels, label])
        if person:
            expected.assign(issue.key, person.email)
        if comment:
            expected.comment(issue.key, comment)

    return change_task(goal, START_URL, moves, outcome)


TEMPLATES = tuple(
    WebTaskTemplate(f"tracker/{name}", build, make_task, _LEVELS)
    for name, make_task in (
        ("assign-all", assign_all),
        ("close-duplicate", close_duplicate),
        ("count-issues", count_issues),
        ("new-issue", new_issue),
        ("move-milestone", move_milestone),
        ("move-on-board", move_on_board),
        ("look-up", look_up),
        ("close-stale", close_stale),
        ("reopen-regression", reopen_regression),
    )
)
