"""A driver of the built-in sites without a browser: it parses the HTML, follows links, and fills in and sends forms.

The real browser runs one seed of every template in tests/envs; this driver is fast enough for many seeds. Of the
scripts it implements what the moves need: tabs, dialogs, autocompletion, lists that grow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from urllib.parse import urlencode, urljoin, urlsplit

from rllm_gym.envs.web.sites.http import Request, Response
from rllm_gym.envs.web.sites.moves import Answer, Click, Fill, Goto, Move, ReportInfeasible, Select, Upload
from rllm_gym.envs.web.sites.task import SiteState, WebTask

VOID = {"br", "hr", "img", "input", "link", "meta"}
ROLES = {"button": "button", "select": "combobox", "textarea": "textbox", "a": "link", "tr": "row"}
INPUT_ROLES = {"checkbox": "checkbox", "radio": "radio", "submit": "button", "file": "file"}


class Node:
    def __init__(self, tag: str, attributes: dict[str, str | None], parent: Node | None) -> None:
        self.tag, self.attributes, self.parent = tag, attributes, parent
        self.children: list[Node | str] = []

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            if isinstance(child, Node):
                yield from child.walk()

    def up(self) -> Iterator[Node]:
        node: Node | None = self
        while node:
            yield node
            node = node.parent

    @property
    def text(self) -> str:
        if self.tag in ("style", "script", "template"):
            return ""
        return " ".join(" ".join(c if isinstance(c, str) else c.text for c in self.children).split())

    @property
    def role(self) -> str | None:
        values = self.attributes.get("role")
        if values:
            return values
        if self.tag == "input":
            return INPUT_ROLES.get(self.attributes.get("type") or "text", "textbox")
        if "data-send" in self.attributes or "data-href" in self.attributes:
            return "clickable"
        return ROLES.get(self.tag)


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Node("", {}, None)
        self._open = self.root

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, dict(attrs), self._open)
        self._open.children.append(node)
        if tag not in VOID:
            self._open = node

    def handle_endtag(self, tag: str) -> None:
        assert self._open.tag == tag, f"</{tag}> closes <{self._open.tag}>"
        assert self._open.parent is not None
        self._open = self._open.parent

    def handle_data(self, data: str) -> None:
        self._open.children.append(data)


def parse(html: str) -> Node:
    """Parse the page into a tree; elements that are not closed in order fail."""
    builder = _Builder()
    builder.feed(re.sub(r"<(style|script)>.*?</\1>", "", html, flags=re.DOTALL))
    builder.close()
    assert builder._open is builder.root, f"<{builder._open.tag}> is not closed"
    identities = [node.attributes["id"] for node in builder.root.walk() if "id" in node.attributes]
    assert len(identities) == len(set(identities)), f"duplicate ids on a page: {identities}"
    return builder.root


class SiteDriver:
    """Performs moves on the pages of a site."""

    def __init__(self, site: SiteState, start: str, files: Mapping[str, bytes] | None = None) -> None:
        self.handlers = site.handlers()
        self.files = files or {}
        self.answer: str | None = None
        self.infeasible = False
        self.responses: list[tuple[str, Response]] = []
        self.sent: set[str] = set()  # values of the fields of submitted forms
        self._values: dict[Node, str] = {}
        self._dialog: Node | None = None
        self.get(start)

    # Requests

    def get(self, url: str) -> None:
        self._load(Request("GET", url))

    def _fetch(self, request: Request) -> Response:
        parts = urlsplit(request.url)
        response = self.handlers[f"{parts.scheme}://{parts.netloc}"](request)
        self.responses.append((request.url, response))
        return response

    def _load(self, request: Request, frame: Node | None = None) -> None:
        """Show the response to a request: as the page, or in a frame of the page."""
        for _ in range(10):
            response = self._fetch(request)
            if response.status != 303:
                break
            request = Request("GET", urljoin(request.url, response.headers["location"]))
        else:
            raise AssertionError(f"endless redirect at {request.url}")
        assert response.status in (200, 204), f"{request.url} answered {response.status}"
        shown = parse(response.body.decode())
        if frame is not None:
            frame.children, shown.parent = [shown], frame
            frame.attributes["src"] = request.url
        else:
            self.url, self.page, self._values, self._dialog = request.url, shown, {}, None
            for node in [n for n in shown.walk() if n.tag == "iframe"]:
                self._load(Request("GET", urljoin(self.url, node.attributes["src"] or "")), node)
        self._labels = {
            n.attributes["for"]: n.text for n in self.page.walk() if n.tag == "label" and "for" in n.attributes
        }

    def _frame_of(self, node: Node) -> Node | None:
        return next((up for up in node.up() if up.tag == "iframe"), None)

    # Lookup

    def visible(self, node: Node) -> bool:
        for up in node.up():
            if "hidden" in up.attributes or up.attributes.get("type") == "hidden":
                return False
            if up.tag == "dialog" and up is not self._dialog:
                return False
        return self._dialog is None or self._dialog in node.up()

    def name(self, node: Node) -> str:
        label = node.attributes.get("aria-label")
        if label:
            return label
        identity = node.attributes.get("id")
        if node.tag in ("input", "select", "textarea") and identity:
            return self._labels.get(identity, "")
        return "".join(
            c if isinstance(c, str) else "" if c.attributes.get("aria-hidden") else c.text for c in node.children
        ).strip()

    def find(self, matches_node: Callable[[Node], bool], within: str | None, description: object) -> Node:
        found = [node for node in self.page.walk() if matches_node(node) and self.visible(node)]
        if within is not None:
            sized = []
            for node in found:
                holder = next((up for up in node.up() if up is not node and within in up.text), None)
                if holder is not None:
                    sized.append((len(holder.text), node))
            least = min((size for size, _ in sized), default=0)
            found = [node for size, node in sized if size == least]
        assert len(found) == 1, f"{description}: {len(found)} on {self.url}:\n{self.page.text[:2000]}"
        return found[0]

    # Moves

    def do(self, move: Move) -> None:
        if isinstance(move, Click):
            self._click(self.find(lambda n: n.role == move.role and self.name(n) == move.name, move.within, move))
        elif isinstance(move, Fill):
            fields = ("input", "textarea")
            node = self.find(lambda n: n.tag in fields and self.name(n) == move.name, move.within, move)
            self._values[node] = move.text
            self._suggest(node, move.text)
        elif isinstance(move, Select):
            node = self.find(lambda n: n.tag == "select" and self.name(n) == move.name, move.within, move)
            options = [o for o in node.walk() if o.tag == "option" and o.text == move.option]
            assert len(options) == 1, f"{move}: {[o.text for o in node.walk() if o.tag == 'option']}"
            self._values[node] = options[0].attributes.get("value") or ""
            if "data-submit" in node.attributes:
                self._submit(self._form_of(node), None)
        elif isinstance(move, Upload):
            node = self.find(lambda n: n.role == "file" and self.name(n) == move.name, None, move)
            assert move.file in self.files, f"{move}: {list(self.files)}"
            self._values[node] = move.file
        elif isinstance(move, Goto):
            self.get(move.url)
        elif isinstance(move, Answer):
            self.answer = move.text
        elif isinstance(move, ReportInfeasible):
            self.infeasible = True

    def _click(self, node: Node) -> None:
        attributes = node.attributes
        if node.tag == "a":
            self.get(urljoin(self.url, attributes["href"] or ""))
        elif node.role in ("checkbox", "radio"):
            if node.role == "radio":
                for other in self.page.walk():
                    if other.role == "radio" and other.attributes.get("name") == attributes.get("name"):
                        self._values[other] = ""
                self._values[node] = "checked"
            else:
                checked = self._values.get(node, "checked" if "checked" in attributes else "")
                self._values[node] = "" if checked else "checked"
        elif "data-tab" in attributes:
            box = next(up for up in node.up() if "tabs" in (up.attributes.get("class") or "").split())
            panels = [n for n in box.children if isinstance(n, Node) and n.role == "tabpanel"]
            for i, panel in enumerate(panels):
                panel.attributes.pop("hidden", None)
                if str(i) != attributes["data-tab"]:
                    panel.attributes["hidden"] = ""
        elif "data-open" in attributes:
            self._dialog = next(n for n in self.page.walk() if n.attributes.get("id") == attributes["data-open"])
        elif "data-close" in attributes:
            self._dialog = None
        elif "data-more" in attributes:
            response = self._fetch(Request("GET", urljoin(self.url, attributes["data-more"] or "")))
            box = node.parent
            assert box is not None
            assert box.parent is not None
            added = parse(response.body.decode())
            added.parent = box.parent
            box.parent.children[box.parent.children.index(box)] = added
        elif "data-href" in attributes:
            self.get(urljoin(self.url, attributes["data-href"] or ""))
        elif node.role == "option":
            box = next(up for up in node.up() if "suggesting" in (up.attributes.get("class") or "").split())
            field = next(n for n in box.walk() if n.tag == "input")
            kept = [part.strip() for part in self._values[field].split(",")[:-1]]
            self._values[field] = ", ".join([*kept, node.text]) if "data-several" in field.attributes else node.text
            next(n for n in box.walk() if n.role == "listbox").attributes["hidden"] = ""
        elif "aria-haspopup" in attributes:
            pass  # a menu: its contents count as visible
        elif "data-send" in attributes:
            self._submit(self._form_of(node), None)
        else:
            assert node.tag == "button", f"a click has no effect on <{node.tag}>"
            self._submit(self._form_of(node), node)

    def _suggest(self, node: Node, text: str) -> None:
        path = node.attributes.get("data-suggest")
        if path:
            typed = text.split(",")[-1].strip()
            response = self._fetch(Request("GET", urljoin(self.url, f"{path}?{urlencode({'q': typed})}")))
            box = next(up for up in node.up() if "suggesting" in (up.attributes.get("class") or "").split())
            options = next(n for n in box.walk() if n.role == "listbox")
            options.attributes.pop("hidden", None)
            options.children = []
            for offered in json.loads(response.body):
                item = Node("li", {"role": "option"}, options)
                item.children = [offered]
                options.children.append(item)

    def _form_of(self, node: Node) -> Node:
        owner = node.attributes.get("form")
        if owner:
            return next(n for n in self.page.walk() if n.attributes.get("id") == owner)
        return next(up for up in node.up() if up.tag == "form")

    def _submit(self, form: Node, button: Node | None) -> None:
        fields: list[tuple[str, str]] = []
        identity = form.attributes.get("id")
        owned = [n for n in self.page.walk() if form in n.up() or (identity and n.attributes.get("form") == identity)]
        for node in owned:
            name = node.attributes.get("name")
            if not name or "disabled" in node.attributes:
                continue
            if node.role in ("checkbox", "radio"):
                if self._values.get(node, "checked" if "checked" in node.attributes else ""):
                    fields.append((name, node.attributes.get("value") or "on"))
            elif node.tag == "input":
                fields.append((name, self._values.get(node, node.attributes.get("value") or "")))
            elif node.tag == "textarea":
                text = "".join(c for c in node.children if isinstance(c, str)).removeprefix("\n")
                fields.append((name, self._values.get(node, text)))
            elif node.tag == "select":
                options = [o for o in node.walk() if o.tag == "option"]
                chosen = next((o for o in options if "selected" in o.attributes), options[0] if options else None)
                fields.append((name, self._values.get(node, (chosen and chosen.attributes.get("value")) or "")))
            elif node is button:
                fields.append((name, node.attributes.get("value") or ""))
        overridden = button.attributes.get("formaction") if button else None
        frame = self._frame_of(form)
        here = self.url if frame is None else frame.attributes["src"] or ""
        action = urljoin(here, overridden or form.attributes.get("action") or self.url)
        if (form.attributes.get("method") or "get").lower() == "get":
            self._load(Request("GET", f"{action.split('?')[0]}?{urlencode(fields)}"), frame)
        else:
            self.sent.update(value for _, value in fields)
            kind, body = "application/x-www-form-urlencoded", urlencode(fields).encode()
            if form.attributes.get("enctype") == "multipart/form-data":
                kind, body = multipart(
                    fields, {n.attributes["name"] or "" for n in owned if n.role == "file"}, self.files
                )
            self._load(Request("POST", action, {"content-type": kind, "referer": here}, body), frame)


def multipart(fields: list[tuple[str, str]], uploads: set[str], files: Mapping[str, bytes]) -> tuple[str, bytes]:
    """Return the content type and the body with which a browser sends a form; ``uploads`` are its file fields."""
    body = b""
    for name, value in fields:
        file = f'; filename="{value}"\r\nContent-Type: text/plain' if name in uploads else ""
        content = (files[value] if value else b"") if name in uploads else value.encode()
        body += f'--limit\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + content + b"\r\n"
    return "multipart/form-data; boundary=limit", body + b"--limit--\r\n"


def rewarded(build: Callable[[], SiteState], task: WebTask, moves: tuple[Move, ...]) -> bool:
    """Return whether these moves earn the reward of the task, graded as the environment grades it."""
    from rllm_gym.grading.answers import matches

    site, copy = build(), build()
    driver = SiteDriver(site, task.start, task.files)
    for move in moves:
        driver.do(move)
    if task.outcome:
        task.outcome(copy)
    if site.facts() != copy.facts() or driver.infeasible != task.infeasible:
        return False
    if task.answer is not None:
        return driver.answer is not None and matches(task.answer, driver.answer)
    return True
