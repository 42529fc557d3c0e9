"""An HTTP endpoint on a real socket that sends the exact bytes a test gives it, however malformed."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Reply = bytes | Callable[[socket.socket, threading.Event], None]


@dataclass
class ReceivedRequest:
    """One request as it was received."""

    line: str
    headers: dict[str, str]
    body: Any
    connection: int


@dataclass
class HostileEndpoint:
    """Sends ``replies`` in turn and repeats the last one. A reply is bytes, or a function of the socket.

    Attributes:
        received: The requests so far.
        connections: Number of connections opened.
    """

    replies: list[Reply]
    received: list[ReceivedRequest] = field(default_factory=list)
    connections: int = 0

    def __enter__(self) -> HostileEndpoint:
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._sockets:
            with contextlib.suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in self._threads:
            thread.join(100)
            assert not thread.is_alive()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(connection)
            self.connections += 1
            self._start(self._serve, connection, self.connections)

    def _serve(self, connection: socket.socket, number: int) -> None:
        try:
            with connection, connection.makefile("rb") as stream:
                while self._one(connection, stream, number):
                    pass
        except (OSError, ValueError):
            return  # the client left, or the test is over

    def _one(self, connection: socket.socket, stream: Any, number: int) -> bool:
        line = stream.readline().decode("latin-1").strip()
        if not line:
            return False
        headers = {}
        while row := stream.readline().decode("latin-1").strip():
            name, _, value = row.partition(":")
            headers[name.lower()] = value.strip()
        data = stream.read(int(headers.get("content-length", 0)))
        with self._lock:
            self.received.append(ReceivedRequest(line, headers, json.loads(data) if data else None, number))
            reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if callable(reply):
            reply(connection, self._over)
            return False
        connection.sendall(reply)
        return b"connection: close" not in reply.lower()


def answer(content: Any, status: int = 200, **headers: str) -> bytes:
    """Return a complete HTTP reply; ``content`` is bytes, or becomes JSON."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def chat(text: str | None = "hello", finish: str = "stop", **message: Any) -> dict[str, Any]:
    """Return a chat completion."""
    return {
        "choices": [{"message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}],
        "usage": {"total_tokens": 7},
    }


def refusal(message: str, status: int = 400, code: str = "", **headers: str) -> bytes:
    """Return an error in OpenAI's format."""
    return answer({"error": {"message": message, "code": code or status}}, status, **headers)
