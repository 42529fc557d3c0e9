"""Relays messages between the test side and the program side, and checks that both follow the protocol.

The content of the messages is not decoded here: only the test side decodes what the program sends, and that side is in
a sandbox too. This module counts and measures messages and requires that each comes from the side whose turn it is.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from rllm_gym.sandbox import Running

MAX_MESSAGES = 1_000_000
MAX_BYTES = 256 * 1024 * 1024
MAX_DEPTH = 400
"""Maximum nesting of calls between the two sides."""

_TOKEN_BYTES = 8
_MAX_VALUES = 4_000_000


class Violation(Exception):
    """The program side violated the protocol. The program is wrong, whatever its tests reported before."""


@dataclass
class Told:
    """What the test side reported to the trainer."""

    total: int = 0
    outcomes: list[tuple[str, bool, str]] = field(default_factory=list)
    error: str = ""
    row_error: str = ""
    broken: str = ""
    done: bool = False
    changing: tuple[int, ...] = ()
    """Requests of the tests during which the program changed their data."""
    ruined: bool = False
    """Whether something was changed before the chosen request."""
    believed: tuple[int, ...] = ()
    """Objects created by the tests for which the program's claim of equality with others was accepted."""
    unsupported: tuple[str, ...] = ()


class Relay:
    """Relays between two running programs until the test side is done or one side ends."""

    def __init__(self, tests: Running, code: Running) -> None:
        self._tests = tests
        self._code = code
        self._nonce = secrets.token_hex(16)
        self._token = b""
        self._asked: list[str] = []
        self._messages = 0
        self._bytes = 0
        self.told = Told()

    def run(self, test_config: dict[str, Any], code_config: dict[str, Any]) -> str:
        """Relay until the end, blocking. Returns the side that ended early, ``"tests"`` or ``"code"``, or ``""``.

        Raises:
            Violation: The program side violated the protocol.
        """
        self._tests.send_sync(json.dumps(test_config | {"nonce": self._nonce}).encode())
        self._code.send_sync(json.dumps(code_config).encode())
        turn = "tests"
        while True:
            frame = (self._tests if turn == "tests" else self._code).receive_sync()
            if frame is None:
                return turn
            self._count(frame)
            if turn == "code":
                self._from_code(frame)
                turn = "tests"
            elif frame[:1] == b"=":
                self._hear(frame)
                if self.told.done or self.told.error or self.told.row_error or self.told.broken:
                    return ""
            else:
                self._from_tests(frame)
                turn = "code"

    def _count(self, frame: bytes) -> None:
        self._messages += 1
        self._bytes += len(frame)
        if self._messages > MAX_MESSAGES or self._bytes > MAX_BYTES:
            raise Violation(
                f"the tests and the program exchanged more than {MAX_MESSAGES:,} messages or {MAX_BYTES >> 20} MiB"
            )

    def _from_tests(self, frame: bytes) -> None:
        self._turn("tests", frame[:1])
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._code.send_sync(self._token + frame)

    def _from_code(self, frame: bytes) -> None:
        if frame[:_TOKEN_BYTES] != self._token:
            raise Violation("the program answered what it was not asked")
        message = frame[_TOKEN_BYTES:]
        if message.count(b",") + message.count(b"[") > _MAX_VALUES:
            raise Violation(f"the program sent a message of more than {_MAX_VALUES:,} values")
        self._turn("code", message[:1])
        self._tests.send_sync(message)

    def _turn(self, side: str, kind: bytes) -> None:
        """Track the nesting: a request opens a level, and an answer closes the level that the other side opened."""
        if kind == b"?":
            self._asked.append(side)
            if len(self._asked) > MAX_DEPTH:
                raise Violation(f"the tests and the program call each other more than {MAX_DEPTH} deep")
        elif kind == b"!" and self._asked and self._asked[-1] != side:
            self._asked.pop()
        else:
            raise Violation("the program's side lost its place")

    def _hear(self, frame: bytes) -> None:
        """Handle a message of the test side, whose process also runs test code and is therefore not fully trusted."""
        told = self.told
        try:
            message = json.loads(frame[1:])
            if message["nonce"] != self._nonce:
                raise KeyError("nonce")
            kind = message["kind"]
            if kind == "tests":
                told.total = max(0, min(int(message["count"]), 100_000))
            elif kind == "outcome":
                if len(told.outcomes) < 100_000:
                    told.outcomes.append((str(message["name"]), message["passed"] is True, str(message["message"])))
            elif kind == "done":
                told.done, told.ruined = True, message["ruined"] is True
                told.changing = tuple(int(each) for each in message["changing"])
                told.believed = tuple(int(each) for each in message["believed"])
                told.unsupported = tuple(str(each) for each in message["unsupported"])
            elif kind == "error":
                told.error = str(message["text"]) or "the program did not load"
            elif kind == "row":
                told.row_error = str(message["text"])
            else:
                told.broken = str(message["text"]) or "the program's side broke the rules"
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Violation("the side of the tests lost its place") from error
