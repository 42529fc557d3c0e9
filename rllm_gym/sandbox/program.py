"""What is run, within which limits, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program, with everything it starts, may use.

    Attributes:
        cpu_s: Seconds of CPU time, all processes together. The limit a program's *work* is judged by: it does not
            depend on what else the machine is doing.
        wall_s: Seconds by the clock. A program that waits is ended by this one; choose it well above ``cpu_s``, since
            on a busy machine honest work takes longer. Time in which the program was ready to run and the machine
            gave it no processor does not count, up to nine times this limit.
        memory_mb: Memory of all processes together, shared memory and scratch files included, above what a bare
            Python with ``preload`` holds. Found by looking, so a program may be a little above it for a moment. An
            allocation that is far too large fails at once with ``MemoryError``, which is an ordinary exception.
        processes: Processes and threads alive at a time.
        scratch_mb: Size of the scratch space, all of it together.
        scratch_files: Files and directories in it.
        output_bytes: Longest standard output, and longest standard error. What is over is cut; a program that
            writes more than ten times this is ended.
    """

    cpu_s: float = 10.0
    wall_s: float = 30.0
    memory_mb: int = 512
    processes: int = 32
    scratch_mb: int = 64
    scratch_files: int = 4096
    output_bytes: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Program:
    """A Python program, run as ``__main__`` in a fresh process whose working directory is empty scratch space.

    Attributes:
        source: The program. Hostile.
        stdin: Its standard input.
        args: ``sys.argv[1:]``.
        files: Files in the working directory, by relative path.
        library: Modules the program may import besides the runtime's, by name; compiled once a worker, so that a
            long one costs little. They run inside, with the program: nothing in them is a secret from it.
        preload: Packages that the worker has imported already (``("numpy",)``), so that importing them is free.
        limits: What it may use.
    """

    source: str
    stdin: bytes = b""
    args: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    library: Mapping[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    limits: Limits = Limits()


class Ended(StrEnum):
    """Why a program ended."""

    EXITED = "exited"  # by itself; see exit_code
    SIGNALLED = "signalled"  # by a signal of its own making: segmentation fault, abort
    CPU = "cpu limit"
    WALL = "wall limit"
    MEMORY = "memory limit"
    PROCESSES = "processes limit"  # where the kernel does not refuse the next one by itself
    SCRATCH = "scratch limit"  # likewise
    OUTPUT = "output limit"
    STOPPED = "stopped"  # by the caller, who closed it


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a program. Nothing in it was judged: an exit code of 0 is what the program says of itself.

    Attributes:
        ended: Why it ended.
        exit_code: Its exit code; ``None`` unless it exited by itself.
        signal: The signal that ended it, ``None`` otherwise.
        stdout: The beginning of its standard output, at most ``limits.output_bytes``.
        stderr: Likewise.
        stdout_bytes: How much it wrote, also what was cut.
        stderr_bytes: Likewise.
        cpu_s: CPU seconds of all its processes.
        wall_s: Seconds by the clock.
        tier: What confined it.
    """

    ended: Ended
    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    stdout_bytes: int
    stderr_bytes: int
    cpu_s: float
    wall_s: float
    tier: str
