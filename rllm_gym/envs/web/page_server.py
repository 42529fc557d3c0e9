"""The server of a row: a program on a port of this machine, started for an episode and ended with it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import random
import shutil
import socket
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from rllm_gym.core import EnvironmentFault
from rllm_gym.core.background_loop import BackgroundLoop
from rllm_gym.core.per_process import PerProcess
from rllm_gym.envs.workspace_files import write_workspace
from rllm_gym.runtime.program_launcher import ProgramLauncher, server_spec
from rllm_gym.runtime.scratch import scratch_root
from rllm_gym.runtime.supervised_program import ProgramEnd, ProgramNotStarted, SupervisedProgram

PORTS = range(20_000, 30_000)
"""Ports of servers: below those that the system gives to outgoing connections."""

_OUTPUT_BYTES = 4_000
_PROBE_S = 0.05
_PROBE_BYTES = 64 * 1024
_REST_S = 1.0
"""Seconds for the rest of an answer whose status has arrived."""


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """How a row's server is started.

    Attributes:
        command, args: The program and its arguments. ``{port}``, ``{workspace}``, ``{seed}`` and ``{python}`` are
            replaced, as in ``env`` and ``cwd``.
        env: Environment variables.
        cwd: Working directory.
        timeout: Seconds until it must answer a request.
        reuse: Whether it serves the next episodes of the same environment as well.
    """

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "{workspace}"
    timeout: float = 60.0
    reuse: bool = False


class PageServer:
    """A running server with its own directory and port. Open it with :func:`start_server`, and close it.

    An unclosed server is ended when it is garbage-collected, and with this process, even if that is killed.

    Attributes:
        workspace: Its directory.
        port: Its port on 127.0.0.1.
        url: The start page at this port.
    """

    def __init__(self, programs: _Programs, program: _ServerProgram) -> None:
        self._programs, self._program = programs, program
        self.workspace, self.port, self.url = program.workspace, program.port, program.url
        self._finalizer = weakref.finalize(self, _end_unclosed, programs, program)
        self._finalizer.atexit = False  # then all programs are ended

    @property
    def is_of_this_process(self) -> bool:
        """Whether it was started by this process, and not by one of which this process is a fork."""
        return self._programs.pid == os.getpid()

    @property
    def has_ended(self) -> bool:
        """Whether the program has ended."""
        return self._program.end is not None and self._program.end.done()

    async def how_it_ended(self) -> str:
        """Return how the program has ended, with the end of its output."""
        return await self._programs.loop.arun(self._program.how_it_ended())

    async def close(self) -> None:
        """End the program with all its descendants, and remove its directory. Safe to call twice.

        If the caller is cancelled, it is ended all the same.
        """
        if self._finalizer.detach() is not None and self.is_of_this_process:
            await asyncio.shield(asyncio.wrap_future(self._programs.loop.start(self._program.close())))


class _ServerProgram:
    """The program of a server. Used on the loop of the programs."""

    workspace: Path
    port: int
    url: str

    def __init__(
        self, programs: _Programs, command: ServerCommand, url: str, seed: int, files: Mapping[str, bytes]
    ) -> None:
        self._programs, self._command, self._start_url = programs, command, url
        self._seed, self._files = seed, files
        self._folders: list[str] = []
        self._port_lock: socket.socket | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._program: SupervisedProgram | None = None
        self.end: asyncio.Task[ProgramEnd] | None = None

    async def start(self) -> None:
        """Start the program, and wait until it answers a request for its start page. Call :meth:`close` afterwards,
        also if this fails.

        Raises:
            EnvironmentFault: It cannot be started, has ended, or does not answer; kind ``"server_start"``.
        """
        async with self._programs.slots:
            # Not cancelled with its caller: what it creates could not be removed.
            self._preparing = asyncio.create_task(asyncio.to_thread(self._prepare))
            await asyncio.shield(self._preparing)
            await self._start()

    def _prepare(self) -> None:
        """Create the directories, write the files, and take a port."""
        for name in ("workspace-", "home-"):
            self._folders.append(tempfile.mkdtemp(prefix=name, dir=self._programs.folder))
        folder, home = self._folders
        self.workspace = Path(folder)
        write_workspace(self.workspace, self._files)
        self._port_lock, self.port = _take_port()
        self.url = urlsplit(self._start_url)._replace(netloc=f"127.0.0.1:{self.port}").geturl()
        values = {"port": str(self.port), "workspace": folder, "seed": str(self._seed)}
        command = self._command
        spec = server_spec((command.command, *command.args), command.env, command.cwd, home=home, values=values)
        self._program = SupervisedProgram(
            self._programs.launcher, spec, output_bytes=_OUTPUT_BYTES, error_bytes=_OUTPUT_BYTES
        )

    async def _start(self) -> None:
        assert self._program is not None
        status = "none"
        try:
            async with asyncio.timeout(self._command.timeout):
                await self._program.start()
                self.end = asyncio.create_task(self._program.wait())
                while not (status := await self._answer()).startswith(("2", "3", "4")):
                    done, _ = await asyncio.wait({self.end}, timeout=_PROBE_S)
                    if done:
                        words = "ended before it answered (it must run in the foreground)"
                        raise self._fault(f"{words}: {await self.how_it_ended()}")
        except ProgramNotStarted as error:
            raise self._fault(f"cannot be started: {error}") from error
        except TimeoutError:
            words = f"did not answer a request for {self.url} within timeout={self._command.timeout:g} s"
            words += f" (status of the last answer: {status}): it must listen on 127.0.0.1, and on this port"
            raise self._fault(words + _shown(self._program.output_so_far())) from None

    async def how_it_ended(self) -> str:
        assert self.end is not None
        end = await asyncio.shield(self.end)
        if end.status is None:
            words = "its supervisor was killed"
        else:
            words = f"killed by signal {-end.status}" if end.status < 0 else f"exit status {end.status}"
        return words + _shown(end)

    async def end_all(self) -> None:
        """End the program with all its descendants."""
        if self._preparing is not None:
            await asyncio.wait({self._preparing})
        if self.end is not None:
            self.end.cancel()
        if self._program is not None:
            await self._program.close()

    async def close(self) -> None:
        """End the program, free its port, and remove its directories."""
        await self.end_all()
        if self._port_lock is not None:
            self._port_lock.close()
        for folder in self._folders:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        self._programs.running.discard(self)

    async def _answer(self) -> str:
        """Return the status of the answer to a request for the start page; ``"none"`` if there is no answer."""
        writer = None
        split = urlsplit(self._start_url)
        target = split._replace(scheme="", netloc="", fragment="").geturl() or "/"
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(f"GET {target} HTTP/1.1\r\nHost: {split.netloc}\r\nConnection: close\r\n\r\n".encode())
            version, status, *_ = (await reader.readline()).decode("latin-1").split(" ", 2)
            with contextlib.suppress(TimeoutError):  # of a server that keeps the connection open
                async with asyncio.timeout(_REST_S):  # a server whose client is gone may log an error
                    while await reader.read(_PROBE_BYTES):
                        pass
            return status if version.startswith("HTTP/") else "none"
        except (OSError, ValueError):
            return "none"
        finally:
            if writer is not None:
                writer.close()

    def _fault(self, words: str) -> EnvironmentFault:
        return EnvironmentFault(f"the server {self._command.command!r} {words}", kind="server_start")


def _shown(end: ProgramEnd) -> str:
    """Return the end of a program's output, for the end of a message."""
    output = end.errors.strip() or end.output.strip()
    return f"; its output ends with:\n{output}" if output else ""


async def start_server(command: ServerCommand, url: str, seed: int, files: Mapping[str, bytes]) -> PageServer:
    """Start a server in a new directory, and wait until it answers.

    Args:
        command: The program.
        url: A request for this URL must be answered with a status below 500.
        seed: For ``{seed}``.
        files: Content of the directory, by relative path.

    Raises:
        EnvironmentFault: It does not start; kind ``"server_start"``.
        TaskError: The files cannot be written.
    """
    programs = _shared_programs()
    program = _ServerProgram(programs, command, url, seed, files)
    programs.running.add(program)
    try:
        await programs.loop.arun(program.start())
    except BaseException:
        # Also if it had just started when the caller was cancelled. Not awaited: ending it must not delay the caller.
        programs.loop.start(program.close())
        raise
    return PageServer(programs, program)


def _end_unclosed(programs: _Programs, program: _ServerProgram) -> None:
    if programs.pid == os.getpid():
        programs.loop.start(program.close())


def _take_port() -> tuple[socket.socket, int]:
    """Return a free port, and a lock that keeps every process on this machine from choosing it too.

    Raises:
        EnvironmentFault: None is free.
    """
    first = random.SystemRandom().randrange(len(PORTS))
    for port in (*PORTS[first:], *PORTS[:first]):
        lock = socket.socket(socket.AF_UNIX)
        try:
            # An abstract name belongs to one socket of this network namespace, and ends with its process.
            lock.bind(f"\0rllm-gym-port-{port}")
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
            return lock, port
        except OSError:
            lock.close()
    raise EnvironmentFault(f"no port from {PORTS[0]} to {PORTS[-1]} is free", kind="server_start")


# The programs of this process


class _Programs:
    """The event loop, launcher and directory of all servers of this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.folder = tempfile.mkdtemp(prefix="web-servers-", dir=scratch_root())
        self.launcher = ProgramLauncher(self.folder)  # ends its programs with this process, and removes the folder
        self.loop = BackgroundLoop("rllm-gym web servers")
        # Sixty-four concurrent starts would all be late.
        self.slots = asyncio.Semaphore(max(4, 2 * (os.cpu_count() or 1)))
        self.running: set[_ServerProgram] = set()
        atexit.register(self.close)

    def close(self) -> None:
        if self.pid == os.getpid():
            self.loop.run(self._end_all())  # the directories are the launcher's: no thread can be started any more
            self.loop.close()
            self.launcher.close()

    async def _end_all(self) -> None:
        await asyncio.gather(*(program.end_all() for program in self.running), return_exceptions=True)


_shared_programs = PerProcess(_Programs)
