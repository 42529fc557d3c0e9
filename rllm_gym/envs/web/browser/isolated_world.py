"""Isolated worlds in the frames of a page: scripts that see the document and are hidden from the page's scripts."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from rllm_gym.envs.web.browser.cdp import CDPSession, EventHandler, ProtocolError
from rllm_gym.envs.web.browser.errors import BrowserFault

_NAME = "rllm-gym"

LISTENER_EVENT = secrets.token_hex(16)
"""Name of the events by which our scripts exchange the nodes that a page's scripts listen on. Pages do not know it."""

ANSWER_S = 20.0
"""Seconds a page may take to answer, for pages that compute forever."""

INPUT_S = 8.0
"""Seconds the listeners of a page may take for one mouse event."""


class DocumentGone(Exception):
    """The document was replaced during a request, by a navigation. Retry with the next one."""


class IsolatedWorlds:
    """The isolated worlds of one page, one per frame, created on first use.

    Args:
        cdp: The page's session.
        main_frame: Name of its main frame.
    """

    def __init__(self, cdp: CDPSession, main_frame: str) -> None:
        self._cdp = cdp
        self._contexts: dict[str, int] = {}
        self._context_lock = asyncio.Lock()
        self._key = f"k{secrets.token_hex(16)}"
        self.main_frame = main_frame
        cdp.on("Page.frameNavigated", lambda event: self._forget(event["frame"]["id"]))
        cdp.on("Page.frameDetached", lambda event: self._forget(event["frameId"]))

    async def frames(self) -> dict[str, Any]:
        """Return the tree of frames from ``Page.getFrameTree``."""
        answer: dict[str, Any] = (await self.send("Page.getFrameTree"))["frameTree"]
        return answer

    async def send(self, method: str, *, deadline_s: float = ANSWER_S, **parameters: Any) -> dict[str, Any]:
        """Send a command of the protocol, with a deadline.

        Raises:
            BrowserFault: No answer in time, or the page or browser has ended.
            DocumentGone: The document was replaced, or its scripts were stopped, meanwhile.
        """
        try:
            async with asyncio.timeout(deadline_s):
                answer: dict[str, Any] = await self._cdp.send(method, parameters)
                return answer
        except TimeoutError as error:
            raise BrowserFault(f"the page did not answer within {deadline_s:g} s", kind="browser_deadline") from error
        except Exception as error:
            if is_navigation(error):
                raise DocumentGone(str(error)) from error
            raise

    def on(self, event: str, handler: EventHandler) -> None:
        """Subscribe to an event of the page."""
        self._cdp.on(event, handler)

    def off(self, event: str, handler: EventHandler) -> None:
        """Unsubscribe from an event of the page."""
        self._cdp.off(event, handler)

    async def call(self, expression: str, *arguments: Any, frame: str | None = None) -> Any:
        """Call a function of our scripts, ``"observe"`` or one of ``act.js``, in the main frame or another.

        Raises:
            BrowserFault, DocumentGone: As :meth:`send`.
        """
        frame = frame or self.main_frame
        listed = ", ".join(json.dumps(argument) for argument in (expression, *arguments))
        context = await self._context(frame)
        answer = await self.send(
            "Runtime.evaluate",
            expression=f"globalThis.{self._key}({listed})",
            contextId=context,
            awaitPromise=True,
            returnByValue=True,
        )
        if "exceptionDetails" in answer:
            self._forget(frame)
            details = answer["exceptionDetails"]
            text = details.get("exception", {}).get("description") or details.get("text", "")
            if "is not a function" in text or "collected" in text:
                raise DocumentGone(text)
            raise BrowserFault(f"the page could not be read: {text[:500]}", kind="page_unreadable")
        return json.loads(answer["result"]["value"])

    async def open_closed_trees(self, frame: str) -> bool:
        """Pass the closed shadow trees of the requested elements to our scripts. Returns whether there were any."""
        context = await self._context(frame)
        hosts = await self.send("Runtime.evaluate", expression=f"globalThis.{self._key}.takeHosts()", contextId=context)
        listed = await self.send("Runtime.getProperties", objectId=hosts["result"]["objectId"], ownProperties=True)
        handles: list[str] = []
        for item in listed["result"]:
            host = item.get("value", {}).get("objectId")
            if not host or not item["name"].isdecimal():
                continue
            described = await self.send("DOM.describeNode", objectId=host)
            for root in described["node"].get("shadowRoots", ()):
                if root.get("shadowRootType") == "closed":
                    node = root["backendNodeId"]
                    found = await self.send("DOM.resolveNode", backendNodeId=node, executionContextId=context)
                    handles += [host, found["object"]["objectId"]]
        if handles:
            await self._call_with_handles(frame, "noteClosed", handles)
        return bool(handles)

    async def call_on_node(self, frame: str, node: int, name: str, *arguments: Any) -> Any:
        """Call a function of our scripts with a node, by its number in the browser, and further arguments."""
        context = await self._context(frame)
        found = await self.send("DOM.resolveNode", backendNodeId=node, executionContextId=context)
        listed = ", ".join(map(json.dumps, arguments))
        answer = await self.send(
            "Runtime.callFunctionOn",
            functionDeclaration=f"function() {{ return globalThis.{self._key}.{name}(this, {listed}) }}",
            objectId=found["object"]["objectId"],
            returnByValue=True,
        )
        return json.loads(answer["result"]["value"])

    async def _call_with_handles(self, frame: str, name: str, handles: Sequence[str]) -> None:
        """Call a function of our scripts with objects, and release them."""
        await self.send(
            "Runtime.callFunctionOn",
            functionDeclaration=f"function(...found) {{ globalThis.{self._key}.{name}(...found) }}",
            executionContextId=await self._context(frame),
            arguments=[{"objectId": item} for item in handles],
        )
        await asyncio.gather(*(self.send("Runtime.releaseObject", objectId=item) for item in handles))

    async def _context(self, frame: str) -> int:
        async with self._context_lock:
            if frame not in self._contexts:
                answer = await self.send("Page.createIsolatedWorld", frameId=frame, worldName=_NAME)
                context: int = answer["executionContextId"]
                # The key identifies our world: context numbers are reused after a navigation.
                define = f"globalThis.{self._key} ??= {_source()}; 0"
                await self.send("Runtime.evaluate", expression=define, contextId=context)
                self._contexts[frame] = context
            return self._contexts[frame]

    def _forget(self, frame: str) -> None:
        self._contexts.pop(frame, None)


@cache
def _source() -> str:
    """Return our scripts as one expression: the function that answers calls by name."""
    folder = files("rllm_gym.envs.web.browser")
    scripts = [folder.joinpath(name).read_text(encoding="utf-8") for name in ("elements.js", "observe.js", "act.js")]
    event = f"const LISTENER_EVENT = {json.dumps(LISTENER_EVENT)};"
    return '(() => {\n"use strict";\n' + "\n".join([event, *scripts]) + "\nreturn dispatch;\n})()"


def is_navigation(error: Exception) -> bool:
    """Return whether an error of the protocol means that the document was replaced or its scripts were stopped."""
    lost = (
        "context", "navigated", "collected", "No frame", "Frame with", "find node", "Node with given id", "belong",
        "Not attached to an active page",
        "Execution was terminated", "Internal error",  # V8 has no other words for a script that was stopped
    )  # fmt: skip
    return isinstance(error, ProtocolError) and any(mark in str(error) for mark in lost)
