"""The tabs of one episode: the list of tabs, the active one, and dialogs, downloads and windows that pages open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rllm_gym.envs.web.browser.network_policy import NetworkPolicy

if TYPE_CHECKING:
    from rllm_gym.envs.web.browser.cdp import CDPSession
    from rllm_gym.envs.web.browser.pages import BrowserContext, Dialog, Download, Page

MAX_TABS = 8
MAX_DIALOGS = 10
"""Number of dialogs that a page may open between two observations. After one more, its scripts are stopped."""

_MAX_NOTES = 30
_NOTE_CHARS = 500
_REPLY_S = 15.0
_LEAVE_S = 3.0
_LEAVE_TRIES = 3
_STOP_SCRIPTS_S = 5.0


@dataclass(frozen=True, slots=True)
class DialogRecord:
    """A dialog and its answer: ``kind`` is ``alert``, ``confirm``, ``prompt`` or ``beforeunload``."""

    kind: str
    message: str
    accepted: bool


class TabSet:
    """The tabs of a context, updated by event listeners on the pool's loop.

    Attributes:
        pages: Open tabs, oldest first; never empty while the browser works.
        page: The active tab.
        crashed: Tabs whose process died.
        crash: Done when the active tab has crashed.
        dialogs: Dialogs that appeared since the last :meth:`take_notes`.
        asks: Whether dialogs with a choice wait for the model's answer; else they are accepted.
        waiting: Dialogs that wait for an answer, oldest first. While there is one, no page answers.
        dialog_opened: Done when such a dialog has opened.
        files: The files that can be uploaded, by name.
        chooser: The choice of a file that an upload waits for.
        scripts_stopped: Set while the scripts of all tabs are stopped.
    """

    def __init__(self, context: BrowserContext, page: Page, network_policy: NetworkPolicy) -> None:
        self.context = context
        self.network_policy = network_policy
        self.pages: list[Page] = []
        self.page = page
        self.dialogs: list[DialogRecord] = []
        self.asks = False
        self.waiting: list[Dialog] = []
        self.dialog_opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.files: Mapping[str, bytes] = {}
        self.chooser: asyncio.Future[dict[str, Any]] | None = None
        self.crashed: set[Page] = set()
        self.crash: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.scripts_stopped = asyncio.Event()
        self._notes: list[str] = []
        self._notes_lost = 0
        self._behind: list[Page] = []
        self._left: set[Page] = set()
        self._leaving: set[Page] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._dialogs_open = 0
        self._tabs_refused = 0
        self._stopping: asyncio.Task[None] | None = None
        self._stopped: set[Page] = set()
        self._add(page)
        network_policy.on_blocked_page = self._on_blocked
        context.on("page", self._add)

    def cdp(self, page: Page | None = None) -> CDPSession:
        """Return a tab's session of the browser's protocol."""
        return (page or self.page).session

    def bring_to_front(self, page: Page) -> None:
        """Make a tab the active one."""
        if page is not self.page:
            self._behind = [other for other in self._behind if other is not page] + [self.page]
            self.page = page

    async def wait_until_stopped(self) -> None:
        """Wait until scripts have been stopped, if that is in progress: it would stop our scripts as well."""
        if self._stopping is not None:
            await asyncio.wait([self._stopping], timeout=_STOP_SCRIPTS_S)

    async def let_scripts_run(self) -> None:
        """Re-enable scripts of pages that opened endless dialogs or tabs, because the model acts again."""
        self.scripts_stopped.clear()
        stopped, self._stopped = self._stopped, set()
        for page in stopped.intersection(self.pages) - self.crashed:
            session = self.cdp(page)
            await session.send("Emulation.setScriptExecutionDisabled", {"value": False})

    def clear_crash(self) -> None:
        """Reset the crash of an active tab after its waiters have been notified."""
        if self.crash.done():
            self.crash = asyncio.get_running_loop().create_future()

    def note(self, text: str) -> None:
        """Add a sentence to the next observation."""
        if len(self._notes) < _MAX_NOTES:
            self._notes.append(text[:_NOTE_CHARS])
        else:
            self._notes_lost += 1

    def take_notes(self) -> list[str]:
        """Return the events since the last call: dialogs, downloads, tabs, crashes, blocked URLs. At most 31 lines."""
        notes, lost = self._notes, self._notes_lost
        self._notes, self._notes_lost, self.dialogs = [], 0, []
        self._tabs_refused = 0
        if not self.waiting:
            self._dialogs_open = 0
        return [*notes, f"{lost} more such events are not listed."] if lost else notes

    async def answer(self, accept: bool, text: str | None = None) -> None:
        """Answer the oldest dialog that waits for it."""
        dialog = self.waiting[0]
        self._answered(dialog)
        await self._reply(dialog, accept, text)

    def _answered(self, dialog: Dialog) -> None:
        self.waiting.remove(dialog)
        if not self.waiting:
            self.dialog_opened = asyncio.get_running_loop().create_future()

    def _closed_dialogs(self, page: Page) -> None:
        """Forget the dialogs of a page that is gone, or whose dialog the browser has closed."""
        for dialog in [each for each in self.waiting if each.page is page]:
            self._answered(dialog)

    def cancel_background(self) -> None:
        for task in self._background:
            task.cancel()

    # Event handlers

    def _add(self, page: Page) -> None:
        if page in self.pages:
            return
        if len(self.pages) >= MAX_TABS:
            self._tabs_refused += 1
            if self._tabs_refused <= MAX_TABS:
                self.note(f"A page tried to open another tab. There are {MAX_TABS} already, so it was closed.")
            elif self._tabs_refused == MAX_TABS + 1:
                self.note("A page kept opening tabs, so the scripts of all tabs were stopped.")
            if self._tabs_refused > MAX_TABS:
                self._stop_endless_scripts()
            self._start_background(page.close())
            return
        self.pages.append(page)
        self.bring_to_front(page)
        page.on("close", self._closed)
        page.on("crash", self._has_crashed)
        page.on("dialog", self._dialog)
        page.on("dialogclosed", self._closed_dialogs)
        page.on("download", self._refuse)
        page.on("filechooser", self._refuse_file)
        page.on("navigated", self._navigated)

    def _closed(self, page: Page) -> None:
        self._closed_dialogs(page)
        self.crashed.discard(page)
        self._left.discard(page)
        if page in self.pages:
            self.pages.remove(page)
        self._behind = [other for other in self._behind if other is not page]
        if page is self.page and self.pages:
            self.page = self._behind.pop() if self._behind else self.pages[-1]

    def _has_crashed(self, page: Page) -> None:
        self._closed_dialogs(page)
        self.crashed.add(page)
        if page is self.page and not self.crash.done():
            self.crash.set_result(None)

    def _dialog(self, dialog: Dialog) -> None:
        self._dialogs_open += 1
        accepted = self._dialogs_open <= MAX_DIALOGS
        if accepted and self.asks and dialog.type in ("confirm", "prompt"):
            self.waiting.append(dialog)
            if not self.dialog_opened.done():
                self.dialog_opened.set_result(None)
            return
        if accepted:
            self.dialogs.append(DialogRecord(dialog.type, dialog.message[:_NOTE_CHARS], accepted))
            self.note(_about_dialog(dialog))
            self._start_background(self._reply(dialog, accepted))
            return
        if self._dialogs_open == MAX_DIALOGS + 1:
            self.note(f"A page opened more than {MAX_DIALOGS} dialogs. They were dismissed, and its scripts stopped.")
        self._stop_endless_scripts()
        self._start_background(self._reply(dialog, accepted))

    async def _reply(self, dialog: Dialog, accepted: bool, text: str | None = None) -> None:
        with contextlib.suppress(TimeoutError):  # a tab that does not answer is replaced later
            async with asyncio.timeout(_REPLY_S):
                await self._send_reply(dialog, accepted, text)

    async def _send_reply(self, dialog: Dialog, accepted: bool, text: str | None) -> None:
        try:
            if not accepted:
                await dialog.dismiss()
            elif dialog.type == "prompt":
                await dialog.accept(dialog.default_value if text is None else text)
            else:
                await dialog.accept()
        except Exception as error:
            # The dialog opened while its page was being left, and blocks the page: Chromium does not allow an answer to
            # it.
            if "Not attached to an active page" in str(error):
                self.note("A dialog of a page that was being left could not be answered. Its tab was closed.")
                self._has_crashed(dialog.page)
                await dialog.page.close()

    def _stop_endless_scripts(self) -> None:
        """Stop the scripts of all tabs until the model's next action, unless that is in progress."""
        if self._stopping is None or self._stopping.done():
            self._stopping = self._start_background(self._stop_scripts())

    async def _stop_scripts(self) -> None:
        for page in list(self.pages):
            self._stopped.add(page)
            session = self.cdp(page)
            await session.send("Emulation.setScriptExecutionDisabled", {"value": True})
            # A running script continues; this takes effect when a dialog returns control to the script.
            await session.send("Runtime.terminateExecution")
        self.scripts_stopped.set()

    def _on_blocked(self, what: str) -> None:
        self.note(f"{what}: this is not one of the task's sites and was not opened.")

    def _refuse(self, download: Download) -> None:
        self.note(f'The download "{download.suggested_filename}" was refused: files cannot be saved here.')

    def _refuse_file(self, chooser: Any) -> None:
        if self.chooser is not None and not self.chooser.done():
            self.chooser.set_result(chooser)
        elif self.files:
            self.note('The page asked for a file to upload. None was chosen; choose one with upload_file(number, "…").')
        else:
            self.note("The page asked for a file to upload. There are no files here, so none was chosen.")

    def _navigated(self, page: Page) -> None:
        if page.url.startswith("chrome-error:"):
            self.note("The page could not be opened: its server did not answer, or is not one of the task's sites.")
        elif not _is_page(page.url):
            self.network_policy.record_blocked(page.url)
            self.note(f"{page.url[:100]} is not an address of the task and was closed.")
            self._start_background(self._navigate_back(page))

    async def _navigate_back(self, page: Page) -> None:
        """Go back, once per tab; if that fails, or the page comes back, go to an empty page."""
        if page in self._leaving:
            return  # two concurrent navigations would interrupt each other; the first one checks again at its end
        self._leaving.add(page)
        try:
            if page not in self._left:
                self._left.add(page)
                with contextlib.suppress(Exception):
                    await page.go_back(seconds=_LEAVE_S)
            for _ in range(_LEAVE_TRIES):
                if _is_page(page.url):
                    return
                # The page may have started another navigation meanwhile, which interrupts this one.
                with contextlib.suppress(Exception):
                    await page.goto("about:blank", seconds=_LEAVE_S)
        finally:
            self._leaving.discard(page)
        if not _is_page(page.url):
            await page.close()

    def _start_background(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[None]:
        async def done() -> None:
            # The page may be closed before the task runs, and nothing waits for its result.
            with contextlib.suppress(Exception):
                await coroutine

        task = asyncio.ensure_future(done())
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        # A task cancelled before its start never awaits the coroutine, which causes a Python warning.
        task.add_done_callback(lambda _: coroutine.close())
        return task


def _is_page(url: str) -> bool:
    return url in ("", "about:blank", "about:srcdoc") or url.startswith(("http://", "https://"))


def _about_dialog(dialog: Dialog) -> str:
    message = dialog.message[: _NOTE_CHARS - 100]
    if dialog.type == "beforeunload":
        return "The page asked whether to leave it; the answer was to leave."
    if dialog.type == "prompt":
        return f"The page asked {message!r} in a dialog; its default {dialog.default_value[:50]!r} was accepted."
    return f"The page showed a dialog ({dialog.type}): {message!r}. It was accepted."
