"""The pages of the mailbox: folders with bulk actions, messages, composing, rules and the address book."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rllm_gym.envs.web.sites import pages
from rllm_gym.envs.web.sites.errors import FormError, NotFound
from rllm_gym.envs.web.sites.http import Response
from rllm_gym.envs.web.sites.mail.state import FOLDERS, RULE_FOLDERS, Attachment, Mailbox, MailMessage, Rule
from rllm_gym.envs.web.sites.markup import Content, Markup, h, url
from rllm_gym.envs.web.sites.pages import Frame, HtmlPage, form
from rllm_gym.envs.web.sites.people import Person, addressed, names_of
from rllm_gym.envs.web.sites.pictures import avatar, portrait
from rllm_gym.envs.web.sites.site import LinkedSiteApp, Redirect, Site, Visit, json_response, one_line, whole_number
from rllm_gym.envs.web.sites.wording import plural

ORIGIN = "http://mail.test"
PER_PAGE = 15
_LOOK = pages.read_style(__file__)
# The bar with bulk actions is hidden until a message is selected.
_SCRIPT = Markup(
    "<script>(() => {const boxes = [...document.querySelectorAll('input[name=message]')];"
    "const bar = document.getElementById('bulk');const show = () => {"
    "const count = boxes.filter(box => box.checked).length; bar.hidden = !count;"
    "bar.querySelector('.count').textContent = count + ' selected';};"
    "boxes.forEach(box => box.addEventListener('change', show)); if (bar) show();})()</script>"
)
_ACTS = (
    ("Archive", "archive"),
    ("Delete", "bin"),
    ("Report spam", "spam"),
    ("Mark as read", "read"),
    ("Mark as unread", "unread"),
)
_MOVES = {"archive": "Archive", "bin": "Bin", "spam": "Spam", "inbox": "Inbox"}
_DONE = {
    "archive": "archived",
    "bin": "moved to the bin",
    "spam": "reported as spam",
    "inbox": "moved to the inbox",
    "read": "marked as read",
    "unread": "marked as unread",
    "star": "starred",
    "unstar": "no longer starred",
    "label": "labelled",
    "unlabel": "no longer labelled",
}


def _frame(app: MailApp) -> Frame:
    return Frame(
        name="Postbox",
        colour="#24519e",
        navigation=(
            ("Mail", "/"),
            ("Write", "/write"),
            ("Address book", "/contacts"),
            ("Rules", "/rules"),
            *app.neighbours,
        ),
        today=app.today,
        user=app.me.email,
        search=("Search mail", "/search"),
        wide=True,
        style=_LOOK,
    )


site: Site[MailApp] = Site(ORIGIN, _frame)


@dataclass
class MailApp(LinkedSiteApp, Mailbox):
    """The mailbox with its pages."""

    routes = site


def _folders(app: MailApp, current: str = "") -> Markup:
    def link(name: str, path: str, count: int = 0) -> Markup:
        here = "page" if name == current else None
        return h("li", h("a", h("span", name), h("span", count) if count else None, href=path, aria_current=here))

    return h(
        "nav",
        pages.link_button("Write a message", "/write", tone=""),
        h(
            "ul.folders",
            [link(name, f"/folder/{name}", app.unread(name)) for name in FOLDERS],
            style="margin-top:.8rem",
        ),
        h("h3", "Labels"),
        h("ul.folders", [link(label, url(f"/label/{label}")) for label in app.labels]),
        aria_label="Folders",
    )


# Lists


@site.get("/")
def inbox(app: MailApp, visit: Visit) -> HtmlPage:
    return _folder_page(app, visit, "Inbox")


@site.get("/folder/<name>")
def folder(app: MailApp, visit: Visit, name: str) -> HtmlPage:
    if name not in FOLDERS:
        raise NotFound(f"There is no folder {name[:60]!r}.")
    return _folder_page(app, visit, name)


def _folder_page(app: MailApp, visit: Visit, name: str) -> HtmlPage:
    messages = app.in_folder(name)
    return HtmlPage(name, _list(app, visit, messages, f"/folder/{name}"), aside=_folders(app, name))


@site.get("/label/<name>")
def labelled(app: MailApp, visit: Visit, name: str) -> HtmlPage:
    if name not in app.labels:
        raise NotFound(f"There is no label {name[:60]!r}.")
    body = _list(app, visit, app.with_label(name), f"/label/{name}")
    return HtmlPage(f"Label “{name}”", body, aside=_folders(app, name))


@site.get("/search")
def search(app: MailApp, visit: Visit) -> HtmlPage:
    text = visit.asked("q")
    found = app.search(text) if text else []
    body = [
        h("p.muted", f"{plural(len(found), 'message')} for “{text}”. Words may follow from:, to:, subject: or label:."),
        _list(app, visit, found, "/search", q=text),
    ]
    return HtmlPage("Search", body, aside=_folders(app), query=text)


def _list(app: MailApp, visit: Visit, messages: Sequence[MailMessage], path: str, **query: object) -> Content:
    if not messages:
        return h("div.card", "There are no messages here.")
    part = pages.paginate(messages, visit.page(), PER_PAGE)
    rows = [_row(message) for message in part.items]
    everything = h("input", type="checkbox", data_check_all="message", aria_label="Select all on this page")
    head = h("tr", h("th", everything), [h("th", name, scope="col") for name in ("From", "Subject", "Date")])
    labels = [("", "Label as …"), *((label, label) for label in app.labels)]
    bar = h(
        "div.bulk",
        h("span.count.strong"),
        [pages.button(label, tone="quiet", name="act", value=act) for label, act in _ACTS],
        h("select", [h("option", text, value=value) for value, text in labels], name="label", aria_label="Label"),
        pages.button("Apply label", tone="quiet", name="act", value="label"),
        id="bulk",
    )
    return [
        h("p.muted", f"{plural(part.total, 'message')}, page {part.page} of {part.pages}"),
        form(
            "/bulk",
            pages.hidden("back", url(path, **query, page=part.page)),
            bar,
            h("div.table", h("table.mails", h("thead", head), h("tbody", rows))),
        ),
        pages.page_links(part, path, **query),
        _SCRIPT,
    ]


def _row(message: MailMessage) -> Markup:
    to = ", ".join(message.to)
    return h(
        "tr",
        h(
            "td",
            h("input", type="checkbox", name="message", value=message.number, aria_label=f"Select {message.subject}"),
        ),
        h("td.from", avatar(message.sender.name, 24), f"To {to}" if message.folder == "Sent" else message.sender.name),
        h(
            "td",
            message.starred and "★ ",
            h("a", message.subject, href=f"/message/{message.number}"),
            [[" ", h("span.badge", label)] for label in message.labels],
            h("span.muted", f" · {plural(len(message.attachments), 'attachment')}") if message.attachments else None,
            not message.read and h("span.small.muted", " · unread"),
        ),
        h("td.date", message.when),
        class_=None if message.read else "unread",
    )


# One message


@site.get("/message/<int:number>")
def read(app: MailApp, visit: Visit, number: int) -> HtmlPage:
    message = app.open(number)
    if message is None:
        raise NotFound(f"There is no message {number}.")
    lines: list[Content] = [
        [h("dt", "From"), h("dd", f"{message.sender.name} <{message.sender.email}>")],
        [h("dt", "To"), h("dd", ", ".join(message.to))],
        message.copy and [h("dt", "Cc"), h("dd", ", ".join(message.copy))],
        [h("dt", "Date"), h("dd", message.when)],
        [h("dt", "Folder"), h("dd", message.folder)],
    ]
    body = [
        h(
            "article.card",
            avatar(message.sender.name, 56),
            h("dl", lines),
            h("div.written", message.text),
            _files(message.attachments),
            _quoted(app, message),
        ),
        _labels(app, message),
    ]
    return HtmlPage(
        message.subject,
        body,
        trail=((message.folder, f"/folder/{message.folder}"),),
        aside=_folders(app, message.folder),
        actions=_actions(message),
    )


def _quoted(app: MailApp, message: MailMessage) -> Markup | None:
    """Return the message that is replied to, or the forwarded message."""
    other = app.messages.get(message.answers or message.forwards or 0)
    return _quotation(other) if other else None


def _quotation(message: MailMessage) -> Markup:
    return h("blockquote", f"{message.sender.name} wrote on {message.when}:\n\n{message.text}")


def _files(attachments: Sequence[Attachment]) -> Content:
    if not attachments:
        return None
    return [
        h("h3", plural(len(attachments), "attachment")),
        h("ul.files", [h("li", f"{file.name} ({file.size_kb} KB)") for file in attachments]),
    ]


def _actions(message: MailMessage) -> list[Content]:
    number = message.number

    def act(label: str, act: str, tone: str = "quiet") -> Markup:
        return pages.post_button(label, f"/message/{number}/act", fields={"act": act}, tone=tone)

    answers = [pages.link_button("Reply", url("/write", reply=number), tone="")]
    if len(message.to) + len(message.copy) > 1:
        answers.append(pages.link_button("Reply to all", url("/write", all=number)))
    answers.append(pages.link_button("Forward", url("/write", forward=number)))
    if message.folder == "Sent":
        return [*answers, act("Delete", "bin", "danger")]
    return [
        *answers,
        act("Move to inbox", "inbox") if message.folder != "Inbox" else act("Archive", "archive"),
        act("Report spam", "spam") if message.folder != "Spam" else None,
        act("Mark as unread", "unread"),
        act("Remove star", "unstar") if message.starred else act("Star", "star"),
        act("Delete", "bin", "danger") if message.folder != "Bin" else None,
    ]


def _labels(app: MailApp, message: MailMessage) -> Markup:
    target = f"/message/{message.number}/act"
    rest = [label for label in app.labels if label not in message.labels]
    return h(
        "div.card",
        h("h2", "Labels"),
        [
            [
                h("span.badge", label),
                " ",
                pages.post_button(f"Remove label {label}", target, fields={"act": "unlabel", "label": label}),
                " ",
            ]
            for label in message.labels
        ],
        rest
        and form(
            target,
            pages.hidden("act", "label"),
            pages.choice("Add a label", "label", rest),
            pages.button("Add label", tone="quiet"),
            class_="row",
        ),
    )


@site.post("/message/<int:number>/act")
def act(app: MailApp, visit: Visit, number: int) -> Redirect:
    action = visit.line("act", "What to do")
    message = app.messages.get(number)
    came_from = message.folder if message else "Inbox"
    _do(app, number, action, visit.form.get("label", ""))
    stay = action in ("star", "unstar", "label", "unlabel")
    return Redirect(f"/message/{number}" if stay else f"/folder/{came_from}", f"The message was {_DONE[action]}.")


@site.post("/bulk")
def bulk(app: MailApp, visit: Visit) -> Redirect:
    action = visit.line("act", "What to do")
    numbers = [number for value in visit.values("message") if (number := whole_number(value)) is not None]
    if not numbers:
        raise FormError("No message was selected.")
    for number in dict.fromkeys(numbers):
        _do(app, number, action, visit.form.get("label", ""))
    back = visit.form.get("back", "/")
    safe = back if re.fullmatch(r"/(folder|label|search)[/?][^\\\r\n]*", back) else "/"
    return Redirect(safe, f"{plural(len(set(numbers)), 'message')} {_DONE[action]}.")


def _do(app: MailApp, number: int, action: str, label: str) -> None:
    if action in _MOVES:
        app.move(number, _MOVES[action])
    elif action in ("read", "unread"):
        app.mark(number, read=action == "read")
    elif action in ("star", "unstar"):
        app.star(number, action == "star")
    elif action in ("label", "unlabel"):
        app.label(number, label, action == "label")
    else:
        raise FormError(f"Messages cannot be {action[:40]!r}.")


# Composing


@site.get("/pictures/people/<path:name>.svg")
def person_picture(app: MailApp, visit: Visit, name: str) -> Response:
    return portrait(name)


@site.get("/write")
def write(app: MailApp, visit: Visit) -> HtmlPage:
    to, copy, subject, fixed, title = visit.asked("to"), "", "", [], "Write a message"
    original, forwarding = None, False
    for name in ("reply", "all", "forward"):
        original = app.messages.get(whole_number(visit.asked(name)) or 0)
        if original is not None:
            break
    if original is not None and name == "forward":
        title, forwarding = "Forward", True
        subject, fixed = f"Fwd: {original.subject}", [pages.hidden("forwards", original.number)]
    elif original is not None:
        title = "Reply" if name == "reply" else "Reply to all"
        to = original.sender.email
        others = [email for email in (*original.to, *original.copy) if email not in (app.me.email, to)]
        copy = ", ".join(others) if name == "all" else ""
        subject = original.subject if original.subject.startswith("Re: ") else f"Re: {original.subject}"
        fixed = [pages.hidden("answers", original.number)]
    body = form(
        "/write",
        fixed,
        _people_field("To", "to", to),
        _people_field("Cc", "copy", copy),
        pages.field("Subject", "subject", subject),
        pages.text_area("Message", "text", rows=8),
        pages.file_field("Attachment", "attachment") if app.takes_files else None,
        _files(original.attachments) if original is not None and forwarding else None,
        _quotation(original) if original is not None else None,
        h("div", pages.button("Send"), style="margin-top:1rem"),
        class_="card",
        enctype="multipart/form-data" if app.takes_files else None,
    )
    return HtmlPage(title, body, aside=_folders(app))


def _people_field(label: str, name: str, value: str) -> Markup:
    return h(
        "div.suggesting",
        pages.field(
            label,
            name,
            value,
            hint="Names or addresses, with commas between them.",
            data_suggest="/people",
            data_several=True,
        ),
        h("ul.suggestions", role="listbox", hidden=True),
    )


@site.get("/people")
def suggestions(app: MailApp, visit: Visit) -> Response:
    found = app.find_people(visit.asked("q"))
    return json_response([person.email for person in found[:6]])


@site.post("/write")
def send(app: MailApp, visit: Visit) -> Redirect:
    file = visit.file("attachment") if app.takes_files else None
    message = app.send(
        _recipients(visit.form.get("to", ""), app.contacts),
        visit.line("subject", "The subject"),
        visit.text("text", "The message"),
        copy=_recipients(visit.form.get("copy", ""), app.contacts),
        answers=whole_number(visit.form.get("answers", "")),
        forwards=whole_number(visit.form.get("forwards", "")),
        files=[Attachment.of(one_line(file.name)[:100], file.content)] if file else (),
    )
    return Redirect(f"/message/{message.number}", "Your message was sent.")


def _recipients(text: str, contacts: list[Person]) -> list[str]:
    """Return the people that a comma-separated line of addresses and contact names refers to.

    Raises:
        FormError: A recipient is invalid.
    """
    found = []
    for part in names_of(text):
        address = part.rpartition("<")[2].rstrip("> ").lower()
        if re.fullmatch(r"[^@\s<>]{1,64}@[^@\s<>]{1,64}\.[a-z]{2,12}", address):
            found.append(address)
        else:
            found += [person.email for person in addressed(part, contacts)]
    return found


# Address book and rules


@site.get("/contacts")
def contacts(app: MailApp, visit: Visit) -> HtmlPage:
    text = visit.asked("name")
    rows = [h("tr", h("td", person.name), h("td", person.email), _writing(person)) for person in app.find_people(text)]
    asking = form(
        "/contacts",
        pages.field("Name or address", "name", text),
        pages.button("Find", tone="quiet"),
        method="get",
        class_="row card",
    )
    head = h("thead", h("tr", [h("th", name, scope="col") for name in ("Name", "Address", "")]))
    found: Content = h("div.table", h("table", head, h("tbody", rows))) if rows else h("div.card", "Nobody was found.")
    return HtmlPage("Address book", [asking, found], aside=_folders(app))


def _writing(person: Person) -> Markup:
    return h("td", h("a", f"Write to {person.name}", href=url("/write", to=person.email)))


@site.get("/rules")
def rules(app: MailApp, visit: Visit) -> HtmlPage:
    rows = [
        h(
            "tr",
            h("td", _condition(rule)),
            h("td", _effect(rule)),
            h("td", pages.post_button("Delete", f"/rules/{index}/delete", tone="danger", confirm="Delete this rule?")),
        )
        for index, rule in enumerate(app.rules)
    ]
    head = h("thead", h("tr", [h("th", name, scope="col") for name in ("When a message comes", "do this", "")]))
    listed: Content = (
        h("div.table", h("table", head, h("tbody", rows))) if rows else h("div.card", "There are no rules.")
    )
    making = form(
        "/rules",
        h("h2", "New rule"),
        h(
            "div.two",
            pages.field("Sender contains", "sender", hint="An address or part of it."),
            pages.field("Subject contains", "subject"),
            pages.choice("Move to", "folder", [("", "stay in the inbox"), *((name, name) for name in RULE_FOLDERS)]),
            pages.choice("Add label", "label", [("", "none"), *((label, label) for label in app.labels)]),
        ),
        pages.button("Create rule"),
        class_="card",
    )
    return HtmlPage("Rules", [listed, making], aside=_folders(app))


def _condition(rule: Rule) -> str:
    parts = [
        f"sender contains “{rule.sender}”" if rule.sender else "",
        f"subject contains “{rule.subject}”" if rule.subject else "",
    ]
    return " and ".join(filter(None, parts))


def _effect(rule: Rule) -> str:
    parts = [f"move to {rule.folder}" if rule.folder else "", f"add label {rule.label}" if rule.label else ""]
    return " and ".join(filter(None, parts))


@site.post("/rules")
def add_rule(app: MailApp, visit: Visit) -> Redirect:
    app.add_rule(
        Rule(
            visit.line("sender", "The sender", required=False).lower(),
            visit.line("subject", "The subject", required=False),
            visit.line("folder", "The folder", required=False),
            visit.line("label", "The label", required=False),
        )
    )
    return Redirect("/rules", "The rule was created.")


@site.post("/rules/<int:index>/delete")
def delete_rule(app: MailApp, visit: Visit, index: int) -> Redirect:
    app.delete_rule(index)
    return Redirect("/rules", "The rule was deleted.")
