"""The pages of the issue tracker: filtered lists, issues and their actions, a board, and milestones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rllm_gym.envs.web.sites import pages
from rllm_gym.envs.web.sites.errors import NotFound
from rllm_gym.envs.web.sites.http import Response
from rllm_gym.envs.web.sites.markup import Content, Markup, h, url
from rllm_gym.envs.web.sites.pages import Frame, HtmlPage, form
from rllm_gym.envs.web.sites.pictures import avatar, portrait
from rllm_gym.envs.web.sites.site import LinkedSiteApp, Redirect, Site, Visit
from rllm_gym.envs.web.sites.tracker.state import COLUMNS, KINDS, PRIORITIES, SORTS, Filter, Issue, Project, Tracker
from rllm_gym.envs.web.sites.wording import long_date, plural, short_date

ORIGIN = "http://tracker.test"
PER_PAGE = 12
_LOOK = pages.read_style(__file__)
# Dragging a card to another lane sends the same request as the card's form.
_DRAGGING = Markup(
    "<script>(() => {let held = null;"
    "document.querySelectorAll('.lane .card').forEach(card =>"
    "card.addEventListener('dragstart', () => {held = card;}));"
    "document.querySelectorAll('.lane').forEach(lane => {"
    "lane.addEventListener('dragover', e => {e.preventDefault(); lane.classList.add('over');});"
    "lane.addEventListener('dragleave', () => lane.classList.remove('over'));"
    "lane.addEventListener('drop', e => {e.preventDefault(); if (!held) return;"
    "const form = held.querySelector('form'); form.elements.column.value = lane.dataset.column;"
    "form.requestSubmit();});});})()</script>"
)
_PRIORITY_TONES = {"Low": "", "Medium": "", "High": ".warn", "Urgent": ".bad"}


def _frame(app: TrackerApp) -> Frame:
    return Frame(
        name="Trackside",
        colour="#6a48d6",
        navigation=(("Projects", "/"), ("My issues", "/mine"), ("People", "/people"), *app.neighbours),
        today=app.today,
        user=app.me.name,
        search=("Search issues", "/search"),
        wide=True,
        style=_LOOK,
    )


site: Site[TrackerApp] = Site(ORIGIN, _frame)


@dataclass
class TrackerApp(LinkedSiteApp, Tracker):
    """The tracker with its pages."""

    routes = site


def _project(app: TrackerApp, key: str) -> Project:
    if key not in app.projects:
        raise NotFound(f"There is no project {key[:40]!r}.")
    return app.projects[key]


def _issue(app: TrackerApp, key: str) -> Issue:
    if key not in app.issues:
        raise NotFound(f"There is no issue {key[:40]!r}.")
    return app.issues[key]


# Lists


@site.get("/")
def projects(app: TrackerApp, visit: Visit) -> HtmlPage:
    cards = [
        h(
            "section.card",
            h("h2", h("a", project.name, href=f"/project/{project.key}")),
            h("p.muted", f"Key {project.key}"),
            h("p", f"{plural(len(app.of_project(project.key, Filter())), 'open issue')}"),
            h("p", h("a", f"Board of {project.name}", href=f"/project/{project.key}/board")),
        )
        for project in app.projects.values()
    ]
    return HtmlPage("Projects", h("div.grid", cards))


@site.get("/people")
def people(app: TrackerApp, visit: Visit) -> HtmlPage:
    rows = [
        (
            [avatar(person.name, 24), person.name],
            person.email,
            sum(i.assignee == person.email and not i.closed for i in app.issues.values()),
        )
        for person in app.members
    ]
    return HtmlPage("People", pages.table(("Name", "Address", "Open issues"), rows, numeric=(2,)))


@site.get("/pictures/people/<path:name>.svg")
def person_picture(app: TrackerApp, visit: Visit, name: str) -> Response:
    return portrait(name)


@site.get("/mine")
def mine(app: TrackerApp, visit: Visit) -> HtmlPage:
    found = [issue for issue in app.issues.values() if issue.assignee == app.me.email and not issue.closed]
    return HtmlPage("My issues", _table(app, found) if found else h("div.card", "No open issue is yours."))


@site.get("/search")
def search(app: TrackerApp, visit: Visit) -> HtmlPage:
    text = visit.asked("q")
    asked = Filter(state="", text=text)
    found = [issue for issue in app.issues.values() if text and asked.accepts(issue)]
    part = pages.paginate(found, visit.page(), PER_PAGE)
    body = [
        h("p.muted", f"{plural(len(found), 'issue')} for “{text}”, open and closed, in all projects"),
        _table(app, part.items) if found else h("div.card", "No issue was found."),
        pages.page_links(part, "/search", q=text),
    ]
    return HtmlPage("Search", body, query=text)


@site.get("/project/<key>")
def issues(app: TrackerApp, visit: Visit, key: str) -> HtmlPage:
    project = _project(app, key)
    asked = Filter(
        state=visit.asked("state") or "open",
        kind=visit.asked("kind"),
        label=visit.asked("label"),
        assignee=visit.asked("assignee"),
        milestone=visit.asked("milestone"),
        priority=visit.asked("priority"),
        text=visit.asked("text"),
    )
    sort = visit.asked("sort") if visit.asked("sort") in SORTS else "newest"
    part = pages.paginate(app.of_project(key, asked, sort), visit.page(), PER_PAGE)
    shown = {name: getattr(asked, name) for name in Filter.__dataclass_fields__} | {"sort": sort}
    body = [
        h("p.muted", f"{plural(part.total, 'issue')} found, page {part.page} of {part.pages}"),
        _table(app, part.items) if part.items else h("div.card", "No issue was found."),
        pages.page_links(part, f"/project/{key}", **shown),
    ]
    return HtmlPage(
        project.name,
        body,
        aside=_filters(app, project, asked, sort),
        actions=[
            pages.link_button("Board", f"/project/{key}/board"),
            pages.link_button("Milestones", f"/project/{key}/milestones"),
            pages.link_button("New issue", f"/project/{key}/new", tone=""),
        ],
    )


def _filters(app: TrackerApp, project: Project, asked: Filter, sort: str) -> Markup:
    anything = ("", "any")
    return form(
        f"/project/{project.key}",
        pages.choice(
            "State", "state", [("open", "open"), ("closed", "closed"), ("all", "open and closed")], asked.state
        ),
        pages.choice("Kind", "kind", [anything, *((kind, kind) for kind in KINDS)], asked.kind),
        pages.choice("Label", "label", [anything, *((label, label) for label in project.labels)], asked.label),
        pages.choice("Assignee", "assignee", [anything, ("none", "nobody"), *_members(app)], asked.assignee),
        pages.choice(
            "Milestone", "milestone", [anything, ("none", "none"), *_pairs(project.milestones)], asked.milestone
        ),
        pages.choice("Priority", "priority", [anything, *_pairs(PRIORITIES)], asked.priority),
        pages.field("Text contains", "text", asked.text),
        pages.choice("Sort by", "sort", SORTS.items(), sort),
        pages.button("Filter"),
        method="get",
    )


def _members(app: TrackerApp) -> list[tuple[str, str]]:
    return [(person.email, person.name) for person in app.members]


def _pairs(names: Iterable[str]) -> list[tuple[str, str]]:
    return [(name, name) for name in names]


def _table(app: TrackerApp, found: Iterable[Issue]) -> Markup:
    rows = [
        (
            h("span.once", issue.key),
            h(
                "span",
                h("a", issue.title, href=f"/issue/{issue.key}"),
                [[" ", h("span.badge", label)] for label in issue.labels],
            ),
            issue.kind,
            h(f"span.badge{_PRIORITY_TONES[issue.priority]}", issue.priority),
            app.name_of(issue.assignee) if issue.assignee else "nobody",
            issue.milestone or "none",
            h("span.once", short_date(issue.created)),
            len(issue.comments),
            _state(issue),
        )
        for issue in found
    ]
    headings = ("Key", "Title", "Kind", "Priority", "Assignee", "Milestone", "Created", "Comments", "State")
    return pages.table(headings, rows, numeric=(7,))


def _state(issue: Issue) -> Markup:
    if not issue.closed:
        return h("span.badge.good", "open")
    return h("span.badge", f"closed: {issue.closed}" + (f" of {issue.duplicate_of}" if issue.duplicate_of else ""))


# Board and milestones


@site.get("/project/<key>/board")
def board(app: TrackerApp, visit: Visit, key: str) -> HtmlPage:
    project = _project(app, key)
    found = app.of_project(key, Filter(), "oldest")
    loops = [
        h(
            "section.lane",
            h("h2", f"{column} ({sum(issue.column == column for issue in found)})"),
            [_card(app, issue) for issue in found if issue.column == column],
            role="group",
            aria_label=column,
            tabindex=0,
            data_column=column,
        )
        for column in COLUMNS
    ]
    return HtmlPage(
        f"Board of {project.name}",
        [
            h("p.muted", "Drag a card to another column, or choose one and press Move."),
            h("div.board", loops),
            _DRAGGING,
        ],
        trail=((project.name, f"/project/{key}"),),
    )


def _card(app: TrackerApp, issue: Issue) -> Markup:
    others = [(column, column) for column in COLUMNS if column != issue.column]
    return h(
        "div.card",
        h("p.muted.small", f"{issue.key} · {issue.kind}"),
        h("p", h("a", issue.title, href=f"/issue/{issue.key}")),
        h("p.small", app.name_of(issue.assignee) if issue.assignee else "nobody"),
        form(
            f"/issue/{issue.key}/column",
            h(
                "select",
                [h("option", text, value=value) for value, text in [*others, (issue.column, issue.column)]],
                name="column",
                aria_label=f"Column of {issue.key}",
            ),
            pages.button("Move", tone="quiet", aria_label=f"Move {issue.key}"),
            class_="row",
        ),
        draggable="true",
    )


@site.get("/project/<key>/milestones")
def milestones(app: TrackerApp, visit: Visit, key: str) -> HtmlPage:
    project = _project(app, key)
    rows = []
    for milestone in project.milestones.values():
        inside = app.of_project(key, Filter(state="", milestone=milestone.name))
        done = sum(bool(issue.closed) for issue in inside)
        path = url(f"/project/{key}", milestone=milestone.name, state="all")
        closing = pages.post_button(
            f"Close {milestone.name}",
            f"/project/{key}/milestones/close",
            fields={"name": milestone.name},
            confirm=f"Close the milestone {milestone.name}?",
        )
        rows.append(
            (
                h("a", milestone.name, href=path),
                long_date(milestone.due),
                f"{done} of {len(inside)} closed",
                h("span.badge", "closed") if milestone.closed else closing,
            )
        )
    return HtmlPage(
        f"Milestones of {project.name}",
        pages.table(("Milestone", "Due", "Issues", ""), rows),
        trail=((project.name, f"/project/{key}"),),
    )


@site.post("/project/<key>/milestones/close")
def close_milestone(app: TrackerApp, visit: Visit, key: str) -> Redirect:
    name = visit.line("name", "The milestone")
    app.close_milestone(key, name)
    return Redirect(f"/project/{key}/milestones", f"The milestone {name} was closed.")


# One issue


@site.get("/issue/<key>")
def show(app: TrackerApp, visit: Visit, key: str) -> HtmlPage:
    issue = _issue(app, key)
    project = app.projects[issue.project]
    comment_text = [
        h(
            "div.said",
            avatar(app.name_of(comment.author)),
            h("p.muted", f"{app.name_of(comment.author)} on {long_date(comment.day)}"),
            comment.text,
        )
        for comment in issue.comments
    ]
    commenting = form(
        f"/issue/{key}/comment",
        pages.text_area("Add a comment", "text", rows=4),
        pages.button("Comment"),
        class_="card",
    )
    body = [
        h(
            "p",
            _state(issue),
            " ",
            h("span.muted", f"reported by {app.name_of(issue.author)} on {long_date(issue.created)}"),
        ),
        h("div.card", h("div.written", issue.text or "No description.")),
        h("h2", plural(len(issue.comments), "comment")),
        comment_text,
        commenting,
    ]
    return HtmlPage(
        f"{issue.key} {issue.title}",
        body,
        trail=((project.name, f"/project/{project.key}"),),
        aside=_sidebar(app, issue, project),
        actions=_closing(issue),
    )


def _sidebar(app: TrackerApp, issue: Issue, project: Project) -> list[Markup]:
    def picker(label: str, name: str, options: list[tuple[str, str]], chosen: str) -> Markup:
        return form(
            f"/issue/{issue.key}/{name}",
            pages.choice(label, name, options, chosen),
            pages.button(f"Set {label.lower()}", tone="quiet"),
        )

    open_ones = [m.name for m in project.milestones.values() if not m.closed or m.name == issue.milestone]
    return [
        h("div.card", h("p", h("span.muted", "Kind "), issue.kind), h("p", h("span.muted", "Column "), issue.column)),
        picker("Assignee", "assignee", [("", "nobody"), *_members(app)], issue.assignee),
        picker("Milestone", "milestone", [("", "none"), *_pairs(open_ones)], issue.milestone),
        picker("Priority", "priority", _pairs(PRIORITIES), issue.priority),
        form(
            f"/issue/{issue.key}/labels",
            h(
                "fieldset",
                h("legend", "Labels"),
                [
                    pages.checkbox(label, "label", value=label, checked=label in issue.labels)
                    for label in project.labels
                ],
            ),
            pages.button("Save labels", tone="quiet"),
        ),
    ]


def _closing(issue: Issue) -> Content:
    edit = pages.link_button("Edit", f"/issue/{issue.key}/edit")
    if issue.closed:
        return [edit, pages.post_button("Reopen", f"/issue/{issue.key}/reopen")]
    target = f"/issue/{issue.key}/close"
    reasons = [("completed", "completed"), ("not planned", "not planned")]
    panels = pages.tabs(
        ("Done with", form(target, pages.choice("Reason", "reason", reasons, key="done"), pages.button("Close issue"))),
        (
            "Duplicate",
            form(
                target,
                h("input", type="hidden", name="reason", value="duplicate"),
                pages.field(
                    "Key of the other issue", "duplicate_of", hint="Such as WEB-12; it must be of the same project."
                ),
                pages.button("Close as duplicate"),
            ),
        ),
    )
    return [edit, pages.dialog("closing", "Close …", f"Close {issue.key}", panels)]


@site.post("/issue/<key>/assignee")
def assign(app: TrackerApp, visit: Visit, key: str) -> Redirect:
    app.assign(key, visit.form.get("assignee", ""))
    return Redirect(f"/issue/{key}", "The assignee was set.")


@site.post("/issue/<key>/milestone")
def set_milestone(app: TrackerApp, visit: Visit, key: str) -> Redirect:
    app.set_milestone(key, visit.form.get("milestone", ""))
    return Redirect(f"/issue/{key}", "The milestone was set.")


@site.post("/issue/<key>/priority")
def set_priority(app: TrackerApp, visit: Visit, key: str) -> Redirect:
    app.set_priority(key, visit.form.get("priority", ""))
    return Redirect(f"/issue/{key}", "The priority was set.")


@site.post("/issue/<key>/labels")
def set_labels(app: TrackerApp, visit: Visit, key: str) -> Redirect:
    app.set_labels(key, visit.values("label"))
    return Redirect(f"/issue/{key}", "The labels were saved.")


@site.post("/issue/<key>/column")
def move(app: TrackerApp, visit: Visit, key: str) -> Redirect:
    column = visit.line("column", "The column")
    app.move(key, column)
    return Redirect(f"/project/{app.issues[key].project}/board", f"{key} was moved to {column}.")


@site.post("/issue/<key>/comment")
def comment(app: TrackerApp, visit: Visit, key: str) -> Redirect:
    app.comment(key, visit.text("text", "The comment"))
    return Redirect(f"/issue/{key}", "Your comment was added.")


@site.post("/issue/<key>/close")
def close(app: TrackerApp, visit: Visit, key: str) -> Redirect:
    duplicate_of = visit.line("duplicate_of", "The other issue", required=False).upper()
    app.close(key, visit.line("reason", "The reason"), duplicate_of)
    return Redirect(f"/issue/{key}", f"{key} was closed.")


@site.post("/issue/<key>/reopen")
def reopen(app: TrackerApp, visit: Visit, key: str) -> Redirect:
    app.reopen(key)
    return Redirect(f"/issue/{key}", f"{key} is open again.")


# Forms


@site.get("/project/<key>/new")
def new(app: TrackerApp, visit: Visit, key: str) -> HtmlPage:
    project = _project(app, key)
    body = form(
        f"/project/{key}/new",
        pages.field("Title", "title"),
        pages.text_area("Description", "text", rows=7),
        h(
            "div.two",
            pages.choice("Kind", "kind", KINDS, "Task"),
            pages.choice("Priority", "priority", PRIORITIES, "Medium"),
            pages.choice("Assignee", "assignee", [("", "nobody"), *_members(app)]),
            pages.choice("Milestone", "milestone", [("", "none"), *_pairs(_open_milestones(project))]),
        ),
        h("fieldset", h("legend", "Labels"), [pages.checkbox(label, "label", value=label) for label in project.labels]),
        pages.button("Create issue"),
        class_="card",
    )
    return HtmlPage("New issue", body, trail=((project.name, f"/project/{key}"),))


def _open_milestones(project: Project) -> list[str]:
    return [milestone.name for milestone in project.milestones.values() if not milestone.closed]


@site.post("/project/<key>/new")
def create(app: TrackerApp, visit: Visit, key: str) -> Redirect:
    issue = app.report(
        key,
        visit.line("title", "The title"),
        visit.text("text", "The description", required=False),
        kind=visit.line("kind", "The kind"),
        priority=visit.line("priority", "The priority"),
        assignee=visit.form.get("assignee", ""),
        milestone=visit.form.get("milestone", ""),
        labels=visit.values("label"),
    )
    return Redirect(f"/issue/{issue.key}", f"{issue.key} was created.")


@site.get("/issue/<key>/edit")
def edit(app: TrackerApp, visit: Visit, key: str) -> HtmlPage:
    issue = _issue(app, key)
    body = form(
        f"/issue/{key}/edit",
        pages.field("Title", "title", issue.title),
        pages.text_area("Description", "text", issue.text, rows=8),
        pages.button("Save"),
        class_="card",
    )
    return HtmlPage(f"Edit {key}", body, trail=((f"{key} {issue.title}", f"/issue/{key}"),))


@site.post("/issue/<key>/edit")
def save(app: TrackerApp, visit: Visit, key: str) -> Redirect:
    app.edit(key, visit.line("title", "The title"), visit.text("text", "The description", required=False))
    return Redirect(f"/issue/{key}", "The issue was saved.")
