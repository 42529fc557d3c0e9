"""A program under a supervisor, for callers on an event loop: its output, its end, and how it is ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from dataclasses import dataclass, replace

from rllm_gym.runtime.program_launcher import LaunchSpec, ProgramLauncher, private_fds

_END_S = 15.0
"""Seconds until all processes of a program must be gone; its supervisor gives up earlier."""


class ProgramNotStarted(Exception):
    """The program cannot be started: no such file, for example."""


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How a program ended.

    Attributes:
        status: Exit status, or minus the signal that killed it; ``None`` if it is unknown.
        output: The end of its standard output.
        errors: The end of its standard error.
    """

    status: int | None
    output: str
    errors: str


class SupervisedProgram:
    """A program that runs until it ends by itself or :meth:`close` ends it, with all its descendants.

    Args:
        launcher: Starts it.
        spec: The command.
        output_bytes: How much of the end of its standard output is kept.
        error_bytes: The same of its standard error.
    """

    def __init__(self, launcher: ProgramLauncher, spec: LaunchSpec, *, output_bytes: int, error_bytes: int) -> None:
        self._launcher, self._spec = launcher, spec
        self._limits = output_bytes, error_bytes
        self._output, self._errors = bytearray(), bytearray()
        self._launching: asyncio.Task[None] | None = None
        self._reports: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._readers: list[asyncio.Task[None]] = []

    async def start(self, stdin: int | None = None) -> None:
        """Start the program. Call :meth:`close` afterwards, also if this fails.

        Args:
            stdin: Descriptor of its standard input, which the caller closes; by default it is empty.

        Raises:
            EnvironmentFault: No process can be started on this machine.
            ProgramNotStarted: The file cannot be executed.
        """
        # Not cancelled with its caller: the pipes are in use, and the program may have been started.
        self._launching = asyncio.create_task(
            self._launch(os.open(os.devnull, os.O_RDONLY) if stdin is None else os.dup(stdin))
        )
        await asyncio.shield(self._launching)
        assert self._reports is not None
        started = json.loads(await self._reports.readline() or b"{}")
        if "error" in started:
            raise ProgramNotStarted(f"{started['file']}: {started['error']}")

    async def wait(self) -> ProgramEnd:
        """Wait until it has ended and its output is read. Call it once."""
        assert self._reports is not None
        ended = json.loads(await self._reports.readline() or b"{}")
        await asyncio.gather(*self._readers)
        return replace(self.output_so_far(), status=ended.get("status"))

    def output_so_far(self) -> ProgramEnd:
        """Return the end of its output, without a status."""
        return ProgramEnd(None, _text(self._output), _text(self._errors))

    async def close(self) -> None:
        """End the program with all its descendants, and wait until they are gone. Safe to call twice."""
        if self._launching is not None:
            await asyncio.wait({self._launching})
        writer, self._writer = self._writer, None
        if writer is not None:
            assert self._reports is not None
            try:
                with contextlib.suppress(OSError, TimeoutError):
                    writer.write(b"x")
                    async with asyncio.timeout(_END_S):
                        while await self._reports.read(1 << 16):  # its end: all processes are gone
                            pass
            finally:  # its supervisor ends it also if this is cancelled
                writer.close()
                for task in self._readers:
                    task.cancel()

    async def _launch(self, stdin: int) -> None:
        pipes = [os.pipe(), os.pipe()]
        control: int | None = None
        private_fds.update(writing for _, writing in pipes)  # in a fork, they would keep the pipes open
        try:
            control = await asyncio.to_thread(self._launcher.start, self._spec, [stdin, *(end for _, end in pipes)])
        finally:
            os.close(stdin)
            for reading, writing in pipes:
                private_fds.discard(writing)
                os.close(writing)
                if control is None:
                    os.close(reading)
        self._reports, self._writer = await asyncio.open_connection(sock=socket.socket(fileno=control))
        self._readers = [
            asyncio.create_task(_keep_end(pipe, kept, most))
            for (pipe, _), kept, most in zip(pipes, (self._output, self._errors), self._limits, strict=True)
        ]


async def _keep_end(pipe: int, kept: bytearray, most: int) -> None:
    """Keep the end of what is written to a pipe."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb"))
    try:
        while piece := await reader.read(1 << 16):
            kept += piece
            del kept[:-most]
    finally:
        transport.close()


def _text(data: bytearray) -> str:
    return data.decode("utf-8", "replace")
