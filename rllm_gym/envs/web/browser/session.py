"""The browser session of one episode: an isolated context, its tabs, and a deadline on every request."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib
import io
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from rllm_gym.core import EnvironmentFault
from rllm_gym.core.background_loop import BackgroundLoop
from rllm_gym.envs.web.browser.actions import act
from rllm_gym.envs.web.browser.cdp import ProtocolError
from rllm_gym.envs.web.browser.errors import BrowserFault, SiteFault
from rllm_gym.envs.web.browser.isolated_world import DocumentGone, is_navigation
from rllm_gym.envs.web.browser.load_state import wait_until_settled
from rllm_gym.envs.web.browser.marks import with_marks
from rllm_gym.envs.web.browser.network_policy import NetworkPolicy, origin_of
from rllm_gym.envs.web.browser.observation import HOW_TO_ANSWER, ElementRegistry, PageView, observe, observe_dialog
from rllm_gym.envs.web.browser.storage_state import StorageState
from rllm_gym.envs.web.browser.tabs import MAX_DIALOGS, DialogRecord, TabSet
from rllm_gym.parsing.browser_actions import BrowserAction

if TYPE_CHECKING:
    from rllm_gym.envs.web.browser.cdp import CDPSession
    from rllm_gym.envs.web.browser.context_pool import PooledContext
    from rllm_gym.envs.web.browser.pages import Page

T = TypeVar("T")

GOTO_S = 30.0
"""Seconds until the first bytes of a start page must arrive."""

LOAD_S = 10.0
"""Seconds a start page may continue to load. After that it is shown as it is."""

SETTLE_S = 40.0
"""Seconds for what a loaded start page still does, over the limits in :mod:`~rllm_gym.envs.web.browser.load_state`."""

ANSWER_S = 15.0
"""Seconds the browser may take for any other answer."""

ACT_S = 60.0
"""Seconds an action may take, including everything it starts."""

OBSERVE_S = 30.0
"""Seconds an observation may take."""

RESPONSE_S = 10.0
"""Seconds a page may block its thread between two turns. A script that runs longer is stopped."""

STOP_S = 20.0
"""Seconds a stopped script may take to end. If it does not, its tab is closed with everything in it. The limit is
generous because on a busy machine an ordinary page may take a while."""

_OBSERVE_TRIES = 3
_NAVIGATIONS = 20  # that may interrupt one check whether a tab answers
_ISOLATED_WORLD = "rllm-gym checks"
_BLANK = "about:blank"
_NO_ACTION = BrowserAction("wait", ms=0.0)
_NEXT_FRAME = "new Promise(requestAnimationFrame)"


class _DialogOpened(Exception):
    """A dialog of the browser waits for an answer, and until then no page answers."""


class BrowserSession:
    """An isolated browser context with its tabs. Open it with :meth:`BrowserPool.open`, and close it.

    Its coroutines may be awaited on any event loop, one at a time. An unclosed session is closed when it is
    garbage-collected.

    Attributes:
        viewport: Width and height in pixels.
        network_policy: What the session may reach; see ``network_policy.is_allowed(url)``.
    """

    def __init__(
        self,
        loop: BackgroundLoop,
        context: PooledContext,
        viewport: tuple[int, int],
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        self.viewport = viewport
        self.network_policy: NetworkPolicy = context.network_policy
        self.tabs = TabSet(context.context, context.page, context.network_policy)
        self.tabs.files = files or {}
        self.registry = ElementRegistry(self.tabs)
        self._acted = False
        self._image: npt.NDArray[np.uint8] | None = None
        self._loop = loop
        self._context = context
        self._finalizer = weakref.finalize(self, _release, loop, context, self.tabs)

    # Used by environments

    async def goto(self, url: str, storage: StorageState | None = None) -> None:
        """Open a page in the active tab, for the environment: not restricted to what the model may open.

        Args:
            url: URL of the page.
            storage: Cookies and local storage to set before.

        Raises:
            BrowserFault: The browser failed, or did not answer in time.
            SiteFault: The page cannot be reached, or its site failed.
            EnvironmentFault: A cookie is invalid; kind ``"setup"``.
        """
        state = storage or StorageState()
        await self._run(lambda: self.within(self._goto(url, state), GOTO_S + LOAD_S + SETTLE_S, f"opening {url}"))

    async def observe(
        self, *, screenshot: bool = False, chars: int = 20_000, boxes: bool = False, marks: bool = False
    ) -> PageView:
        """Return the active tab as text of at most ``chars``, with numbered elements. Raises as :meth:`goto`.

        While a dialog of the browser waits for an answer, the page cannot be read: the text describes the dialog, and
        the screenshot is the latest one.

        Args:
            screenshot: Take a screenshot.
            chars: Maximum characters of text.
            boxes: Locate the elements, in :attr:`Element.box` and in the text.
            marks: Draw the numbers and boxes of the elements into the screenshot.
        """
        return await self._run(lambda: self._observe(screenshot, chars, boxes, marks))

    async def act(self, action: BrowserAction) -> str:
        """Carry out a model's action and wait for its effects. Returns ``""``, or the error message for the model.

        A page that computes forever, or that crashes once the model has acted, is also reported as an error message.
        Raises as :meth:`goto`; a crash that is not the model's doing is a ``BrowserFault``, see
        :meth:`_check_whose_crash`.
        """
        return await self._run(lambda: self._act(action))

    async def evaluate(self, script: str, *, world: Literal["isolated", "main"] = "isolated") -> Any:
        """Return the value of a JavaScript expression on the active page, as JSON; a promise is awaited.

        Args:
            script: The expression.
            world: ``"isolated"``: hidden from the page's scripts, which cannot falsify it; ``"main"``: together with
                the page's own scripts.

        Raises:
            ValueError: The script raised an exception; the message contains it.
            BrowserFault: The browser failed, or did not answer in time.

        A dialog that waits for an answer is dismissed first, because the page does not answer until then.
        """
        return await self._run(lambda: self._evaluate_within(script, world))

    async def can_be_caused_by_model(self) -> bool:
        """Return whether a failure may be an effect of the model's actions.

        It is not before its first action except ``wait``, nor if the browser has ended or the process of the active
        page was killed from outside.

        Raises:
            BrowserFault: The session is closed.
        """

        async def find_out() -> bool:
            return self._can_be_caused_by_model and await self._context.chromium.alive()

        return await self._run(find_out)

    async def screenshot(self) -> npt.NDArray[np.uint8]:
        """Return a screenshot of the active tab, as height x width x 3 bytes."""
        return await self._run(self._latest_screenshot)

    async def close(self) -> None:
        """End the episode and delete its context. Does not wait for a browser that hangs. Idempotent."""
        if self._finalizer.detach() is not None and not self._context.lost:
            await self._loop.arun(_closed(self._context, self.tabs))

    # Used by the other modules of this package, on the pool's loop

    @property
    def page(self) -> Page:
        """The active tab."""
        return self.tabs.page

    @property
    def pages(self) -> Sequence[Page]:
        """All tabs, oldest first."""
        return self.tabs.pages

    @property
    def dialogs(self) -> Sequence[DialogRecord]:
        return self.tabs.dialogs

    @property
    def blocked(self) -> Sequence[str]:
        """What pages tried to reach against the network policy."""
        return self.network_policy.blocked

    def cdp(self, page: Page | None = None) -> CDPSession:
        """Return a tab's session of the browser's protocol, by default that of the active tab."""
        return self.tabs.cdp(page)

    async def within(self, operation: Coroutine[Any, Any, T], seconds: float, what: str) -> T:
        """Await an operation of the browser with a deadline, converting its errors to faults.

        Raises:
            BrowserFault: It exceeded the deadline, the page crashed, or the browser has ended.
            SiteFault: A site of this process raised an exception meanwhile.
        """
        task = asyncio.ensure_future(operation)
        try:
            # A crash is reported, but does not end requests to the page that crashed.
            waited: list[asyncio.Future[Any]] = [task, self.tabs.crash, self.tabs.dialog_opened]
            await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if self.network_policy.fault is not None:
                raise self.network_policy.fault
            if task.done():
                return task.result()
        except ProtocolError as error:
            raise await self._fault(what, error) from error
        finally:
            task.cancel()
        if self.tabs.crash.done():
            raise BrowserFault(f"{what}: the page crashed", kind="page_crashed")
        if self.tabs.waiting:
            raise _DialogOpened
        raise BrowserFault(f"{what} took longer than {seconds:g} s", kind="browser_deadline")

    # Implementation

    async def _run(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the pool's loop."""
        if self._context.lost or not self._finalizer.alive:
            raise BrowserFault("this browser session or its pool is closed; open a new one", kind="browser_died")
        return await self._loop.arun(begin())

    async def _fault(self, what: str, error: Exception) -> BrowserFault:
        if not await self._context.chromium.alive():
            return BrowserFault(f"{what}: the browser died ({_first_line(error)})", kind="browser_died")
        return BrowserFault(f"{what}: {_first_line(error)}", kind="page_lost")

    async def _observe(self, screenshot: bool, chars: int, boxes: bool, marks: bool) -> PageView:
        for _ in range(_OBSERVE_TRIES):
            try:
                view = await self._observe_page(screenshot, chars, boxes, marks)
                break
            except _DialogOpened:
                if self.tabs.waiting:  # else it was closed meanwhile, for example with its tab
                    view = observe_dialog(self.registry)
                    return replace(view, image=await self._latest_screenshot()) if screenshot else view
        else:
            raise BrowserFault("the page opened and closed one dialog after another", kind="page_unreadable")
        self._image = view.image
        if not marks or view.image is None:
            return view
        return replace(view, image=with_marks(view.image, view.elements))

    async def _latest_screenshot(self) -> npt.NDArray[np.uint8]:
        """Return a screenshot, or the latest one while a dialog waits for an answer."""
        try:
            self._image = await self.within(self._screenshot(), ANSWER_S, "taking a screenshot")
        except _DialogOpened:
            if self._image is None:
                width, height = self.viewport
                self._image = np.zeros((height, width, 3), np.uint8)
        return self._image

    async def _observe_page(self, screenshot: bool, chars: int, boxes: bool, marks: bool) -> PageView:
        for _ in range(_OBSERVE_TRIES - 1):
            await self._ensure_responsive()
            try:
                return await self._observe_once(screenshot, chars, boxes, marks)
            except DocumentGone:
                async with self._scripts_paused():
                    return await self._observe_once(screenshot, chars, boxes, marks)
            except BrowserFault as fault:
                # The page crashed during the observation, or its scripts, and ours with them, were just stopped.
                await self._recover(fault)
        return await self._observe_once(screenshot, chars, boxes, marks)

    async def _observe_once(self, screenshot: bool, chars: int, boxes: bool, marks: bool) -> PageView:
        async def view() -> PageView:
            seen = await observe(self.registry, chars=chars, boxes=boxes)
            if marks and not boxes:  # the text does not show the boxes
                located = (await observe(self.registry, chars=chars, boxes=True)).elements
                placed = {n: replace(item, box=located[n].box) for n, item in seen.elements.items() if n in located}
                seen = replace(seen, elements=placed)
            if not screenshot:
                return seen
            return replace(seen, image=await self.within(self._screenshot(), ANSWER_S, "taking a screenshot"))

        return await self.within(view(), OBSERVE_S, "observing the page")

    @contextlib.asynccontextmanager
    async def _scripts_paused(self) -> AsyncIterator[None]:
        """Disable scripts in the next document, for a page that replaces itself too fast to be observed."""
        self.tabs.note("The page kept reloading itself; its scripts were paused while it was read.")
        cdp = self.cdp()
        await self.within(_run_scripts(cdp, False), ANSWER_S, "disabling the page's scripts")
        try:
            yield
        finally:
            await self.within(_run_scripts(cdp, True), ANSWER_S, "re-enabling the page's scripts")

    async def _act(self, action: BrowserAction) -> str:
        page, since = self.page, None
        if self.tabs.waiting:
            if action.name != "handle_dialog":
                return f"A dialog of the browser is open. {HOW_TO_ANSWER}"
            self._acted = True
            since = self.registry.mark(page)
            await self.tabs.answer(action.option == "accept", action.text)
            action = _NO_ACTION  # only wait for the effects of the answer
        try:
            await self._ensure_responsive()
            self._acted = self._acted or action.name != "wait"
            await self.within(self.tabs.let_scripts_run(), ANSWER_S, "re-enabling the page's scripts")
            try:
                since = since if page is self.page else None
                acting = act(self.registry, self.viewport, action, since)
                return await self.within(acting, ACT_S, f"the action {action.name}")
            except BrowserFault as fault:
                await self._recover(fault)
                return f"The page failed during this action: {fault}."
        except _DialogOpened:
            return ""  # the next observation shows it; what is left of the action does not happen

    async def _recover(self, fault: BrowserFault) -> None:
        """After a fault, continue with a working page if the browser works.

        Raises:
            BrowserFault: The browser does not work.
        """
        if not await self._context.chromium.alive():
            raise BrowserFault(f"the browser died ({fault})", kind="browser_died") from fault
        await self._ensure_responsive()

    async def _ensure_responsive(self) -> None:
        """Ensure that the active tab answers: stop an endless script, replace a tab that crashed or hangs."""
        self.tabs.clear_crash()
        await self.tabs.wait_until_stopped()
        if self.tabs.waiting:
            raise _DialogOpened
        if not self.pages:
            await self._replace(None, "The last tab was closed; this is a new one.")
        elif self.page in self.tabs.crashed:
            self._check_whose_crash()
            await self._replace(self.page, f"The tab with {self.page.url[:200]} crashed; this is a new one.")
        elif not await self._is_responsive(RESPONSE_S):
            if await self._is_responsive(STOP_S, stop=True):
                self.tabs.note(f"A script of the page ran for more than {RESPONSE_S:g} s and was stopped.")
            elif not await self._context.chromium.alive():
                raise BrowserFault("the browser died", kind="browser_died")
            else:
                await self._replace(self.page, f"The tab with {self.page.url[:200]} hung; this is a new one.")

    def _check_whose_crash(self) -> None:
        """Decide whether the crash of the active tab is reported to the model.

        It is not if the process was killed from outside, or if the model has not acted yet. Any other crash may be a
        late effect of what it did: if that were a fault, a model could discard episodes it is about to lose.

        Raises:
            BrowserFault: The model cannot have caused it; ``kind`` is ``"page_crashed"``.
        """
        page = self.page
        if not self._can_be_caused_by_model:
            how = "its process was killed" if page.killed else "the model had not acted yet"
            raise BrowserFault(f"the page {page.url[:200]} crashed: {how}", kind="page_crashed")

    @property
    def _can_be_caused_by_model(self) -> bool:
        return self._acted and not self.page.killed

    async def _is_responsive(self, seconds: float, *, stop: bool = False) -> bool:
        """Return whether the active tab's scripts answer. ``stop``: stop the running script first."""
        asked = asyncio.ensure_future(self._answers(seconds, stop))
        waited: list[asyncio.Future[Any]] = [asked, self.tabs.dialog_opened]
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self.tabs.waiting:
                raise _DialogOpened
            return await asked
        finally:
            asked.cancel()

    async def _answers(self, seconds: float, stop: bool) -> bool:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(seconds):
                for _ in range(_NAVIGATIONS):
                    try:
                        cdp = self.cdp()
                        if stop:
                            await cdp.send("Runtime.terminateExecution")
                        await cdp.send("Runtime.evaluate", {"expression": "1"})
                        return True
                    except ProtocolError as error:
                        if not is_navigation(error):  # else another document replaced this one meanwhile: ask that one
                            raise
        return self.page in self.tabs.crashed

    async def _replace(self, gone: Page | None, reason: str) -> None:
        self.tabs.note(reason)
        await self._change_tab(gone)

    async def _change_tab(self, gone: Page | None) -> None:
        """Open a tab and close another one."""
        page = await self.within(self._context.context.new_page(), GOTO_S, "opening a tab")
        if gone is not None:
            # Closing kills a hanging process within about a second; a crashed process has already ended.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(ANSWER_S):
                    await gone.close()
        self.tabs.bring_to_front(page)

    async def _set_cookie(self, cookie: Mapping[str, Any]) -> None:
        try:
            await self.cdp().send("Network.setCookies", {"cookies": [dict(cookie)]})
        except ProtocolError as error:
            if "Invalid" not in str(error):
                raise
            words = "cannot be set; it needs a domain with a path, or a url, and a value without ';'"
            raise EnvironmentFault(f"the cookie {cookie!r:.300} {words}: {error}", kind="setup") from error

    async def _goto(self, url: str, storage: StorageState) -> None:
        self.tabs.asks = False
        while self.tabs.waiting:
            await self.tabs.answer(False)
        try:
            for cookie in storage.cookies:
                await self._set_cookie(cookie)
            if not storage.local_storage:
                return await self._open_start_page(url)
            source = {"source": storage.script()}
            further = {*storage.local_storage} - {origin_of(url)}
            if visited := [origin for origin in sorted(further) if self.network_policy.is_allowed(origin)]:
                await self._visit_origins(visited, source)
            stored = await self.cdp().send("Page.addScriptToEvaluateOnNewDocument", source)
            await self._open_start_page(url)
            await self.cdp().send("Page.removeScriptToEvaluateOnNewDocument", stored)
        finally:
            self.tabs.asks = True

    async def _visit_origins(self, origins: Iterable[str], source: dict[str, Any]) -> None:
        """Open an empty document of each origin, where the script of the storage runs. Their servers are not asked."""
        cdp, page = self.cdp(), self.page

        def answer(event: dict[str, Any]) -> None:
            request = {"requestId": event["requestId"], "responseCode": 200, "body": ""}
            answering = cdp.send_nowait("Fetch.fulfillRequest", request)
            # It fails if the session is closed meanwhile, which the navigation reports.
            answering.add_done_callback(lambda done: done.cancelled() or done.exception())

        await cdp.send("Page.addScriptToEvaluateOnNewDocument", source)
        cdp.on("Fetch.requestPaused", answer)
        await cdp.send("Fetch.enable", {"patterns": [{"urlPattern": "*"}]})
        for origin in origins:
            await self._wait_for_document(page, f"{origin}/")
        await self._change_tab(page)  # to one without a history, also for the model's back()

    async def _open_start_page(self, url: str) -> None:
        if not self.pages:
            await self._ensure_responsive()
        page = self.page
        if page.url != _BLANK:
            # Go through a blank page: otherwise a navigation of the old page could replace the new page.
            await self._wait_for_document(page, _BLANK)
        tab = await self.registry.tab(page)
        requests = tab.activity.mark().requests
        try:
            await self._wait_for_document(page, url)
        except ProtocolError as error:
            if "net::" in str(error) and self.network_policy.fault is None:
                raise SiteFault(f"the start page {url} cannot be opened: {_first_line(error)}") from error
            raise
        if await page.loaded(LOAD_S):
            # Scripts often add content, and style sheets request images, only after the document is loaded.
            since = replace(tab.activity.mark(), requests=requests)
            # A page that does not answer, or whose tab is closing, is the observation's to deal with.
            with contextlib.suppress(BrowserFault, ProtocolError):
                if note := await wait_until_settled(tab.isolated, tab.activity, since, self.tabs.scripts_stopped):
                    self.tabs.note(note)

    async def _wait_for_document(self, page: Page, url: str) -> None:
        while True:
            try:
                return await page.goto(url, seconds=GOTO_S)
            except ProtocolError as error:
                # A pending navigation of the previous page interrupted this one: try again.
                if "interrupted by another navigation" not in str(error):
                    raise

    async def _evaluate_within(self, script: str, world: str) -> Any:
        for _ in range(MAX_DIALOGS + 1):
            while self.tabs.waiting:
                await self.tabs.answer(False)
            with contextlib.suppress(_DialogOpened):
                return await self.within(self._evaluate(script, world), ANSWER_S, "evaluating a script")
        raise BrowserFault("the page opened one dialog after another", kind="browser_deadline")

    async def _evaluate(self, script: str, world: str) -> Any:
        cdp = self.cdp()
        parameters: dict[str, Any] = {"expression": script, "returnByValue": True, "awaitPromise": True}
        answer = None
        while answer is None:
            if world == "isolated":
                frame = (await cdp.send("Page.getFrameTree"))["frameTree"]["frame"]["id"]
                created = await cdp.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": _ISOLATED_WORLD})
                parameters["contextId"] = created["executionContextId"]
            try:
                answer = await cdp.send("Runtime.evaluate", parameters)
            except Exception as error:
                # A navigation replaced the document between the two calls, before the script started: retry on the next
                # one.
                if "Cannot find context" not in str(error):
                    raise
        if problem := answer.get("exceptionDetails"):
            message = problem.get("exception", {}).get("description") or problem.get("text", "")
            raise ValueError(f"the script failed: {message[:2000]}")
        return answer["result"].get("value")

    async def _screenshot(self) -> npt.NDArray[np.uint8]:
        try:
            image = importlib.import_module("PIL.Image")
        except ModuleNotFoundError as error:
            raise BrowserFault(
                "screenshots need Pillow: pip install 'rllm-gym[render]'", kind="browser_unavailable"
            ) from error
        cdp = self.cdp()
        shot = None
        while shot is None:
            try:
                shot = await cdp.send("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": True})
            except ProtocolError as error:
                # There is no frame to capture while the GPU process (re)starts: try again with the next one.
                if "Unable to capture screenshot" not in str(error):
                    raise
                await cdp.send("Runtime.evaluate", {"expression": _NEXT_FRAME, "awaitPromise": True})
        with image.open(io.BytesIO(base64.b64decode(shot["data"]))) as picture:
            pixels: npt.NDArray[np.uint8] = np.asarray(picture.convert("RGB"), dtype=np.uint8)
        return pixels


async def _run_scripts(cdp: CDPSession, run: bool) -> None:
    await cdp.send("Emulation.setScriptExecutionDisabled", {"value": not run})
    if not run:
        await cdp.send("Page.stopLoading")


def _release(loop: BackgroundLoop, context: PooledContext, tabs: TabSet) -> None:
    """Close a session that was not closed by its owner. Callable from any thread; does not wait."""
    loop.call_soon(lambda: asyncio.ensure_future(_closed(context, tabs)))


async def _closed(context: PooledContext, tabs: TabSet) -> None:
    tabs.cancel_background()
    context.discard()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:500]
