"""The pages of the calendar: month, week and day, events and their forms, invitations, and free times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from rllm_gym.envs.web.sites import pages
from rllm_gym.envs.web.sites.calendar.state import WEEK, Calendar, Event
from rllm_gym.envs.web.sites.errors import NotFound
from rllm_gym.envs.web.sites.fields import clock, day_of, day_or, full_date, minutes_of
from rllm_gym.envs.web.sites.http import Response
from rllm_gym.envs.web.sites.markup import Content, Markup, h, join, url
from rllm_gym.envs.web.sites.pages import Frame, HtmlPage, form
from rllm_gym.envs.web.sites.people import addressed
from rllm_gym.envs.web.sites.site import LinkedSiteApp, Redirect, Site, Visit, json_response
from rllm_gym.envs.web.sites.wording import MONTHS, WEEKDAYS, long_date, plural, weekday

ORIGIN = "http://calendar.test"
SHOWN_IN_A_CELL = 4
REPLIES = {"waiting": "not answered", "accepted": "accepted", "declined": "declined"}
_TONES = {"waiting": "warn", "accepted": "good", "declined": "bad"}
_LOOK = pages.read_style(__file__)


def _frame(app: CalendarApp) -> Frame:
    waiting = len(_invitations(app))
    return Frame(
        name="Dayleaf Calendar",
        colour="#0f6e66",
        navigation=(
            ("Month", "/"),
            ("Week", "/week"),
            ("Day", "/day"),
            (f"Invitations ({waiting})" if waiting else "Invitations", "/invitations"),
            ("Find a time", "/free"),
            ("New event", "/new"),
            *app.neighbours,
        ),
        today=app.today,
        user=app.me.name,
        search=("Search events", "/search"),
        wide=True,
        style=_LOOK,
    )


site: Site[CalendarApp] = Site(ORIGIN, _frame)


@dataclass
class CalendarApp(LinkedSiteApp, Calendar):
    """The calendar with its pages."""

    routes = site


# Views


@site.get("/")
def month(app: CalendarApp, visit: Visit) -> HtmlPage:
    shown = day_or(f"{visit.asked('month', 7)}-01", app.today.replace(day=1))
    first = shown - timedelta(days=shown.weekday())
    following = (shown + timedelta(days=31)).replace(day=1)
    weeks = -(-(following - first).days // 7)
    events: dict[date, list[Event]] = {}
    for day, event in app.occurrences(first, first + weeks * WEEK):
        events.setdefault(day, []).append(event)
    rows = [
        h("tr", [_cell(app, shown.month, first + timedelta(days=7 * row + column), events) for column in range(7)])
        for row in range(weeks)
    ]
    head = h("thead", h("tr", [h("th", name, scope="col") for name in WEEKDAYS]))
    return HtmlPage(
        f"{MONTHS[shown.month - 1]} {shown.year}",
        h("div.table", h("table.month", head, h("tbody", rows))),
        actions=_turning("month", "/", (shown - timedelta(days=1)), following),
    )


def _cell(app: CalendarApp, month: int, day: date, events: Mapping[date, list[Event]]) -> Markup:
    today = events.get(day, [])
    more = len(today) - SHOWN_IN_A_CELL
    kind = "today" if day == app.today else "other" if day.month != month else None
    return h(
        "td",
        h("a.day", day.day, href=url("/day", date=day), aria_label=long_date(day)),
        [_chip(app, day, event) for event in today[:SHOWN_IN_A_CELL]],
        more > 0 and h("a.small", f"{more} more", href=url("/day", date=day)),
        class_=kind,
    )


def _chip(app: CalendarApp, day: date, event: Event) -> Markup:
    reply = event.answer_of(app.me.email)
    comment = "" if reply == "accepted" else f" ({REPLIES[reply]})"
    target = url(f"/event/{event.number}", date=day)
    return h(f"a.event.{reply}", f"{clock(event.start)} {event.title}{comment}", href=target)


def _turning(unit: str, path: str, before: date, after: date) -> Markup:
    name = "month" if unit == "month" else "date"
    cut = 7 if unit == "month" else 10
    return join(
        pages.link_button(f"‹ Previous {unit}", url(path, **{name: before.isoformat()[:cut]})),
        pages.link_button("Today", path),
        pages.link_button(f"Next {unit} ›", url(path, **{name: after.isoformat()[:cut]})),
    )


@site.get("/week")
def week(app: CalendarApp, visit: Visit) -> HtmlPage:
    day = day_or(visit.asked("date"), app.today)
    monday = day - timedelta(days=day.weekday())
    days = [monday + timedelta(days=number) for number in range(7)]
    columns = [
        h(
            "section.card",
            h("h3", h("a", f"{weekday(day)[:3]} {day.day} {MONTHS[day.month - 1][:3]}", href=url("/day", date=day))),
            [
                [
                    _chip(app, day, event),
                    h("p.muted.small", f"until {clock(event.end)}", event.place and f", {event.place}"),
                ]
                for _, event in app.occurrences(day, day)
            ],
            class_="today" if day == app.today else None,
            aria_label=full_date(day),
        )
        for day in days
    ]
    return HtmlPage(
        f"Week of {long_date(monday)}",
        [h("div.week", columns), _going("/week", day)],
        actions=_turning("week", "/week", monday - WEEK, monday + WEEK),
    )


@site.get("/day")
def one_day(app: CalendarApp, visit: Visit) -> HtmlPage:
    day = day_or(visit.asked("date"), app.today)
    events = app.occurrences(day, day)
    body = _events_table(app, events, dated=False) if events else h("div.card", "Nothing is planned for this day.")
    return HtmlPage(
        full_date(day),
        [body, _going("/day", day)],
        actions=_turning("day", "/day", day - timedelta(days=1), day + timedelta(days=1)),
    )


def _going(path: str, day: date) -> Markup:
    return form(
        path,
        pages.field("Go to date", "date", day.isoformat(), type="date"),
        pages.button("Go", tone="quiet"),
        method="get",
        class_="row card",
    )


@site.get("/search")
def search(app: CalendarApp, visit: Visit) -> HtmlPage:
    text = visit.asked("q")
    found = app.search(text) if text else []
    body: Content = _events_table(app, found[:100], dated=True) if found else h("div.card", "No event was found.")
    return HtmlPage("Search", [h("p.muted", f"{plural(len(found), 'event')} for “{text}”"), body], query=text)


def _events_table(app: CalendarApp, events: list[tuple[date, Event]], *, dated: bool) -> Markup:
    headings = ["Date", "Time", "Event", "Place", "Organiser", "You"]
    rows = [
        [
            full_date(day) + (", weekly" if event.until else ""),
            event.hours,
            h("a", event.title, href=url(f"/event/{event.number}", date=day)),
            event.place,
            app.name_of(event.owner),
            _reply(event, app),
        ]
        for day, event in events
    ]
    return pages.table(headings, rows) if dated else pages.table(headings[1:], [row[1:] for row in rows])


def _reply(event: Event, app: CalendarApp) -> Markup:
    if event.owner == app.me.email:
        return h("span.badge", "organiser")
    reply = event.answer_of(app.me.email)
    return h(f"span.badge.{_TONES[reply]}", REPLIES[reply])


def _mine(app: CalendarApp, number: int) -> Event:
    event = app.events.get(number)
    if event is None or not event.answer_of(app.me.email):
        raise NotFound(f"There is no event {number} in this calendar.")
    return event


@site.get("/event/<int:number>")
def show(app: CalendarApp, visit: Visit, number: int) -> HtmlPage:
    event = _mine(app, number)
    day = day_or(visit.asked("date"), event.day)
    if not event.takes_place(day):
        day = next(event.days(event.day, event.until or event.day), event.day)
    guests = [
        (app.name_of(email), email, h(f"span.badge.{_TONES[reply]}", REPLIES[reply])) for email, reply in event.guests
    ]
    details = [
        ("When", f"{full_date(day)}, {event.hours}"),
        ("Place", event.place or "none"),
        ("Organiser", app.name_of(event.owner)),
    ]
    if event.until:
        details.insert(1, ("Repeats", f"every {weekday(event.day)} until {long_date(event.until)}"))
    people = pages.table(("Guest", "Address", "Answer"), guests) if guests else h("p.muted", "Nobody else is invited.")
    return HtmlPage(
        event.title,
        [pages.card(pages.described(details)), h("h2", "Guests"), people],
        trail=(("Calendar", "/"), (full_date(day), url("/day", date=day))),
        actions=_own_actions(event, day) if event.owner == app.me.email else _guest_actions(event, app),
    )


def _own_actions(event: Event, day: date) -> Markup:
    delete = f"/event/{event.number}/delete"
    if event.until is None:
        deleting: Content = pages.post_button("Delete", delete, tone="danger", confirm=f"Delete “{event.title}”?")
    else:
        deleting = [
            pages.post_button("Cancel only this day", f"/event/{event.number}/skip", fields={"date": day}),
            pages.post_button("Delete the series", delete, tone="danger", confirm=f"Delete every “{event.title}”?"),
        ]
    return join(pages.link_button("Edit", f"/event/{event.number}/edit", tone=""), deleting)


def _guest_actions(event: Event, app: CalendarApp) -> Markup:
    return join(
        [_answer_button(event, label, answer) for label, answer in _ANSWERS if event.answer_of(app.me.email) != answer]
    )


_ANSWERS = (("Accept", "accepted"), ("Decline", "declined"))


def _answer_button(event: Event, label: str, answer: str) -> Markup:
    return pages.post_button(
        label, f"/event/{event.number}/answer", fields={"answer": answer}, tone="" if label == "Accept" else "quiet"
    )


def _invitations(app: CalendarApp) -> list[tuple[date, Event]]:
    found = [(event.day, event) for event in app.mine() if event.answer_of(app.me.email) == "waiting"]
    return sorted(found, key=lambda item: (item[0], item[1].start, item[1].number))


@site.get("/invitations")
def invitations(app: CalendarApp, visit: Visit) -> HtmlPage:
    rows = [
        [
            h("a", event.title, href=url(f"/event/{event.number}", date=day)),
            full_date(day),
            event.hours,
            app.name_of(event.owner),
            h("div.buttons", [_answer_button(event, label, answer) for label, answer in _ANSWERS]),
        ]
        for day, event in _invitations(app)
    ]
    if not rows:
        return HtmlPage("Invitations", h("div.card", "No invitation waits for your answer."))
    return HtmlPage("Invitations", pages.table(("Event", "Date", "Time", "From", "Your answer"), rows))


@site.get("/people")
def suggestions(app: CalendarApp, visit: Visit) -> Response:
    return json_response([person.name for person in app.find_people(visit.asked("q"))[:6]])


@site.get("/free")
def free(app: CalendarApp, visit: Visit) -> HtmlPage:
    day = day_or(visit.asked("date"), app.today)
    names = visit.asked("people", 2_000)
    asking = form(
        "/free",
        h(
            "div.two",
            _people_field("People", "people", names),
            pages.field("Date", "date", day.isoformat(), type="date"),
        ),
        pages.button("Show"),
        method="get",
        class_="card",
    )
    rows = []
    for person in (app.me, *addressed(names, app.people)):
        busy = app.busy(person.email, day)
        bars = [
            h("span", style=f"left:{(start - 480) / 6.6:.1f}%;width:{(end - start) / 6.6:.1f}%") for start, end in busy
        ]
        label = f"{person.name} (you)" if person is app.me else person.name
        hours = ", ".join(f"{clock(start)}–{clock(end)}" for start, end in busy)
        rows.append([label, hours or "free all day", h("div.hours", bars, aria_hidden="true")])
    return HtmlPage(
        "Find a time",
        [
            asking,
            h("h2", full_date(day)),
            pages.table(("Person", "Busy", "08:00 to 19:00"), rows),
            h("p.muted", "Invitations that nobody has answered yet do not count as busy."),
        ],
    )


def _people_field(label: str, name: str, value: str) -> Markup:
    hint = "Names from the address book, with commas between them."
    return h(
        "div.suggesting",
        pages.field(label, name, value, hint=hint, data_suggest="/people", data_several=True),
        h("ul.suggestions", role="listbox", hidden=True),
    )


# Changes


@site.get("/new")
def new(app: CalendarApp, visit: Visit) -> HtmlPage:
    day = day_or(visit.asked("date"), app.today)
    return HtmlPage("New event", _event_form("/new", "Create event", day=day.isoformat()), trail=(("Calendar", "/"),))


@site.get("/event/<int:number>/edit")
def edit(app: CalendarApp, visit: Visit, number: int) -> HtmlPage:
    event = _mine(app, number)
    if event.owner != app.me.email:
        raise NotFound("Only whoever made an event can change it.")
    body = _event_form(
        f"/event/{number}/edit",
        "Save changes",
        title=event.title,
        day=event.day.isoformat(),
        start=clock(event.start),
        end=clock(event.end),
        place=event.place,
        guests=", ".join(app.name_of(email) for email, _ in event.guests),
        until=event.until.isoformat() if event.until else "",
    )
    return HtmlPage(f"Edit “{event.title}”", body, trail=((event.title, f"/event/{number}"),))


def _event_form(
    action: str, label: str, *, title: str = "", day: str = "", start: str = "09:00", end: str = "10:00",
    place: str = "", guests: str = "", until: str = "",
) -> Markup:  # fmt: skip
    return form(
        action,
        pages.field("Title", "title", title),
        h(
            "div.two",
            pages.field("Date", "date", day, type="date"),
            pages.field("Repeat weekly until", "until", until, type="date", hint="Leave empty for a single event."),
            pages.field("Starts", "start", start, type="time"),
            pages.field("Ends", "end", end, type="time"),
            pages.field("Place", "place", place),
            _people_field("Guests", "guests", guests),
        ),
        pages.button(label),
        class_="card",
    )


def _sent(app: CalendarApp, visit: Visit) -> dict[str, Any]:
    """Return the parsed fields of the event form.

    Raises:
        FormError: A field is invalid.
    """
    until = visit.line("until", "The end of the series", required=False)
    return {
        "title": visit.line("title", "The title"),
        "day": day_of(visit.line("date", "The date")),
        "start": minutes_of(visit.line("start", "The start"), "The start"),
        "end": minutes_of(visit.line("end", "The end"), "The end"),
        "place": visit.line("place", "The place", required=False),
        "guests": [person.email for person in addressed(visit.form.get("guests", ""), app.people)],
        "until": day_of(until, "The end of the series") if until else None,
    }


@site.post("/new")
def create(app: CalendarApp, visit: Visit) -> Redirect:
    event = app.add(**_sent(app, visit))
    return Redirect(f"/event/{event.number}", f"“{event.title}” is in your calendar.")


@site.post("/event/<int:number>/edit")
def save(app: CalendarApp, visit: Visit, number: int) -> Redirect:
    event = app.change(number, **_sent(app, visit))
    return Redirect(f"/event/{number}", f"“{event.title}” was changed.")


@site.post("/event/<int:number>/delete")
def delete(app: CalendarApp, visit: Visit, number: int) -> Redirect:
    app.delete(number)
    return Redirect("/", "The event was deleted.")


@site.post("/event/<int:number>/skip")
def skip(app: CalendarApp, visit: Visit, number: int) -> Redirect:
    day = day_of(visit.line("date", "The date"))
    app.skip(number, day)
    return Redirect(f"/event/{number}", f"The event on {long_date(day)} was cancelled; the others stay.")


@site.post("/event/<int:number>/answer")
def answer(app: CalendarApp, visit: Visit, number: int) -> Redirect:
    event = app.answer(number, visit.line("answer", "Your answer"))
    return Redirect("/invitations", f"You {event.answer_of(app.me.email)} “{event.title}”.")
