"""The trainer's side of one warm worker: starts it, sends it programs, and validates everything it answers."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import selectors
import socket
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

from rllm_gym.sandbox import uids
from rllm_gym.sandbox.bubblewrap import DEVICES, EMPTY, READABLE, SCRATCH, BubblewrapCommand, environment
from rllm_gym.sandbox.errors import SandboxFault, SandboxUnavailable
from rllm_gym.sandbox.inside.frames import LENGTHS, frame_start
from rllm_gym.sandbox.inside.landlock_worker import open_to_others, remove
from rllm_gym.sandbox.program import Ended, Program, ProgramResult
from rllm_gym.sandbox.running_program import RunningProgram, end
from rllm_gym.sandbox.runtime import Runtime
from rllm_gym.sandbox.tier import Tier
from rllm_gym.sandbox.watching import watch

_MAX_HEADER = 1 << 16
_CHUNK = 1 << 18
_START_S = 120.0
_SLACK_S = 60.0
"""Seconds after its program's deadline within which a worker has to answer. After that it counts as hung."""

_KNOWN_MODULES = 64
"""Maximum number of library modules that a worker keeps compiled. Beyond that it discards them all."""

_PAGE = os.sysconf("SC_PAGE_SIZE")
_LONGEST_NAME = 85
"""Maximum characters of a name in any file system: 255 bytes."""

_CONFINEMENT = {Tier.NAMESPACES: "namespaces", Tier.LANDLOCK: "landlock", Tier.UNSAFE: "none"}
_MODULES = ("syscalls", "processes", "seccomp", "main_module", "program", "frames", "worker")
_VIEW_MODULES = ("syscalls", "mounts", "private_files")
_LOWER_MODULES = (*_MODULES[:3], "landlock", "named_memory", "landlock_worker", *_MODULES[3:])
LOAD_MODULES = """
package = "rllm_gym.sandbox.inside"
for name in ("rllm_gym", "rllm_gym.sandbox", package):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
for name, text in settings.pop("modules"):
    module = sys.modules[package + "." + name] = types.ModuleType(package + "." + name)
    setattr(sys.modules[package], name, module)
    exec(compile(text, "<" + name + ">", "exec"), module.__dict__)
"""
"""The part of a process's first program that loads the modules in its settings; needs ``sys`` and ``types``."""

_BOOT = f"""
import json, sys, types
control, owner, sources = map(int, sys.argv[1:4])
with open(sources, "rb") as file:
    settings = json.load(file)
{LOAD_MODULES}
del module, text, file
program = sys.modules[package + ".program"]
try:
    sys.modules[package + ".worker"].main(control, owner, settings)
    request = None
except program.BecomeProgram as become:
    request, home = become.request, become.home
if request is not None:
    source, args, modules = request.source, request.args, request.modules
    request = None
    sys.modules[package + ".main_module"].run(source, args, modules, home)
"""

_ISOLATE = f"""
import json, os, sys, types
with open(int(sys.argv[1]), "rb") as file:
    settings = json.load(file)
{LOAD_MODULES}
sys.modules[package + ".private_files"].isolate(settings)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""The first program of a worker with namespaces. Python is then started again, from its own copy of the files: a fork
of the worker can lock the file ``/proc/self/exe``."""


def sources(modules: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the name and text of modules of ``inside``, to send to a worker."""
    folder = resources.files("rllm_gym.sandbox.inside")
    return [(name, (folder / f"{name}.py").read_text(encoding="utf-8")) for name in modules]


def stderr_tail(fd: int) -> str:
    """Return the end of what a process wrote to a file as its standard error, after a colon; ``""`` if nothing."""
    text = os.pread(fd, 2000, max(0, os.fstat(fd).st_size - 2000)).decode(errors="replace").strip()
    return f": {text}" if text else ""


def lower_tier_settings(runtime: Runtime, folder: str) -> dict[str, Any]:
    """Create the directories of a process without a mount namespace, and return their paths and the visible ones.

    Args:
        runtime: The files that its programs see.
        folder: A new directory of this process; ``scratch`` and ``packages`` are created in it.
    """
    os.chmod(folder, 0o711)  # the spare user can enter it but not list it
    scratch, site = f"{folder}/scratch", f"{folder}/packages"
    os.mkdir(scratch, 0o700)
    os.mkdir(site)
    for name, path in runtime.packages:
        os.symlink(path, f"{site}/{name}")
    outside = [path for _, path in (*runtime.files, *runtime.packages)]
    return {
        "scratch": scratch,
        "path": [site],
        "readable": [runtime.python, *outside, site, *READABLE],
        "without": [*EMPTY, *runtime.hidden],
        "devices": [f"/dev/{name}" for name in DEVICES],
    }


class WorkerProcess:
    """One worker process. All methods run in the thread of the scheduler's event loop, which watches its socket.

    Args:
        tier: How it isolates programs.
        runtime: The files that its programs see.
        preload: Packages to import first.
        freed: Called when a program has ended and the worker can take the next one.
        died: Called once when the worker has ended.

    Raises:
        OSError, SandboxUnavailable: It could not be started.
    """

    def __init__(
        self,
        tier: Tier,
        runtime: Runtime,
        preload: tuple[str, ...],
        *,
        freed: Callable[[WorkerProcess], None],
        died: Callable[[WorkerProcess], None],
    ) -> None:
        self.preload = preload
        self.tier = tier
        self._freed, self._died = freed, died
        self.running: RunningProgram | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self._buffer = bytearray()
        self._outbox: list[memoryview] = []
        self._library: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._fds: list[int] = []
        self._folder: str | None = None
        self._dead = False
        self._stderr_fd = os.memfd_create("stderr", os.MFD_CLOEXEC)
        self._uid = uids.acquire() if tier in (Tier.NAMESPACES, Tier.LANDLOCK) else None
        ours, theirs = socket.socketpair()
        self._sock = ours
        try:
            self._start(theirs, runtime)
        except BaseException:
            self._sock.close()
            self._release()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        watch(ours.fileno(), selectors.EVENT_READ, self._ready)
        self._set_deadline(_START_S)

    # Starting and ending

    def _start(self, theirs: socket.socket, runtime: Runtime) -> None:
        owner = os.pidfd_open(os.getpid())
        sources_fd = os.memfd_create("sources", os.MFD_CLOEXEC)
        outer = None
        try:
            settings: dict[str, Any] = {
                "confinement": _CONFINEMENT[self.tier],
                "uid": self._uid,
                "preload": list(self.preload),
                "path": [],
                "scratch": SCRATCH,
                "modules": sources(_MODULES if self.tier is Tier.NAMESPACES else _LOWER_MODULES),
            }
            fds = [theirs.fileno(), owner, sources_fd]
            command = [runtime.python, "-c", _BOOT, *map(str, fds)]
            variables: dict[str, str] = {}
            if self.tier is Tier.NAMESPACES:
                view_fd = os.memfd_create("view", os.MFD_CLOEXEC)
                first = [runtime.python, "-I", "-S", "-B", "-c", _ISOLATE, str(view_fd)]
                outer = BubblewrapCommand(runtime, [*first, *command])
                outer.fds.append(view_fd)
                command, fds = outer.command, [*fds, *outer.fds]
                _write_json(view_fd, outer.view | {"modules": sources(_VIEW_MODULES)})
            else:
                self._folder = tempfile.mkdtemp(prefix="rllm-gym-", dir=_temporary(self._uid))
                settings |= lower_tier_settings(runtime, self._folder)
                variables = environment(runtime) | {"PYTHONPATH": settings["path"][0]}
                command[1:1] = ["-S"]
            _write_json(sources_fd, settings)
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr_fd,
                pass_fds=fds,
                env=variables,
                start_new_session=True,
            )
        finally:
            os.close(owner)
            os.close(sources_fd)
            if outer is not None:
                outer.close()

    def hang_up(self) -> None:
        """Close the connection. The worker then ends by itself, with everything in it."""
        if not self._dead:
            self._dead = True
            if self._timer is not None:
                self._timer.cancel()
            watch(self._sock.fileno(), 0, self._ready)
            # A fork of this process may hold the socket too: closing it alone need not end the connection.
            with _ignore_os_errors():
                self._sock.shutdown(socket.SHUT_RDWR)
            self._sock.close()
            while self._fds:
                os.close(self._fds.pop())

    def wait(self, seconds: float) -> None:
        """Wait for the end of a worker after :meth:`hang_up`; kill it after that many seconds."""
        assert self.process is not None
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._release()

    def _release(self) -> None:
        if self._stderr_fd >= 0:
            os.close(self._stderr_fd)
            self._stderr_fd = -1
            uids.release(self._uid)
            if self._folder is not None:
                with contextlib.suppress(OSError):  # a killed worker left a hostile tree: remove what can be removed
                    remove(self._folder)

    def _fail(self, reason: str) -> None:
        """Handle a failure of the worker: report it to the waiting caller and remove the worker."""
        if self._dead:
            return
        self.hang_up()
        assert self.process is not None
        with _ignore_os_errors():
            self.process.wait(0.2)
        self.process.kill()
        words = stderr_tail(self._stderr_fd)
        code = self.process.wait()
        self._release()
        running, self.running = self.running, None
        if running is not None:
            end(running, SandboxFault(f"the sandbox's worker {reason} (exit code {code}){words}"))
        self._died(self)

    def _set_deadline(self, seconds: float) -> None:
        """Require an answer of the worker within that many seconds."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._fail, f"did not answer for {seconds:.0f} s")

    # Programs

    def take(self, running: RunningProgram) -> None:
        """Run a program."""
        program = running.program
        self.running = running
        forget = len(self._library) + len(program.library) > _KNOWN_MODULES
        if forget:
            self._library.clear()
        library, bodies = [], []
        for name, text in program.library.items():
            encoded = text.encode("utf-8", "surrogatepass")
            key = hashlib.sha256(name.encode() + b"\0" + encoded).hexdigest()
            new = key not in self._library
            if new:
                self._library.add(key)
                bodies.append(encoded)
            library.append((name, key, len(encoded) if new else -1))
        source = program.source.encode("utf-8", "surrogatepass")
        header = {
            "op": "run",
            "limits": asdict(program.limits),
            "args": list(program.args),
            "channel": running.channel is not None,
            "source": len(source),
            "stdin": len(program.stdin),
            "files": [(path, len(data)) for path, data in program.files.items()],
            "forget": forget,
            "library": library,
        }
        self._send(header, source, program.stdin, *program.files.values(), *bodies)
        if self._timer is None:  # the worker has already started
            self._set_deadline(_response_deadline(program))

    def stop(self, running: RunningProgram) -> None:
        """End the program, if the worker still runs it."""
        if self.running is running and not self._dead:
            self._send({"op": "stop"})
            self._set_deadline(_SLACK_S)

    def _send(self, header: dict[str, Any], *bodies: bytes) -> None:
        self._outbox.append(memoryview(frame_start(header, *bodies)))
        self._outbox += [memoryview(body) for body in bodies if body]
        self._flush()

    def _flush(self) -> None:
        try:
            while self._outbox:
                sent = self._sock.sendmsg(self._outbox[:16])
                while sent and sent >= len(self._outbox[0]):
                    sent -= len(self._outbox.pop(0))
                if sent:
                    self._outbox[0] = self._outbox[0][sent:]
        except BlockingIOError:
            pass
        except OSError:
            self._outbox.clear()  # it has ended: read its last messages, which may say why, and then the end
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox else 0)
        watch(self._sock.fileno(), events, self._ready)

    def _ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush()
        if not events & selectors.EVENT_READ or self._dead:
            return
        try:
            piece, fds, _, _ = socket.recv_fds(self._sock, _CHUNK, 1)
        except BlockingIOError:
            return
        except OSError:
            piece, fds = b"", []
        self._fds += fds
        self._buffer += piece
        try:
            for header, body in self._frames():
                self._on_frame(header, body)
        except (ValueError, KeyError, TypeError) as error:
            self._fail(f"sent an invalid message: {type(error).__name__}: {error}")
        if not piece:
            self._fail("ended")
        elif len(self._fds) > 1:
            self._fail("sent unexpected file descriptors")

    def _frames(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        while len(self._buffer) >= LENGTHS.size:
            header, body = LENGTHS.unpack_from(self._buffer)
            most = 2 * self.running.program.limits.output_bytes if self.running else 0
            if header > _MAX_HEADER or body > most:
                raise ValueError(f"a frame of {header} + {body} bytes is too long")
            start, end = LENGTHS.size + header, LENGTHS.size + header + body
            if len(self._buffer) < end:
                return
            message = json.loads(self._buffer[LENGTHS.size : start])
            data = bytes(memoryview(self._buffer)[start:end])
            del self._buffer[:end]
            yield message, data

    def _on_frame(self, header: dict[str, Any], body: bytes) -> None:
        running, op = self.running, header["op"]
        if op == "ready":
            if running is not None:
                self._set_deadline(_response_deadline(running.program))
            elif self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif running is None:
            raise ValueError(f"{op!r} without a program")
        elif op == "started" and running.channel is not None and self._fds:
            running.channel.connect(_socket_of(self._fds.pop()))
        elif op == "ended":
            self._finish(running, _result(header, body, running.program, self.tier))
        elif op == "broke":
            self._finish(running, SandboxFault(f"the sandbox could not run a program: {str(header['why'])[:2000]}"))
        elif op == "cannot preload":
            name, reason = str(header["name"]), str(header["why"])
            error = ValueError(f"preload={name!r} cannot be imported where programs run: {reason}")
            self.running = None
            end(running, error)
            self._fail("ended")
        else:
            raise ValueError(f"{op!r}")

    def _finish(self, running: RunningProgram, outcome: ProgramResult | SandboxFault) -> None:
        self.running = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        end(running, outcome)
        self._freed(self)


def _temporary(uid: int | None) -> str:
    """Return the directory for temporary files; for a spare user, one that such a user can reach."""
    if uid is None:
        return tempfile.gettempdir()
    for path in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"):
        if os.path.isdir(path) and open_to_others(os.path.join(path, "it")):
            return path
    raise SandboxUnavailable(
        f"the sandbox's user cannot reach {tempfile.gettempdir()!r}: set TMPDIR to an open directory"
    )


def check(program: Program) -> None:
    """Reject programs that no sandbox could run.

    Raises:
        ValueError: A file's path leads out of the working directory, the files do not fit, or a limit is not positive.
    """
    limits = program.limits
    for name, value in asdict(limits).items():
        if not value > 0:
            raise ValueError(f"Limits({name}={value!r}) must be above 0")
    directories: set[str] = set()
    for path in program.files:
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts or "\0" in path or max(map(len, parts)) > _LONGEST_NAME:
            raise ValueError(f"Program(files={{{path!r}: ...}}): paths are relative and stay in the working directory")
        directories.update("/".join(parts[:end]) for end in range(1, len(parts)))
    for path in program.files:
        if "/".join(PurePosixPath(path).parts) in directories:
            raise ValueError(f"Program(files={{{path!r}: ...}}): there are files below it; it cannot be one itself")
    pages = sum(
        -(-len(data) // _PAGE) for data in (program.source.encode("utf-8", "surrogatepass"), *program.files.values())
    )
    if pages * _PAGE > limits.scratch_mb << 20:
        raise ValueError(f"source and files take {pages * _PAGE} bytes, above Limits(scratch_mb={limits.scratch_mb})")
    if len(program.files) + len(directories) > limits.scratch_files:
        raise ValueError(f"{len(program.files)} files and their directories are above {limits.scratch_files=}")


def _result(header: dict[str, Any], body: bytes, program: Program, tier: Tier) -> ProgramResult:
    cut = int(header["stdout"])
    if not 0 <= cut <= len(body) or len(body) - cut != int(header["stderr"]):
        raise ValueError("the lengths of its output are inconsistent")
    ended = Ended(header["ended"])
    return ProgramResult(
        ended=ended,
        exit_code=int(header["exit_code"]) if ended is Ended.EXITED else None,
        signal=int(header["signal"]) if ended is Ended.SIGNALLED else None,
        stdout=body[:cut],
        stderr=body[cut:],
        stdout_bytes=int(header["stdout_bytes"]),
        stderr_bytes=int(header["stderr_bytes"]),
        cpu_s=float(header["cpu_s"]),
        wall_s=float(header["wall_s"]),
        tier=tier.value,
    )


def _response_deadline(program: Program) -> float:
    """Return the seconds after which a silent worker is hung. It waits longer for programs; see inside/worker.py."""
    return 10 * program.limits.wall_s + _SLACK_S


def _socket_of(fd: int) -> socket.socket:
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        os.close(fd)
        raise ValueError("the channel is not a socket")
    return socket.socket(fileno=fd)


def _write_json(fd: int, value: Any) -> None:
    os.write(fd, json.dumps(value).encode())
    os.lseek(fd, 0, os.SEEK_SET)


def _ignore_os_errors() -> contextlib.suppress:
    return contextlib.suppress(OSError, subprocess.TimeoutExpired)
