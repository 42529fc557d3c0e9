"""The browser of ``rllm_gym.envs.web`` driven through Playwright's driver instead of its own connection.

:func:`use_playwright` replaces the modules ``cdp`` and ``pages`` and the pipe of ``chromium``. Observations, actions,
waiting and JavaScript stay; their commands go through Playwright's ``CDPSession``. Contexts and pages are Playwright's.
Windows that pages open, dialogs and downloads are not followed: the tasks of the benchmark have none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from rllm_gym.envs.web.browser import chromium, context_pool
from rllm_gym.envs.web.browser.cdp import ProtocolError
from rllm_gym.envs.web.browser.pages import Page, _EventEmitter


class PlaywrightSession:
    """The interface of ``cdp.CDPSession`` on Playwright's."""

    def __init__(self, session: Any) -> None:
        self._session = session

    async def send(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = await self._session.send(method, parameters or {})
        except Exception as error:
            raise ProtocolError(str(error)) from error
        return answer

    def send_nowait(self, method: str, parameters: dict[str, Any] | None = None) -> asyncio.Future[dict[str, Any]]:
        return asyncio.ensure_future(self.send(method, parameters))

    def on(self, event: str, handler: Callable[[dict[str, Any]], object]) -> None:
        self._session.on(event, handler)

    def off(self, event: str, handler: Callable[[dict[str, Any]], object]) -> None:
        self._session.remove_listener(event, handler)


class PlaywrightPage(Page):
    """A page of Playwright. Its URL follows the same events."""

    def __init__(self, context: PlaywrightContext, session: PlaywrightSession, page: Any, target: str) -> None:
        unused: Any = None
        super().__init__(context, session, unused, {"targetId": target})  # type: ignore[arg-type]
        self._page = page
        page.on("close", lambda _: self.gone())

    async def ready(self) -> None:
        await self.session.send("Page.enable")
        self.announced()

    async def goto(self, url: str, *, seconds: float) -> None:
        await self._page.goto(url, wait_until="commit", timeout=seconds * 1000)

    async def close(self) -> None:
        await self._page.close()


class PlaywrightContext(_EventEmitter):
    """The interface of ``pages.BrowserContext`` on Playwright's."""

    def __init__(self, context: Any) -> None:
        super().__init__()
        self._context = context
        self.pages: list[PlaywrightPage] = []

    def gone(self, page: PlaywrightPage) -> None:
        self.pages.remove(page)

    async def new_page(self) -> PlaywrightPage:
        page = await self._context.new_page()
        session = PlaywrightSession(await self._context.new_cdp_session(page))
        target = (await session.send("Page.getFrameTree"))["frameTree"]["frame"]["id"]
        opened = PlaywrightPage(self, session, page, target)
        self.pages.append(opened)
        await opened.ready()
        return opened

    async def close(self) -> None:
        await self._context.close()


class PlaywrightContexts:
    """The interface of ``pages.Contexts`` on Playwright's browser."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser

    async def start(self) -> None:
        """Do nothing: Playwright assigns pages to contexts."""

    async def new(self, *, proxy: str, viewport: tuple[int, int], init_script: str) -> PlaywrightContext:
        width, height = viewport
        context = await self._browser.new_context(
            proxy={"server": proxy, "bypass": "<-loopback>"},
            viewport={"width": width, "height": height},
            locale="en-US",
            timezone_id="UTC",
            color_scheme="light",
            reduced_motion="reduce",
            forced_colors="none",
            accept_downloads=False,
        )
        await context.add_init_script(init_script)
        return PlaywrightContext(context)


class PlaywrightChromium(chromium.Chromium):
    """A browser without a connection of its own."""

    def __init__(self, playwright: Any, browser: Any, *rest: Any) -> None:
        super().__init__(playwright, browser, *rest)
        self.contexts = PlaywrightContexts(browser)  # type: ignore[assignment]
        browser.on("disconnected", lambda _: self._mark_dead())

    async def alive(self) -> bool:
        return not self.dead


async def _launched(launching: Awaitable[Any], *unused: Any) -> Any:
    return await launching


def use_playwright() -> None:
    """Have this process drive its browsers through Playwright's driver."""
    chromium._connected_browser = _launched
    chromium._browser_script = lambda executable, folder: executable
    context_pool.Chromium = PlaywrightChromium  # type: ignore[misc]
