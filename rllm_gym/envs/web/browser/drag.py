"""Dragging with the mouse, for pages that handle mouse events or use the browser's drag and drop."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Any, Self

from rllm_gym.envs.web.browser.isolated_world import INPUT_S, DocumentGone, IsolatedWorlds

_STEPS = 8
_DRAG_S = 5.0
_LEFT = {"button": "left", "buttons": 1}


class Drag:
    """A drag with the left button from one position to another. The button is always released at the end.

    The browser's mouse does not perform a native drag itself. It reports the drag to the client, which then moves it.

    Args:
        isolated: The isolated worlds of the page.
        frame: The frame in which the drag starts.
    """

    def __init__(self, isolated: IsolatedWorlds, frame: str) -> None:
        self._isolated = isolated
        self._frame = frame
        self._at = (0.0, 0.0)
        self._drag_intercepted: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._data: dict[str, Any] | None = None
        self._pressed = False

    async def __aenter__(self) -> Self:
        self._isolated.on("Input.dragIntercepted", self._intercepted)
        await self._isolated.send("Input.setInterceptDrags", enabled=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        try:
            if self._data is not None:
                await self._drag("drop")
            elif self._pressed:
                await self._mouse("mouseReleased", button="left", clickCount=1)
        finally:
            self._isolated.off("Input.dragIntercepted", self._intercepted)
            with contextlib.suppress(DocumentGone):
                await self._isolated.send("Input.setInterceptDrags", enabled=False)

    async def press(self, x: float, y: float) -> None:
        """Press the button at a position."""
        self._at = (x, y)
        await self._isolated.call("watchDrag", frame=self._frame)
        await self._mouse("mouseMoved")
        await self._mouse("mousePressed", **_LEFT, clickCount=1)
        self._pressed = True

    async def move_to(self, x: float, y: float) -> None:
        """Move to a position, in steps."""
        from_x, from_y = self._at
        for step in range(1, _STEPS + 1):
            part = step / _STEPS
            self._at = (from_x + (x - from_x) * part, from_y + (y - from_y) * part)
            if self._data is not None:
                await self._drag("dragOver")
                continue
            await self._mouse("mouseMoved", **_LEFT)
            if (await self._isolated.call("dragBegan", frame=self._frame))["began"]:
                # The drag data arrives separately from the response to the mouse event.
                async with asyncio.timeout(_DRAG_S):
                    self._data = await self._drag_intercepted
                await self._drag("dragEnter")
                await self._drag("dragOver")

    def _intercepted(self, event: dict[str, Any]) -> None:
        if not self._drag_intercepted.done():
            self._drag_intercepted.set_result(event["data"])

    async def _mouse(self, kind: str, **more: Any) -> None:
        x, y = self._at
        await self._isolated.send("Input.dispatchMouseEvent", deadline_s=INPUT_S, type=kind, x=x, y=y, **more)

    async def _drag(self, kind: str) -> None:
        x, y = self._at
        await self._isolated.send("Input.dispatchDragEvent", deadline_s=INPUT_S, type=kind, x=x, y=y, data=self._data)
