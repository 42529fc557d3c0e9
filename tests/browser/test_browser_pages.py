"""Pages that this process opens: the same settings everywhere, keyboard events as from a device, and no leaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rllm_gym.envs.web.browser import BrowserPool, BrowserSession
from rllm_gym.envs.web.browser.cdp import ProtocolError
from rllm_gym.envs.web.browser.keyboard import press_key, type_text
from rllm_gym.envs.web.sites.http import Handler, Request, Response

pytestmark = pytest.mark.usefixtures("long_timeouts")

SETTINGS = """JSON.stringify({
  language: navigator.language, zone: Intl.DateTimeFormat().resolvedOptions().timeZone,
  number: (1234.5).toLocaleString(), width: innerWidth, height: innerHeight, ratio: devicePixelRatio,
  still: matchMedia('(prefers-reduced-motion: reduce)').matches,
  light: matchMedia('(prefers-color-scheme: light)').matches,
  rtc: typeof RTCPeerConnection, focus: document.hasFocus()})"""
REPORTED = (
    '{"language":"en-US","zone":"UTC","number":"1,234.5","width":640,"height":480,"ratio":1,"still":true,"light":true,'
    '"rtc":"undefined","focus":true}'
)


def run_scenario(
    pool: BrowserPool, sites: dict[str, Handler], scenario: Callable[[BrowserSession], Awaitable[None]]
) -> None:
    async def open_and_run() -> None:
        session = await pool.open(sites=sites, viewport=(640, 480))
        await session.goto(f"{next(iter(sites))}/")
        await scenario(session)
        await session.close()

    asyncio.run(asyncio.wait_for(open_and_run(), 240))


def served(html: str) -> Handler:
    return lambda request: Response(html.encode())


def test_every_page_and_popup_has_the_same_settings(pool: BrowserPool) -> None:
    async def scenario(session: BrowserSession) -> None:
        assert await session.evaluate(SETTINGS, world="main") == REPORTED
        await session.evaluate("void open('/other')", world="main")
        while len(session.pages) < 2:
            await session.evaluate("1")
        assert await session.evaluate(SETTINGS, world="main") == REPORTED

    run_scenario(pool, {"http://a.test": served("<p>x")}, scenario)


def test_a_frame_of_another_site_has_the_same_settings(pool: BrowserPool) -> None:
    """It has a process of its own, which the page's commands do not reach."""
    outer = "<iframe src='http://b.test/'></iframe><script>onmessage = event => document.title = event.data</script>"
    inner = (
        "<script>const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;"
        "const asked = typeof RTCPeerConnection; navigator.serviceWorker?.register('/w.js');"
        "new Worker(URL.createObjectURL(new Blob(['postMessage(1)']))).onmessage = () =>"
        "parent.postMessage(asked + ' ' + zone, '*')</script>"
    )

    async def scenario(session: BrowserSession) -> None:
        while not (title := await session.evaluate("document.title")):
            pass
        assert title == "undefined UTC"

    run_scenario(pool, {"http://a.test": served(outer), "http://b.test": served(inner)}, scenario)


def test_key_events_equal_those_of_a_keyboard(pool: BrowserPool) -> None:
    page = """<input id=i autofocus><script>const told = [];
    i.addEventListener('keydown', event => told.push([event.code, event.key, event.keyCode,
      event.ctrlKey + 2 * event.shiftKey + 4 * event.altKey].join(' ')));</script>"""

    async def scenario(session: BrowserSession) -> None:
        run = session._loop.arun
        isolated = (await run(session.registry.tab(session.page))).isolated
        await session.evaluate("i.focus()", world="main")
        await run(type_text(isolated, "aB1!~é"))
        assert await session.evaluate("i.value", world="main") == "aB1!~é"
        for key in ("Shift+1", "Shift+b", "Control+a", "Backspace", "+", "Shift++", "F2"):
            await run(press_key(isolated, key))
        assert await session.evaluate("i.value", world="main") == "++"
        reported = await session.evaluate("told", world="main")
        assert reported == [
            *("KeyA a 65 0", "KeyB B 66 0", "Digit1 1 49 0", "Digit1 ! 49 0", "Backquote ~ 192 0"),
            *("ShiftLeft Shift 16 2", "Digit1 ! 49 2", "ShiftLeft Shift 16 2", "KeyB B 66 2"),
            *("ControlLeft Control 17 1", "KeyA a 65 1", "Backspace Backspace 8 0", "Equal + 187 0"),
            *("ShiftLeft Shift 16 2", "Equal + 187 2", "F2 F2 113 0"),
        ]

    run_scenario(pool, {"http://a.test": served(page)}, scenario)


def test_requests_to_a_closed_page_fail_at_once(pool: BrowserPool) -> None:
    async def scenario(session: BrowserSession) -> None:
        await session.evaluate("void open('/other')", world="main")
        while len(session.pages) < 2:
            await session.evaluate("1")
        gone = session.page

        async def waiting() -> None:
            asking = gone.session.send_nowait(
                "Runtime.evaluate", {"expression": "new Promise(() => 0)", "awaitPromise": True}
            )
            await gone.close()
            with pytest.raises(ProtocolError, match="closed"):
                await asking
            with pytest.raises(ProtocolError, match="closed"):
                await gone.session.send("Page.reload")

        await session._loop.arun(waiting())
        assert session.page is not gone
        with pytest.raises(ProtocolError, match=r"Page\.nothing: .*wasn't found"):
            await session._loop.arun(session.cdp().send("Page.nothing"))

    run_scenario(pool, {"http://a.test": served("<p>x")}, scenario)


def test_goto_overrides_a_pending_redirect_of_the_previous_page(pool: BrowserPool) -> None:
    """A redirect that the previous page still has pending does not replace the opened page."""

    def site(request: Request) -> Response:
        if request.path == "/":
            return Response(b"<script>onload = () => setTimeout(() => location.href = '/again')</script>")
        return Response(f"<title>{request.path}</title>".encode())

    async def scenario(session: BrowserSession) -> None:
        for name in ("/one", "/two#part"):
            await session.goto(f"http://a.test{name}")
            assert session.page.url == f"http://a.test{name}"
        assert await session.evaluate("document.title") == "/two"

    run_scenario(pool, {"http://a.test": site}, scenario)
