"""Programs, their limits and their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rllm_gym.argument_checks import check_type


@dataclass(frozen=True, slots=True)
class Limits:
    """The resource limits of one program, including everything it starts.

    Attributes:
        cpu_s: Seconds of CPU time of all processes together. This is the limit for the program's *work*: it does not
            depend on what else the machine is doing.
        wall_s: Seconds of wall-clock time. This limit ends a program that waits. Choose it well above ``cpu_s``, since
            ordinary programs take longer on a busy machine. Time in which the program was ready to run and the machine
            gave it no processor does not count, up to nine times this limit.
        memory_mb: Memory of all processes together, including shared memory and scratch files, above what a bare Python
            with ``preload`` holds. The limit is enforced by monitoring, so a program may exceed it slightly for a
            moment. A far too large allocation fails at once with ``MemoryError``, an ordinary exception.
        processes: Processes and threads alive at a time.
        scratch_mb: Total size of the scratch space.
        scratch_files: Files and directories in the scratch space.
        output_bytes: Maximum length of standard output, and of standard error. The rest is cut off; a program that
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
    """A Python program that runs as ``__main__`` in a fresh process. Its working directory is empty scratch space.

    Attributes:
        source: The source code, which may be hostile.
        stdin: Its standard input.
        args: ``sys.argv[1:]``.
        files: Files in the working directory, by relative path.
        library: Modules that the program may import besides those of the runtime, by name. They are compiled once per
            worker, so that long modules cost little. They run inside, with the program: they cannot keep secrets from
            it.
        preload: Packages that the worker has already imported (``("numpy",)``), so that importing them costs nothing.
        limits: Its resource limits.
    """

    source: str
    stdin: bytes = b""
    args: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    library: Mapping[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        check_type("source", self.source, str, "the text of a Python program")
        check_type("stdin", self.stdin, bytes, "bytes, such as b'1 2'")
        check_type("args", self.args, tuple, "a tuple of strings")
        check_type("files", self.files, Mapping, "a mapping from relative paths to bytes")
        check_type("library", self.library, Mapping, "a mapping from names of modules to their source code")
        check_type("preload", self.preload, tuple, "a tuple of names of packages")
        check_type("limits", self.limits, Limits, "a Limits, such as Limits(cpu_s=2)")


class Ended(StrEnum):
    """The reason why a program ended."""

    EXITED = "exited"  # by itself; see exit_code
    SIGNALLED = "signalled"  # by a signal it caused itself: segmentation fault, abort
    CPU = "cpu limit"
    WALL = "wall limit"
    MEMORY = "memory limit"
    PROCESSES = "processes limit"  # where the kernel does not refuse to create the process
    SCRATCH = "scratch limit"  # where the kernel does not refuse the write
    OUTPUT = "output limit"
    STOPPED = "stopped"  # by the caller


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The result of a program. It contains no verdict: an exit code of 0 is only the program's own claim.

    Attributes:
        ended: Why it ended.
        exit_code: Its exit code; ``None`` unless it exited by itself.
        signal: The signal that ended it; ``None`` otherwise.
        stdout: The beginning of its standard output, at most ``limits.output_bytes``.
        stderr: The beginning of its standard error, likewise.
        stdout_bytes: Total length of its standard output, including what was cut off.
        stderr_bytes: Total length of its standard error, likewise.
        cpu_s: CPU seconds of all its processes.
        wall_s: Wall-clock seconds.
        tier: The tier that isolated it.
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
