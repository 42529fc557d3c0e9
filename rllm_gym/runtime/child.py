"""The code of a worker process: receive requests over a socket, carry them out and answer them one by one."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
from pathlib import Path

from rllm_gym.runtime.connection import FramedConnection
from rllm_gym.runtime.request_handler import (
    HELLO,
    OUT_OF_MEMORY,
    RequestHandler,
    decode_request,
    encode_failure,
    encode_result,
)

_PR_SET_PDEATHSIG = 1
# Address space in addition to the limited private memory: code of libraries, thread stacks, shared maps.
_SHARED_MB = 1024


def serve(sock: socket.socket, memory_mb: int | None, template_pid: int) -> None:
    """Serve until the other end is closed. Called in a new fork of the template; never returns to it."""
    os.setsid()
    die_with_parent(template_pid)
    # A Python handler, not SIG_IGN: programs started by the work get the default back on exec.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # forks would otherwise share one global generator's state
    if memory_mb is not None:
        cap_memory(memory_mb)
    connection = FramedConnection(sock, blocking=True)
    handler = RequestHandler()
    try:
        connection.send(HELLO + str(os.getpid()).encode(), None)
        while True:
            reply = answer(handler, connection.recv(None), capped=memory_mb is not None)
            connection.send(reply, None)
            if reply == OUT_OF_MEMORY:
                return
    except EOFError:
        return


def answer(handler: RequestHandler, data: bytes, *, capped: bool) -> bytes:
    """Carry out one encoded request; always return an encoded reply."""
    try:
        try:
            return encode_result(handler.handle(decode_request(data)))
        except BaseException as error:
            if isinstance(error, MemoryError) and capped:
                return OUT_OF_MEMORY
            return encode_failure(error)
    except MemoryError:
        return OUT_OF_MEMORY


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when the process that forked it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent_pid:
            os._exit(1)


def cap_memory(megabytes: int) -> None:
    """Limit this process to ``megabytes`` of private memory above its current use; more raises ``MemoryError``."""
    used = {"VmData": 0, "VmSize": 0}
    if sys.platform == "linux":
        for line in Path("/proc/self/status").read_text().splitlines():
            key, _, value = line.partition(":")
            if key in used:
                used[key] = int(value.split()[0]) * 1024
    allowed = megabytes * 1024 * 1024
    _lower(resource.RLIMIT_DATA, used["VmData"] + allowed)
    _lower(resource.RLIMIT_AS, used["VmSize"] + allowed + _SHARED_MB * 1024 * 1024)
    _lower(resource.RLIMIT_CORE, 0)


def _lower(kind: int, limit: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(kind, (limit, limit))
