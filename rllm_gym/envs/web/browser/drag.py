"""Dragging with the mouse, for pages that handle mouse events or use the browser's drag and drop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rllm_gym.envs.web.browser.isolated_world import INPUT_S, DocumentGone, IsolatedWorlds

STEPS = 8
_DRAG_S = 5.0
_LEFT = {"button": "left", "buttons": 1}


class Drag:
    """A drag with the left button from one position to another. The button is always released at the end.

    The browser's mouse does not perform a native drag itself. It reports the drag to the client, which then moves it.

    Args:
        isolated: The isolated worlds of the page.
        frames: The frames in which the drag may start.
        modifiers: The protocol's bits of keys that are held; may be changed meanwhile.
    """

    def __init__(self, isolated: IsolatedWorlds, frames: Sequence[str], modifiers: int = 0) -> None:
        self.isolated = isolated
        self._frames = frames
        self.modifiers = modifiers
        self._at = (0.0, 0.0)
        self._drag_intercepted: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._data: dict[str, Any] | None = None
        self._pressed = False

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.end()

    async def begin(self) -> None:
        """Listen for a native drag."""
        self.isolated.on("Input.dragIntercepted", self._intercepted)
        await self.isolated.send("Input.setInterceptDrags", enabled=True)

    async def end(self) -> None:
        """Drop what is dragged, or release the button."""
        try:
            if self._data is not None:
                await self._drag("drop")
            elif self._pressed:
                await self._mouse("mouseReleased", button="left", clickCount=1)
        finally:
            self.isolated.off("Input.dragIntercepted", self._intercepted)
            with contextlib.suppress(DocumentGone):
                await self.isolated.send("Input.setInterceptDrags", enabled=False)

    async def press(self, x: float, y: float) -> None:
        """Press the button at a position."""
        self._at = (x, y)
        await self._in_frames("watchDrag")
        await self._mouse("mouseMoved")
        await self._mouse("mousePressed", **_LEFT, clickCount=1)
        self._pressed = True

    async def move_to(self, x: float, y: float, steps: int = STEPS) -> None:
        """Move to a position, in steps."""
        from_x, from_y = self._at
        for step in range(1, steps + 1):
            part = step / steps
            self._at = (from_x + (x - from_x) * part, from_y + (y - from_y) * part)
            if self._data is not None:
                await self._drag("dragOver")
                continue
            await self._mouse("mouseMoved", **_LEFT)
            if any(answer["began"] for answer in await self._in_frames("dragBegan")):
                # The drag data arrives separately from the response to the mouse event.
                try:
                    async with asyncio.timeout(_DRAG_S):
                        self._data = await self._drag_intercepted
                except TimeoutError:  # the browser has not started it: only the mouse moves
                    self._frames = ()
                    continue
                await self._drag("dragEnter")
                await self._drag("dragOver")

    async def _in_frames(self, call: str) -> list[Any]:
        answers = []
        for frame in self._frames:
            try:
                answers.append(await self.isolated.call(call, frame=frame))
            except DocumentGone:
                if len(self._frames) == 1:
                    raise
        return answers

    def _intercepted(self, event: dict[str, Any]) -> None:
        if not self._drag_intercepted.done():
            self._drag_intercepted.set_result(event["data"])

    async def _mouse(self, kind: str, **more: Any) -> None:
        x, y = self._at
        more["modifiers"] = self.modifiers
        await self.isolated.send("Input.dispatchMouseEvent", deadline_s=INPUT_S, type=kind, x=x, y=y, **more)

    async def _drag(self, kind: str) -> None:
        x, y = self._at
        more = {"data": self._data, "modifiers": self.modifiers}
        await self.isolated.send("Input.dispatchDragEvent", deadline_s=INPUT_S, type=kind, x=x, y=y, **more)
