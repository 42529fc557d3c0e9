"""Generates a tracker with busy projects from a seed: many similarly named issues, open and closed."""

from __future__ import annotations

from datetime import date, timedelta
from random import Random

from rllm_gym.envs.web.sites.people import Person, a_workday, staff
from rllm_gym.envs.web.sites.tracker.pages import TrackerApp
from rllm_gym.envs.web.sites.tracker.state import COLUMNS, PRIORITIES, REASONS, Comment, Issue, Milestone, Project

PROJECTS = (("WEB", "Web shop"), ("APP", "Mobile app"), ("OPS", "Operations"), ("PAY", "Payments"), ("DOC", "Handbook"))
LABELS = (
    "accessibility", "analytics", "design", "documentation", "performance", "regression", "security", "support",
    "translation", "usability",
)  # fmt: skip
PARTS = (
    "Checkout", "Search", "Login", "Sign-up", "Basket", "Product page", "Order list", "Invoice export",
    "Newsletter form", "Image gallery", "Address book", "Password reset", "Start page", "Filter bar", "Price table",
    "Delivery estimate", "Stock import", "Customer chat", "Wish list", "Settings page",
)  # fmt: skip
PROBLEMS = {
    "Bug": (
        "fails on small screens", "loses what was typed", "shows the wrong language", "is slow with many items",
        "breaks after going back", "ignores the keyboard", "shows an empty page", "counts twice", "cuts long names",
        "does not remember the choice",
    ),
    "Feature": (
        "should offer an undo", "needs a dark theme", "should remember the last visit", "needs a printable view",
        "should suggest similar items", "needs an export to CSV", "should work offline",
    ),
    "Task": (
        "has to be measured", "needs new texts", "has to move to the new server", "needs an owner",
        "has to be documented", "needs test data",
    ),
}  # fmt: skip
REPORTS = (
    "I noticed this yesterday and could repeat it three times.",
    "Two customers wrote to us about it.",
    "It happens with the newest version only.",
    "We talked about this in the last planning.",
    "There is no way around it that I know of.",
    "It is not urgent, but it comes up again and again.",
)
REMARKS = (
    "I can have a look at it.",
    "This was reported before, I think.",
    "Works for me, which browser do you use?",
    "We should settle this before the next release.",
    "The same happens on my phone.",
    "I asked the customer for more details.",
)


def build(seed: int, difficulty: int) -> TrackerApp:
    """Build one project of 24 issues at difficulty 1, up to three projects of up to 60 issues at difficulty 5."""
    rng = Random(f"tracker {difficulty} {seed}")
    me, *others = staff(rng, 5 + 2 * difficulty)
    app = TrackerApp(a_workday(rng), me, sorted([me, *others], key=lambda person: person.name), {})
    fill(app, rng, difficulty)
    return app


def fill(app: TrackerApp, rng: Random, difficulty: int) -> None:
    """Add projects and issues to an empty tracker. The first project is the largest."""
    titles: set[str] = set()
    for index, (key, name) in enumerate(rng.sample(PROJECTS, 1 + difficulty // 2)):
        labels = tuple(sorted(rng.sample(LABELS, 4 + difficulty // 2)))
        project = Project(key, name, labels, _milestones(rng, app.today))
        app.projects[key] = project
        count = (15 + 9 * difficulty) // (1 + index)
        born = sorted(rng.sample(range(1, 5 * count), count), reverse=True)
        for number, ago in enumerate(born, 1):
            issue = _issue(app, rng, project, number, app.today - timedelta(days=ago), titles)
            app.issues[issue.key] = issue


def _milestones(rng: Random, today: date) -> dict[str, Milestone]:
    """Return one closed and three open milestones."""
    version = rng.randint(1, 6)
    first = rng.randint(0, 5)
    names = [f"{version}.{first + step}" for step in range(3)] + [f"{version + 1}.0"]
    due = today - timedelta(days=rng.randint(20, 40))
    milestones = {}
    for index, name in enumerate(names):
        milestones[name] = Milestone(name, due, closed=index == 0)
        due += timedelta(days=rng.randint(25, 50))
    return milestones


def _issue(app: TrackerApp, rng: Random, project: Project, number: int, created: date, titles: set[str]) -> Issue:
    kind = rng.choices(tuple(PROBLEMS), (5, 3, 2))[0]
    while True:
        part = rng.choice(PARTS)
        title = f"{part} {rng.choice(PROBLEMS[kind])}"
        if title not in titles:
            titles.add(title)
            break
    closed = rng.choices(("", *REASONS[:2]), (66, 24, 10))[0]
    if number == 1:  # the oldest issue of a project is completed, so a closed issue always exists
        closed = REASONS[0]
    column = "Done" if closed else rng.choices(COLUMNS[:3], (5, 3, 2))[0]
    # Completed issues always have an assignee.
    assignee = rng.choice(app.members).email if closed == "completed" or rng.random() < 0.6 else ""
    in_time = [name for name, milestone in project.milestones.items() if closed or not milestone.closed]
    return Issue(
        project.key,
        number,
        title,
        " ".join(rng.sample(REPORTS, 2)),
        kind,
        rng.choices(PRIORITIES, (3, 4, 3, 1))[0],
        rng.choice(app.members).email,
        created,
        assignee=assignee,
        labels=tuple(sorted(rng.sample(project.labels, rng.choice((0, 1, 1, 2))))),
        milestone=rng.choice(in_time) if rng.random() < 0.55 else "",
        column=column,
        closed=closed,
        comments=tuple(_comment(app, rng, created) for _ in range(rng.choice((0, 0, 1, 2, 3)))),
    )


def _comment(app: TrackerApp, rng: Random, created: date) -> Comment:
    author: Person = rng.choice(app.members)
    return Comment(author.email, created, rng.choice(REMARKS))
