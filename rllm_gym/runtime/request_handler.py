"""Requests to a worker, how they are carried out, and their replies; the same in threads and processes."""

from __future__ import annotations

import json
import pickle
import traceback
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from rllm_gym.runtime.connection import MAX_FRAME
from rllm_gym.runtime.errors import MemoryExceeded, WorkerError

# Raising one of these in a coroutine or a future has another meaning.
_NOT_RAISED_AGAIN = (StopIteration, StopAsyncIteration)

_PLAIN = frozenset({str, int, type(None)})

OUT_OF_MEMORY = b"M"
HELLO = b"H"
RESULT = b"R"


@dataclass(slots=True)
class WorkRequest:
    """A request: ``run`` a function, ``make`` the object of an actor, ``call`` its method, or ``close`` it."""

    op: str
    target: Any = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of this work in error messages."""
        if isinstance(self.target, str):
            return self.target
        return getattr(self.target, "__qualname__", None) or type(self.target).__name__


class RequestHandler:
    """Carries out requests, and holds the object of an actor, if there is one."""

    def __init__(self) -> None:
        self._object: Any = None

    @property
    def has_object(self) -> bool:
        return self._object is not None

    def handle(self, request: WorkRequest) -> Any:
        if request.op == "call":
            member = getattr(self._object, request.target)
            return member(*request.args, **request.kwargs) if callable(member) else member
        if request.op == "run":
            return request.target(*request.args)
        if request.op == "make":
            self._object = request.target(*request.args)
            return None
        close = getattr(self._object, "close", None)
        self._object = None
        if callable(close):
            close()
        return None


def failure(error: BaseException) -> Exception:
    """Return the exception for the caller: the original one, or a :class:`WorkerError` that describes it."""
    if isinstance(error, Exception) and not isinstance(error, _NOT_RAISED_AGAIN):
        return error
    return WorkerError(f"the call ended with {type(error).__name__}: {error}")


# Between processes


def encode_request(request: WorkRequest) -> bytes:
    """Pickle a request.

    Raises:
        TypeError: Function or arguments cannot be pickled.
        ValueError: They are larger than a frame.
    """
    try:
        # cloudpickle also sends what the program's main module defines.
        data: bytes = cloudpickle.dumps((request.op, request.target, request.args, request.kwargs))
    except Exception as error:
        raise TypeError(
            f"{request.name!r} cannot be sent to a worker process ({type(error).__name__}: {error}); "
            "pass a function, class and arguments that can be pickled, or use a thread pool"
        ) from error
    if len(data) > MAX_FRAME:
        raise ValueError(
            f"{request.name!r} with its arguments has {len(data)} bytes when pickled; the limit is {MAX_FRAME}"
        )
    return data


def encode_call(method: str, args: tuple[Any, ...]) -> bytes:
    """As :func:`encode_request`, for the call of a method. Without instances, it costs a tenth."""
    if _PLAIN.issuperset(map(type, args)):
        data = pickle.dumps(("call", method, args, {}))
        if len(data) <= MAX_FRAME:
            return data
    return encode_request(WorkRequest("call", method, args))


def decode_request(data: bytes) -> WorkRequest:
    op, target, args, kwargs = pickle.loads(data)  # noqa: S301 - from our own parent process
    return WorkRequest(op, target, args, kwargs)


def encode_result(value: Any) -> bytes:
    try:
        data = RESULT + _dumps(value)
    except MemoryError:
        raise
    except Exception as error:
        return encode_failure(
            WorkerError(f"the result, a {type(value).__name__}, cannot be pickled: {type(error).__name__}: {error}")
        )
    if len(data) > MAX_FRAME:
        return encode_failure(
            WorkerError(f"the result has {len(data)} bytes when pickled; the limit is {MAX_FRAME}: return less")
        )
    return data


def _dumps(value: Any) -> bytes:
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)  # four times as fast
    except MemoryError:
        raise
    except Exception:  # such as an instance of a class of the program's main module
        data: bytes = cloudpickle.dumps(value)
        return data


def encode_failure(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(error, limit=-20))[-20_000:]
    shown = failure(error)
    try:
        data: bytes = b"E" + cloudpickle.dumps((shown, text))
        pickle.loads(data[1:])  # noqa: S301 - our own bytes: some exceptions pickle and then cannot be built again
    except MemoryError:
        raise
    except Exception:
        data = b"U" + json.dumps([type(error).__name__, str(error)[:20_000], text]).encode()
    return data


def decode_reply(data: bytes, memory_mb: int | None, name: str) -> Any:
    """Return the result in a reply.

    Raises:
        Exception: Raised by the work, with the remote traceback as a note.
        MemoryExceeded: The work exceeded the memory limit.
        WorkerError: The work's result or exception cannot be pickled.
    """
    kind, body = data[:1], memoryview(data)[1:]
    if kind == OUT_OF_MEMORY:
        raise MemoryExceeded(
            f"{name!r} exceeded the worker's memory limit of {memory_mb} MB and was terminated; raise memory_mb"
        )
    if kind == b"U":
        type_name, message, text = json.loads(bytes(body))
        raise WorkerError(f"the call raised {type_name}, which cannot be sent between processes: {message}\n\n{text}")
    try:
        value = pickle.loads(body)  # noqa: S301 - from our own worker process
    except Exception as error:
        raise WorkerError(f"the reply of {name!r} cannot be unpickled here: {type(error).__name__}: {error}") from error
    if kind == RESULT:
        return value
    raised, text = value
    raised.add_note(f"raised in a worker process:\n{text}")
    raise raised
