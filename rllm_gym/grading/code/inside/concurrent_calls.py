"""Calls of several threads of the test that are running in the program at a time, and may wait for each other.

Each thread of the test has a thread of the program. A call that does not end soon is answered with ``"pending"``, so
that another thread of the test can make the call that it waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queue import SimpleQueue

NESTED = "rllm_nested"
"""Attribute of a thread that makes requests on behalf of one that waits for it."""
_WAIT_S = 0.02
"""How long a call may take before other threads have their turn, in seconds."""


class ConcurrentCall:
    """A call that is running or has ended."""

    def __init__(self, function: Callable[[], tuple[str, Any]]) -> None:
        import threading

        self._function = function
        self._ended = threading.Event()
        self._outcome: tuple[str, Any] = ("", None)

    def run(self) -> None:
        self._outcome = self._function()
        self._ended.set()

    def outcome(self) -> tuple[str, Any] | None:
        """Return the answer; ``None`` if there is none yet after a short time."""
        return self._outcome if self._ended.wait(_WAIT_S) else None


class ConcurrentCalls:
    """The calls that have not been answered yet."""

    def __init__(self) -> None:
        self._threads: dict[int, SimpleQueue[ConcurrentCall]] = {}
        self._calls: dict[int, ConcurrentCall] = {}

    def begin(self, thread: int, function: Callable[[], tuple[str, Any]]) -> tuple[str, Any]:
        """Start a call of a thread of the test, and return its answer, or that it is pending."""
        from queue import SimpleQueue

        calls = self._threads.get(thread)
        if calls is None:
            calls = self._threads[thread] = SimpleQueue()
            import threading

            threading.Thread(target=self._serve, args=(calls,), daemon=True).start()
        self._calls[thread] = call = ConcurrentCall(function)
        calls.put(call)
        return self.resume(thread)

    def resume(self, thread: int) -> tuple[str, Any]:
        """Return the answer to the call of a thread, or that it is still pending."""
        outcome = self._calls[thread].outcome()
        if outcome is None:
            return "pending", None
        del self._calls[thread]
        return outcome

    @staticmethod
    def _serve(calls: SimpleQueue[ConcurrentCall]) -> None:
        while True:
            calls.get().run()
