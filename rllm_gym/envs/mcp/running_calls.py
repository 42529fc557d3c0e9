"""The calls of a reply, until all of them are answered or a server asks the model for something before it answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rllm_gym.mcp import MCPTool, ToolResult, ToolSession
from rllm_gym.mcp.server_requests import ServerRequest


class RunningCalls:
    """Calls that run concurrently, across several turns if servers ask the model.

    Args:
        session: The session.
        calls: The tool and the arguments of each.
        to_send: Returns the arguments to send.
        timeout: Time limit in seconds for each; ``None`` for that of its server.
    """

    def __init__(
        self,
        session: ToolSession,
        calls: Sequence[tuple[MCPTool, Mapping[str, Any]]],
        to_send: Callable[[Any], Any],
        timeout: float | None,
    ) -> None:
        self._session = session
        self.calls = calls
        session.listen(lambda: None)
        self._futures = [session.start(tool.name, to_send(arguments), timeout=timeout) for tool, arguments in calls]

    async def wait(self) -> tuple[str, ServerRequest] | None:
        """Wait for all results. Returns a request that the model has to answer before, and the name of its server.

        Raises:
            ServerFault: As :meth:`~rllm_gym.mcp.ToolSession.call`; the other calls are cancelled.
        """
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake(_: object = None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop of an earlier turn has ended
                loop.call_soon_threadsafe(changed.set)

        self._session.listen(wake)
        for future in self._futures:
            future.add_done_callback(wake)
        try:
            while True:
                changed.clear()
                for future in self._futures:
                    if future.cancelled():  # the pool was closed
                        raise asyncio.CancelledError
                    if future.done():
                        future.result()
                if all(future.done() for future in self._futures):
                    self._session.listen(None)
                    return None
                if requests := self._session.requests:
                    return requests[0]
                await changed.wait()
        except BaseException:
            self._session.listen(None)
            for future in self._futures:
                future.cancel()
            raise

    async def end(self) -> None:
        """Decline what waits, and all that is asked from now on, and wait for the results."""
        self._session.listen(None)
        await asyncio.wait([asyncio.wrap_future(future) for future in self._futures])

    def results(self) -> list[ToolResult]:
        """Return the results, in order."""
        return [future.result() for future in self._futures]
