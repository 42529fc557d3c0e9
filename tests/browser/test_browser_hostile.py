"""Pages made to hang, crash or flood: their own episode reports it and continues, and no other episode waits."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import pytest

from rllm_gym.envs.web.browser import BrowserFault, BrowserPool, BrowserSession, SiteFault
from rllm_gym.envs.web.browser.tabs import MAX_TABS
from rllm_gym.envs.web.sites.http import Handler, Request, Response
from rllm_gym.parsing.browser_actions import parse_browser_action
from tests.browser.browser_processes import command_line
from tests.browser.long_timeouts import use_long_timeouts
from tests.waiting import auntil

WELL_BEHAVED = {"http://b.test": lambda request: Response(b"<title>quiet</title><p>quiet")}


@pytest.fixture(autouse=True)
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    use_long_timeouts(monkeypatch, keep_changes_deadline=True)


def shorten_timeouts(patch: pytest.MonkeyPatch, *names: str) -> None:
    """Shorten deadlines that a test is to reach; requests of the neighbour do not depend on them."""
    for name in names:
        patch.setattr(f"rllm_gym.envs.web.browser.{name}", 0.5)


def run_scenario(pool: BrowserPool, site: Handler, scenario: Callable[[BrowserSession], Awaitable[None]]) -> None:
    """Open the site's start page, run the scenario, and check that a neighbour is served during and after it."""

    async def is_served(neighbour: BrowserSession) -> None:
        await neighbour.goto("http://b.test/")
        while "quiet" not in await observed_text(neighbour):
            pass

    async def both() -> None:
        neighbour = await pool.open(sites=WELL_BEHAVED)
        session = await pool.open(sites={"http://a.test": site})
        try:
            await session.goto("http://a.test/")
            async with asyncio.TaskGroup() as together:
                together.create_task(is_served(neighbour))
                await scenario(session)
            await is_served(neighbour)
        finally:
            await session.close()
            await neighbour.close()

    asyncio.run(asyncio.wait_for(both(), 240))


async def observed_text(session: BrowserSession) -> str:
    return (await session.observe()).text


async def act(session: BrowserSession, call: str) -> str:
    return await session.act(parse_browser_action(call))


async def assert_recovers(session: BrowserSession) -> None:
    """Assert that the page breaks at most one more action, and that the session works again."""
    if error := await act(session, "goto('http://a.test/fine')"):
        assert "all is fine" not in await observed_text(session), error
        await act(session, "goto('http://a.test/fine')")
    assert "all is fine" in await observed_text(session)


def served(html: str, **others: str) -> Handler:
    def site(request: Request) -> Response:
        pages = {"/": html, "/fine": "<p>all is fine", **{f"/{name}": page for name, page in others.items()}}
        return Response(pages.get(request.path, "<p>another page").encode())

    return site


def test_dialogs_are_answered_and_reported(pool: BrowserPool) -> None:
    script = "alert('one'); document.title = confirm('two') + prompt('three', 'dflt')"

    async def scenario(session: BrowserSession) -> None:
        text = await observed_text(session)
        assert "'one'" in text
        assert "'three'" in text
        assert "truedflt" in text
        assert "'one'" not in await observed_text(session)

    run_scenario(pool, served(f"<p>x<script>{script}</script>"), scenario)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("while (true) alert(1)", "more than"),
        # On a busy machine each observation meets only a few of them, and there is nothing to stop.
        ("setInterval(() => alert(1), 0)", "dialog"),
    ],
)
def test_endless_dialogs(pool: BrowserPool, script: str, expected: str) -> None:
    async def scenario(session: BrowserSession) -> None:
        text = await observed_text(session)
        assert expected in text
        assert text.count("Note:") <= 32
        await assert_recovers(session)

    run_scenario(pool, served(f"<p>x<script>{script}</script>"), scenario)


def test_a_dialog_that_cannot_be_answered_does_not_hang(pool: BrowserPool, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_timeouts(monkeypatch, "tabs._REPLY_S", "session.RESPONSE_S", "session.STOP_S")

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    async def scenario(session: BrowserSession) -> None:
        await observed_text(session)
        await act(session, "click(1)")
        monkeypatch.setattr("rllm_gym.envs.web.browser.pages.Dialog.accept", never)
        await act(session, 'handle_dialog("accept")')
        assert "hung; this is a new one" in await observed_text(session)
        await assert_recovers(session)

    run_scenario(pool, served("<button onclick='confirm(1)'>go</button>"), scenario)


def test_an_action_ends_when_the_scripts_of_the_page_are_stopped(pool: BrowserPool) -> None:
    """Otherwise it waits for a script of ours that cannot run either, and fails."""

    async def scenario(session: BrowserSession) -> None:
        (number,) = (await session.observe()).elements
        assert await act(session, f"click({number})") == ""
        assert "its scripts stopped" in await observed_text(session)
        await assert_recovers(session)

    run_scenario(pool, served("<button onclick='while (true) alert(1)'>go</button>"), scenario)


def test_a_page_that_never_stops_computing(pool: BrowserPool, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_timeouts(monkeypatch, "session.LOAD_S", "session.RESPONSE_S")

    async def scenario(session: BrowserSession) -> None:
        assert "was stopped" in await observed_text(session)
        await assert_recovers(session)

    run_scenario(pool, served("<p>before<script>while (true);</script>"), scenario)


def test_a_button_that_never_stops_computing(pool: BrowserPool, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_timeouts(monkeypatch, "actions.INPUT_S", "session.RESPONSE_S")

    async def scenario(session: BrowserSession) -> None:
        (number,) = (await session.observe()).elements
        await act(session, f"click({number})")
        assert "button" in await observed_text(session)
        await assert_recovers(session)

    run_scenario(pool, served("<button onclick='while (true);'>go</button>"), scenario)


def test_a_page_whose_renderer_dies_is_replaced(pool: BrowserPool) -> None:
    """A tab whose renderer dies of memory is replaced, and the episode reports it."""

    async def scenario(session: BrowserSession) -> None:
        await observed_text(session)
        before = {process.pid for process in renderers()}
        error = await act(session, "click(1)")
        text = await observed_text(session)
        assert "crashed" in error + text
        await assert_recovers(session)
        assert {process.pid for process in renderers()} - before

    grow = "const all = []; while (true) all.push(new Array(1e6).fill(1.5))"
    run_scenario(pool, served(f"<button onclick='{grow}'>go</button>"), scenario)


@pytest.mark.parametrize(
    ("actions", "sent", "is_fault"),
    [
        ([], signal.SIGSEGV, True),  # the model has done nothing yet,
        (["wait()"], signal.SIGSEGV, True),  # or nothing that could cause it
        (["click({})"], signal.SIGKILL, True),  # no script can cause this
        # It may be a late effect of the click: if it were a fault, a model could discard the episodes it is losing.
        (["click({})", "wait()"], signal.SIGSEGV, False),
    ],
)
def test_a_crash_is_a_fault_if_the_model_cannot_have_caused_it(
    chromium: str, actions: list[str], sent: signal.Signals, is_fault: bool
) -> None:
    others = set(renderers())

    async def scenario() -> None:
        with BrowserPool(chromium, prewarm=0) as pool:
            session = await pool.open(sites={"http://a.test": served("<button>go</button>")})
            await session.goto("http://a.test/")
            (number,) = (await session.observe()).elements
            for action in actions:
                assert await act(session, action.format(number)) == ""
            (renderer,) = set(renderers()) - others
            renderer.send_signal(sent)
            await auntil(lambda: session.tabs.crashed)
            if is_fault:
                for again in (session.observe(), act(session, "wait()")):
                    with pytest.raises(BrowserFault) as raised:
                        await again
                    assert raised.value.kind == "page_crashed"
            else:
                assert "http://a.test/ crashed; this is a new one" in await observed_text(session)
                await assert_recovers(session)
            await session.close()

    asyncio.run(scenario())


def renderers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if "--type=renderer" in command_line(child)]


@pytest.mark.parametrize(
    "script",
    [
        "for (let i = 0; i < 20; i++) open('/popup')",
        "setInterval(() => open('/popup'), 0)",
    ],
)
def test_popups_are_tabs_up_to_a_limit(pool: BrowserPool, script: str) -> None:
    async def scenario(session: BrowserSession) -> None:
        while len(session.pages) < MAX_TABS:
            await session.evaluate("1")
        while "another tab" not in await observed_text(session):  # the next one may open only after an observation
            pass
        assert len(session.pages) <= MAX_TABS

    run_scenario(pool, served(f"<p>x<script>{script}</script>"), scenario)


def test_a_tab_that_closes_itself(pool: BrowserPool, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_timeouts(monkeypatch, "actions._WINDOW_S")

    async def scenario(session: BrowserSession) -> None:
        (number,) = (await session.observe()).elements
        await act(session, f"click({number})")
        assert len(session.pages) == 1
        assert "start" in await observed_text(session)

    run_scenario(
        pool,
        served("<button onclick=\"window.open('/popup')\">start</button>", popup="<script>close()</script>"),
        scenario,
    )


@pytest.mark.parametrize(
    "script",
    [
        "location.href = '/?' + Math.random()",
        "location.reload()",
        "setInterval(() => {for (let i = 0; i < 1000; i++) history.pushState(0, '', '/#' + i)}, 0)",
        "setInterval(() => document.body.append('x'.repeat(1e5)), 10)",
        "print()",
        "onbeforeunload = event => event.preventDefault()",
        "document.write('<input type=file id=f>'); f.click()",
    ],
)
def test_pages_that_never_settle(pool: BrowserPool, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    shorten_timeouts(monkeypatch, "session.LOAD_S")  # some of them never finish loading

    async def scenario(session: BrowserSession) -> None:
        await session.observe()
        await assert_recovers(session)

    run_scenario(pool, served(f"<p>x<script>{script}</script>"), scenario)


def test_a_download_is_refused_and_reported(pool: BrowserPool) -> None:
    attachment = {"content-type": "application/zip", "content-disposition": "attachment; filename=tool.zip"}

    def site(request: Request) -> Response:
        return Response(b"PK", headers=attachment) if request.path == "/tool" else Response(b"<a href=/tool>tool</a>")

    async def scenario(session: BrowserSession) -> None:
        (number,) = (await session.observe()).elements
        reported = await act(session, f"click({number})")
        while "tool.zip" not in reported:
            reported += await observed_text(session)
        assert session.page.url == "http://a.test/"

    run_scenario(pool, site, scenario)


def test_endless_redirects(pool: BrowserPool) -> None:
    numbers = itertools.count()

    def site(request: Request) -> Response:
        if request.path in ("/", "/fine"):
            return Response(b"<p>all is fine <a href=/round>round</a>")
        return Response(status=302, headers={"location": f"/round?{next(numbers)}"})

    async def scenario(session: BrowserSession) -> None:
        (number,) = (await session.observe()).elements
        await act(session, f"click({number})")
        await session.observe()
        await assert_recovers(session)
        with pytest.raises(SiteFault, match="ERR_TOO_MANY_REDIRECTS"):
            await session.goto("http://a.test/round")

    run_scenario(pool, site, scenario)


@pytest.mark.parametrize("megabytes", [8, pytest.param(50, marks=pytest.mark.long)])
def test_a_page_of_many_megabytes_is_observed(
    pool: BrowserPool, monkeypatch: pytest.MonkeyPatch, megabytes: int
) -> None:
    shorten_timeouts(monkeypatch, "session.LOAD_S")
    page = b"<p>beginning" + (b"<p>" + b"many words " * 10_000) * (megabytes * 2**20 // 110_003)

    async def scenario(session: BrowserSession) -> None:
        assert len(await observed_text(session)) < 100_000
        await assert_recovers(session)

    def site(request: Request) -> Response:
        return Response(page if request.path == "/" else b"<p>all is fine")

    run_scenario(pool, site, scenario)


def test_a_response_that_never_ends(pool: BrowserPool, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_timeouts(monkeypatch, "session.LOAD_S")

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        try:
            if b"GET /fine" in request:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 14\r\n\r\n<p>all is fine")
                return
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<title>drip</title>")
            while True:
                writer.write(b"<p>drop</p>" * 100)
                await writer.drain()
                await asyncio.sleep(0.01)  # for the site, which must continue, not to fill the memory
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def both() -> None:
        server = await asyncio.start_server(drip, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        session = await pool.open(origins=[url])
        await session.goto(url)
        while "drop" not in await observed_text(session):
            pass
        await act(session, f"goto('{url}/fine')")
        assert "all is fine" in await observed_text(session)
        await session.close()
        server.close()

    asyncio.run(asyncio.wait_for(both(), 240))


def test_twelve_concurrent_episodes_with_hostile_ones(pool: BrowserPool, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_timeouts(monkeypatch, "session.LOAD_S", "session.RESPONSE_S", "load_state.REQUESTS_S")
    hostile = [
        "while (true);",
        "setInterval(() => alert(1), 0)",
        "setInterval(() => open('/'), 0)",
        "setInterval(() => {for (let i = 0; i < 50; i++) fetch('/' + i)}, 5)",
    ]

    async def attack(script: str, stop: asyncio.Event) -> None:
        session = await pool.open(sites={"http://a.test": served(f"<p>x<script>{script}</script>")})
        await session.goto("http://a.test/")
        while not stop.is_set():
            await session.observe()
        await session.close()

    async def honest(number: int) -> Any:
        session = await pool.open(sites={"http://b.test": lambda request: Response(f"<button>{number}".encode())})
        await session.goto("http://b.test/")
        while not (elements := (await session.observe()).elements):
            pass
        await session.close()
        return [element.name for element in elements.values()]

    async def run_all() -> list[Any]:
        stop = asyncio.Event()
        attacks = [asyncio.create_task(attack(script, stop)) for script in hostile]
        names = await asyncio.gather(*(honest(number) for number in range(8)))
        stop.set()
        await asyncio.gather(*attacks)
        return names

    assert asyncio.run(asyncio.wait_for(run_all(), 240)) == [[str(number)] for number in range(8)]
