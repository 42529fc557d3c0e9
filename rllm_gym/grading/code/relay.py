"""Relays messages between the test side and the program side, and checks that both follow the protocol.

The content of the messages is not decoded here: only the test side decodes what the program sends, and that side is in
a sandbox too. This module counts and measures messages and requires that each comes from the side whose turn it is.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from rllm_gym.core import TaskError
from rllm_gym.sandbox import RunningProgram
from rllm_gym.sandbox.running_program import MAX_FRAME

MAX_MESSAGES = 1_000_000
MAX_BYTES = 256 * 1024 * 1024
MAX_DEPTH = 400
"""Maximum nesting of calls between the two sides."""

_TOKEN_BYTES = 8
_MAX_VALUES = 4_000_000


class ProtocolViolation(Exception):
    """The program side violated the protocol. The program is wrong, whatever its tests reported before."""


@dataclass
class TestReport:
    """What the test side reported to the trainer."""

    total: int = 0
    outcomes: list[tuple[str, bool, str]] = field(default_factory=list)
    failures: set[tuple[str, int]] = field(default_factory=set)
    """The tests that failed, and in which line of their code; 0: in none."""
    error: str = ""
    row_error: str = ""
    broken: str = ""
    done: bool = False
    changing_calls: tuple[tuple[int, str], ...] = ()
    """Requests of the tests during which the program changed their data, and how: ``"in_place"``, ``"returned"``,
    ``"levelled"``, ``"rearranged"``, ``"direct"``, ``"delayed"``, see :attr:`.GuardedPeer.changing_calls`."""
    requests: int = 0
    """How many requests the tests made, which are numbered from 0."""
    mutation_result: str = ""
    """What the data contained after the chosen request."""
    mutation_changed_inputs: bool = False
    """Whether something was changed before the chosen request."""
    believed_equalities: tuple[tuple[list[int], list[int]], ...] = ()
    """Comparisons in which the program's claim of equality was accepted: the requests on which only one of the two
    objects depends, and those on which both do."""
    suppressed: bool = False
    """Whether the program suppressed failed assertions of functions that it called, which may fail on purpose."""
    same_objects: tuple[tuple[list[int], list[int]], ...] = ()
    """For each object that the program returned from two functions, and that is compared with itself: the requests on
    which the arguments of the one depend, and those of the other."""
    measured: tuple[tuple[int, list[int], bool], ...] = ()
    """Operations between an object of the program and a plain value, which may be what the test expects: the number of
    the request, those on which the object depends, and whether most other values may have the same answer."""
    altered_equality: bool | None = None
    """The answer of such a comparison in a run in which one of these requests was altered; ``None``: not reached."""
    altered_refused: bool = False
    """Whether the program raised an exception for the altered arguments."""
    altered_to_same: bool = False
    """Whether both of its objects were made from the same arguments then."""
    extreme: tuple[str, ...] = ()
    """The kinds of numbers, ``"infinite"`` and ``"nan"``, that the program returned and the test does not mention."""
    orders: int = 0
    """How many comparisons by order there were of two objects of the program."""
    claims: dict[str, bool] = field(default_factory=dict)
    """By comparison of two objects of the program: whether it was always true."""
    probed_orders: tuple[bool, ...] = ()
    """For each order that was probed, whether it shows nothing but which object was made first."""
    unsupported: tuple[str, ...] = ()
    ungradable: str = ""
    messages: int = 0
    """How many messages were relayed."""


class Relay:
    """Relays between two running programs until the test side is done or one side ends."""

    def __init__(self, tests: RunningProgram, code: RunningProgram) -> None:
        self._tests = tests
        self._code = code
        self._nonce = secrets.token_hex(16)
        self._token = b""
        self._open_questions: list[str] = []
        self._bytes = 0
        self.report = TestReport()

    def run(self, test_config: dict[str, Any], code_config: dict[str, Any]) -> str:
        """Relay until the end, blocking. Returns the side that ended early, ``"tests"`` or ``"code"``, or ``""``.

        Raises:
            ProtocolViolation: The program side violated the protocol.
            TaskError: The tests are too large.
        """
        config = json.dumps(test_config | {"nonce": self._nonce}).encode()
        if len(config) > MAX_FRAME:
            raise TaskError(
                f"the tests of {test_config['entry']!r} have {len(config):,} bytes; the maximum is {MAX_FRAME:,}: "
                "remove some"
            )
        self._tests.send_sync(config)
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
                self._on_message(frame)
                if self.report.done or self.report.error or self.report.row_error or self.report.broken:
                    return ""
            else:
                self._from_tests(frame)
                turn = "code"

    def _count(self, frame: bytes) -> None:
        self.report.messages += 1
        self._bytes += len(frame)
        if self.report.messages > MAX_MESSAGES or self._bytes > MAX_BYTES:
            raise ProtocolViolation(
                f"the tests and the program exchanged more than {MAX_MESSAGES:,} messages or {MAX_BYTES >> 20} MiB"
            )

    def _from_tests(self, frame: bytes) -> None:
        self._check_turn("tests", frame[:1])
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._code.send_sync(self._token + frame)

    def _from_code(self, frame: bytes) -> None:
        if frame[:_TOKEN_BYTES] != self._token:
            raise ProtocolViolation("the program sent an answer without a request")
        message = frame[_TOKEN_BYTES:]
        if message.count(b",") + message.count(b"[") > _MAX_VALUES:
            raise ProtocolViolation(f"the program sent a message of more than {_MAX_VALUES:,} values")
        self._check_turn("code", message[:1])
        self._tests.send_sync(message)

    def _check_turn(self, side: str, kind: bytes) -> None:
        """Track the nesting: a request opens a level, and an answer closes the level that the other side opened."""
        if kind == b"?":
            self._open_questions.append(side)
            if len(self._open_questions) > MAX_DEPTH:
                raise ProtocolViolation(f"the tests and the program call each other more than {MAX_DEPTH} deep")
        elif kind == b"!" and self._open_questions and self._open_questions[-1] != side:
            self._open_questions.pop()
        else:
            raise ProtocolViolation("the program's side is out of sync")

    def _on_message(self, frame: bytes) -> None:
        """Handle a message of the test side, whose process also runs test code and is therefore not fully trusted."""
        reported = self.report
        try:
            message = json.loads(frame[1:])
            if message["nonce"] != self._nonce:
                raise KeyError("nonce")
            kind = message["kind"]
            if kind == "tests":
                reported.total = max(0, min(int(message["count"]), 100_000))
            elif kind == "outcome":
                if len(reported.outcomes) < 100_000:
                    reported.outcomes.append((str(message["name"]), message["passed"] is True, str(message["message"])))
                    if not reported.outcomes[-1][1]:
                        reported.failures.add((str(message["name"]), int(message["line"])))
            elif kind == "done":
                reported.done, reported.mutation_changed_inputs = True, message["mutation_changed_inputs"] is True
                reported.changing_calls = tuple((int(number), str(kind)) for number, kind in message["changing"])
                reported.requests = int(message["requests"])
                reported.mutation_result = str(message["mutation_result"])
                reported.believed_equalities, reported.same_objects = (
                    tuple(([int(item) for item in one], [int(item) for item in two]) for one, two in message[key])
                    for key in ("believed", "same_objects")
                )
                reported.measured = tuple(
                    (int(number), [int(item) for item in origins], lenient is True)
                    for number, origins, lenient in message["measured"]
                )
                reported.extreme = tuple(str(kind) for kind in message["extreme"])
                reported.orders = int(message["orders"])
                reported.claims = {str(name): answer is True for name, answer in dict(message["claims"]).items()}
                reported.probed_orders = tuple(item is True for item in message["probed_orders"])
                reported.suppressed = message["suppressed"] is True
                altered = message["altered_equality"]
                reported.altered_equality = altered if type(altered) is bool else None
                reported.altered_refused = message["altered_refused"] is True
                reported.altered_to_same = message["altered_to_same"] is True
                reported.unsupported = tuple(str(item) for item in message["unsupported"])
                reported.ungradable = str(message["ungradable"])
            elif kind == "error":
                reported.error = str(message["text"]) or "the program did not load"
                reported.ungradable = str(message["ungradable"])
            elif kind == "row":
                reported.row_error = str(message["text"])
            else:
                reported.broken = str(message["text"]) or "the program's side broke the rules"
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ProtocolViolation("the side of the tests is out of sync") from error
