"""Applications and widget libraries of others: no page ends the tab or hangs, and every visible control has a number.

Run by ``make test-gauntlet``, which installs them first.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.server
import os
import random
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from rllm_gym.envs.web.browser import BrowserPool, BrowserSession
from rllm_gym.envs.web.browser.observation import PageView
from rllm_gym.parsing.browser_actions import parse_browser_action
from tests.browser.long_timeouts import require_chromium, use_long_timeouts
from tests.gauntlet.applications import APPLICATIONS, Application
from tests.waiting import until

pytestmark = pytest.mark.long

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
FOLDER = Path(os.environ.get("GAUNTLET") or CACHE / "rllm-gym" / "gauntlet")
RANDOM_ACTIONS = 50
KEYS = ("Enter", "Escape", "Tab", "Space", "ArrowDown", "ArrowRight", "Backspace", "Home", "PageDown")
BROKEN = re.compile(r"crashed|The page failed|hung; this is a new one|was stopped|stopped\.$")

# The visible controls of a document, found independently of observations. A covered one is not visible.
CONTROLS = r"""
const selector = "a[href], button, input:not([type=hidden]), select, textarea, summary, [contenteditable=true], " +
  ["button", "link", "checkbox", "radio", "switch", "tab", "menuitem", "option", "combobox", "textbox", "slider",
   "spinbutton", "treeitem"].map(role => `[role=${role}]`).join(", ");
const deepest = (x, y) => {
  let hit = document.elementFromPoint(x, y);
  for (let inner; (inner = hit?.shadowRoot?.elementFromPoint(x, y)) && inner !== hit;) hit = inner;
  return hit;
};
function* upwards(node) {
  for (; node; node = node.assignedSlot ?? node.parentNode ?? node.host) yield node;
}
function* visible(root) {
  for (const element of root.querySelectorAll("*")) {
    if (element.shadowRoot) yield* visible(element.shadowRoot);
    if (!element.matches(selector) || element.closest("[aria-hidden=true], [inert]")) continue;
    const {left, top, width, height} = element.getBoundingClientRect();
    const shown = element.checkVisibility({opacityProperty: true, visibilityProperty: true});
    if (width < 3 || height < 3 || !shown) continue;
    if ([...upwards(deepest(left + width / 2, top + height / 2))].includes(element)) yield element;
  }
}"""


@contextlib.contextmanager
def served(application: Application, folder: Path) -> Iterator[str]:
    """Serve an application on loopback; skip the test if it is not installed."""
    place = FOLDER / (application.name if application.server else "npm")
    if not (place / ".installed").exists():
        pytest.skip(f"{application.name} is not installed in {place}: run scripts/gauntlet.sh")
    if application.server:
        with _program(place, application.server, folder) as url:
            yield url
        return

    class Pages(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/lib/"):
                self.path = self.path.removeprefix("/lib")
                super().do_GET()
                return
            body = f"<!doctype html><meta charset=utf-8><title>{application.name}</title>{application.page}".encode()
            self.send_response(200 if self.path.partition("?")[0] == "/" else 404)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Pages, directory=str(place / "node_modules"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@contextlib.contextmanager
def _program(place: Path, name: str, folder: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(place / "bin" / "python"), str(Path(__file__).parent / "servers" / name), str(port), str(folder)]
    with (folder / "log").open("w+") as log, subprocess.Popen(command, stdout=log, stderr=log) as program:
        try:
            url = f"http://127.0.0.1:{port}"
            assert until(lambda: program.poll() is not None or _answers(url)), url
            assert program.poll() is None, (folder / "log").read_text()
            yield url
        finally:
            program.kill()


def _answers(url: str) -> bool:
    try:
        urlopen(url).close()
    except OSError as error:
        return hasattr(error, "code")
    return True


class Player:
    """A session that fails the test as soon as a page ends or hangs."""

    def __init__(self, session: BrowserSession) -> None:
        self.session = session
        self.view: PageView
        self.history: list[str] = []

    async def look(self) -> PageView:
        self.view = await self.session.observe()
        self._check(self.view.text.partition("\nPage:\n")[0])
        return self.view

    async def do(self, call: str) -> str:
        self.history.append(call)
        error = await self.session.act(parse_browser_action(call))
        self._check(error)
        await self.look()
        return error

    def _check(self, said: str) -> None:
        assert not BROKEN.search(said), f"{said}\nafter {self.history}"

    def numbered(self, call: str) -> str:
        """Replace ``<Name>`` by the number of the element."""

        def number(match: re.Match[str]) -> str:
            name, _, which = match[1].partition("#")
            elements = self.view.elements.values()
            found = [element.number for element in elements if element.name == name]
            found += [element.number for element in elements if element.name.startswith(name) and element.name != name]
            found += [element.number for element in elements if element.role == name]
            assert len(found) >= int(which or 1), f"no element {match[0]}\n{self.view.text}"
            return str(found[int(which or 1) - 1])

        return re.sub(r"<([^<>]+)>", number, call)

    async def unreached(self) -> list[str]:
        """Observe, and return the visible controls of the document that no number of the observation leads to."""
        registry, session = self.session.registry, self.session
        await session.evaluate(f"(() => {{ {CONTROLS} globalThis.left = new Set(visible(document)) }})()")
        await self.look()

        async def reach() -> None:
            tab = await registry.tab(session.page)
            for number, node in registry.shown.items():
                if registry.locations[number][1] == tab.isolated.main_frame and not node.get("y"):
                    place = await tab.isolated.call("locate", number, True)
                    if "x" in place:
                        reached = f"upwards(deepest({place['x']}, {place['y']}))"
                        script = f"(() => {{ {CONTROLS} for (const node of {reached}) left.delete(node) }})()"
                        await session._evaluate(script, "isolated")

        await session._run(reach)
        return await session.evaluate(
            "[...left].filter(element => element.checkVisibility({opacityProperty: true, visibilityProperty: true}))"
            ".map(element => element.outerHTML.slice(0, 150))"
        )


def random_action(view: PageView, rng: random.Random) -> str:
    if not view.elements or rng.random() < 0.15:
        keys = f'press("{rng.choice(KEYS)}")'
        return rng.choice([keys, keys, 'scroll("down")', 'scroll("up")', "back()", "wait()"])
    number, element = rng.choice(list(view.elements.items()))
    other = rng.choice(list(view.elements))
    anywhere = [f"click({number})"] * 4 + [f"hover({number})", f"dblclick({number})", f"drag({number}, {other})"]
    anywhere += [f'click({number}, "right")', f'press({number}, "{rng.choice(KEYS)}")', f'scroll("down", {number})']
    if element.options:
        anywhere += [f"select({number}, {rng.choice(element.options)!r})"] * 9
    elif element.role in ("textbox", "searchbox", "spinbutton", "combobox"):
        anywhere += [f'fill({number}, "12")', f'type({number}, "ab\\n")', f"clear({number})"] * 3
    return rng.choice(anywhere)


@pytest.fixture(scope="module")
def pool() -> Iterator[BrowserPool]:
    with BrowserPool(require_chromium(), prewarm=0) as pool:
        yield pool


@pytest.mark.parametrize("application", APPLICATIONS, ids=[application.name for application in APPLICATIONS])
def test_an_application_is_usable(
    pool: BrowserPool, application: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_long_timeouts(monkeypatch, keep_changes_deadline=True)
    monkeypatch.setattr("rllm_gym.envs.web.browser.actions._WAIT_S", 1.0)

    async def play(url: str) -> None:
        session = await pool.open(origins=[url])
        player = Player(session)
        await session.goto(url + application.start)
        assert await player.unreached() == []
        for step in application.steps:
            if step.startswith("until "):
                while step.removeprefix("until ") not in player.view.text:
                    await player.do("wait()")
                continue
            assert await player.do(player.numbered(step)) == "", f"{step}\n{player.view.text}"
        for text in application.shows:
            assert text in player.view.text, f"{text} is not in\n{player.view.text}"
        assert await player.unreached() == []
        rng = random.Random(application.name)
        for _ in range(RANDOM_ACTIONS):
            await player.do(random_action(player.view, rng))
            if not player.view.url.startswith(url):
                await player.do(f'goto("{url}{application.start}")')
        await session.close()

    with served(application, tmp_path) as url:
        asyncio.run(asyncio.wait_for(play(url), 900))
