"""The Docker backend: sessions and programs in containers without network, driven through the ``docker`` command.

The first process of a container is the same trusted process as in the other tiers, connected through its standard
streams. The image needs a ``python3`` (3.10 or later) and nothing else. Data leaves a container only in the bounded
frames of that process. When the trainer ends, for any reason, the stream closes and the container ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from rllm_gym.core import RllmGymError
from rllm_gym.core.background_loop import BackgroundLoop
from rllm_gym.sandbox.errors import SandboxFault, SandboxUnavailable
from rllm_gym.sandbox.program import Ended, Program, ProgramResult
from rllm_gym.sandbox.running_program import RunningProgram, resolve_future
from rllm_gym.sandbox.scheduler import ProgramJob, pool_closed
from rllm_gym.sandbox.session import SandboxSession, SessionLimits
from rllm_gym.sandbox.session_process import MODULES, SessionChannel
from rllm_gym.sandbox.tier import Tier
from rllm_gym.sandbox.tree import TreeTooLarge
from rllm_gym.sandbox.worker import LOAD_MODULES, sources, stderr_tail

IMAGE = "python:3.11-slim"
"""The default image of programs, and of workspaces that start as a directory of this machine."""

PYTHON = "python3"
"""The command for the image's Python."""

LABEL = "rllm-gym.owner"
"""The label of every container. Its value is the boot id, process id and start time of the process that owns the
container."""

_WORKDIR = "/workspace"
_ASK_S, _PULL_S, _START_S, _END_S = 60.0, 1800.0, 300.0, 20.0
_ENGINE_PROCESSES = 8
_ENGINE_MB = 64
_BOOT = f"""
import json, os, struct, sys, types
def exactly(size):
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            sys.exit(0)
        data += piece
    return data
settings = json.loads(exactly(struct.unpack(">I", exactly(4))[0]))
reading, writing = os.dup(0), os.dup(1)
null = os.open("/dev/null", os.O_RDWR)
os.dup2(null, 0)
os.dup2(null, 1)
{LOAD_MODULES}
sys.modules[package + ".session"].main(reading, writing, -1, settings)
"""


def ask(*arguments: str, timeout: float = _ASK_S) -> str:
    """Return what ``docker ARGUMENTS`` prints.

    Raises:
        SandboxUnavailable: There is no client, no engine answers, or the engine refuses; the message says which.
    """
    try:
        ended = subprocess.run(
            ["docker", *arguments], capture_output=True, text=True, errors="replace", timeout=timeout,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError:
        raise SandboxUnavailable(
            "sandbox='docker' needs the 'docker' command and an engine, and 'docker' was not found: install Docker, "
            "or use sandbox='auto'"
        ) from None
    except subprocess.TimeoutExpired:
        raise SandboxUnavailable(
            f"'docker {arguments[0]}' did not answer within {timeout:.0f} s: check the engine with 'docker info'"
        ) from None
    if ended.returncode != 0:
        message = " ".join(ended.stderr.split()) or f"exit code {ended.returncode}"
        if "connect to the Docker daemon" in message or "Is the docker daemon running" in message:
            raise SandboxUnavailable(f"the docker client is installed, but no engine answers: {message}")
        raise SandboxUnavailable(f"'docker {arguments[0]}' failed: {message}")
    return ended.stdout


def require_engine() -> str:
    """Return the version of the engine that answers.

    Raises:
        SandboxUnavailable: No engine answers.
    """
    return ask("version", "--format", "{{.Server.Version}}").strip()


def require_image(image: str) -> None:
    """Pull an image if the engine does not have it.

    Raises:
        SandboxUnavailable: The image cannot be pulled.
    """
    try:
        ask("image", "inspect", "--format", "{{.Id}}", image)
    except SandboxUnavailable as error:
        if "No such" not in str(error):
            raise
        ask("pull", "--quiet", image, timeout=_PULL_S)


# Ownership of containers


def _start_of(pid: int) -> str:
    """Return the start time of a process in ticks since boot; ``""`` if there is no such process."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return line[line.rindex(")") + 2 :].split()[19]


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def owner() -> str:
    """Return the identity of this process as it is written in :data:`LABEL`."""
    return f"{_boot()}:{os.getpid()}:{_start_of(os.getpid())}"


def orphans(listing: str) -> list[str]:
    """Return the containers in a listing of ``ID OWNER`` lines whose owner was a process of this boot and has ended."""
    found = []
    for line in listing.splitlines():
        identity, _, owner_id = line.partition(" ")
        boot, _, process = owner_id.partition(":")
        pid, _, start = process.partition(":")
        if boot == _boot() and pid.isdigit() and _start_of(int(pid)) != start:
            found.append(identity)
    return found


def remove_orphans() -> None:
    """Remove the containers of trainers that were killed together with their docker client.

    Raises:
        SandboxUnavailable: No engine answers.
    """
    shown = ["--format", f'{{{{.ID}}}} {{{{.Label "{LABEL}"}}}}']
    if left := orphans(ask("ps", "--all", "--no-trunc", "--filter", f"label={LABEL}", *shown)):
        ask("rm", "--force", *left)


# Sessions


def command_line(name: str, image: str, limits: SessionLimits, workdir: str | None) -> list[str]:
    """Return the command that starts the container of a session and stays attached to it.

    Args:
        name: Name of the container.
        image: Image of the container.
        limits: Resource limits. The engine caps their total; inside, each command is monitored as in the other tiers.
        workdir: Directory of the image that is the workspace. ``None``: an empty one with a size limit.
    """
    memory = limits.memory_mb + _ENGINE_MB
    arguments = ["docker", "run", "--interactive", "--rm", "--name", name, "--label", f"{LABEL}={owner()}"]
    arguments += ["--network", "none", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    arguments += ["--pids-limit", str(limits.processes + _ENGINE_PROCESSES), "--ulimit", "core=0"]
    arguments += ["--log-driver", "none", "--pull", "never", "--workdir", "/", "--env", "PYTHONUTF8=1"]
    if workdir is None:
        # Files there are in memory, which the engine counts.
        memory += limits.workspace_mb
        options = f"rw,exec,nosuid,nodev,size={limits.workspace_mb}m,nr_inodes={limits.workspace_files}"
        arguments += ["--tmpfs", f"{_WORKDIR}:{options},mode=1777"]
    arguments += ["--memory", f"{memory}m", "--memory-swap", f"{memory}m"]
    return [*arguments, "--entrypoint", PYTHON, image, "-S", "-B", "-c", _BOOT]


class Container:
    """The trusted process of one session, in its own container.

    Raises:
        SandboxFault: The container did not start.
    """

    tier = Tier.DOCKER

    def __init__(self, image: str, limits: SessionLimits, workdir: str | None) -> None:
        self.name = f"rllm-gym-{secrets.token_hex(8)}"
        self.workdir = workdir or _WORKDIR
        self.variables = {"HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "PAGER": "cat"}
        self._lock = threading.Lock()
        self._closed = False
        self._pid = os.getpid()
        self._stderr_fd = os.memfd_create("stderr", os.MFD_CLOEXEC)
        ours, theirs = socket.socketpair()
        self.channel = SessionChannel(ours)
        try:
            self._process = subprocess.Popen(
                command_line(self.name, image, limits, workdir),
                stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=self._stderr_fd, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            ours.close()
            os.close(self._stderr_fd)
            raise SandboxFault(f"'docker run' could not be started: {error}") from error
        finally:
            theirs.close()
        settings = json.dumps({"confinement": "container", "view": None, "folder": None,
                               "modules": sources(MODULES)}).encode()  # fmt: skip
        try:
            ours.settimeout(_START_S)
            ours.sendall(len(settings).to_bytes(4, "big") + settings)
            self.channel.receive(time.monotonic() + _START_S)
        except (OSError, EOFError, ValueError) as error:
            # The client prints why a container did not start only when it exits.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2)
            message = f"a container of {image!r} did not start ({PYTHON} must be in it): {error}{self.stderr_tail()}"
            self.close()
            raise SandboxFault(message) from error

    def stderr_tail(self) -> str:
        """Return the end of what the client wrote to standard error, for error messages."""
        return "" if self._closed else " ".join(stderr_tail(self._stderr_fd).split())

    def close(self) -> None:
        """Close the connection, which ends the container; remove the container by force if it does not end."""
        if os.getpid() != self._pid:
            return  # this is a fork of the owner, and the container belongs to the owner
        self.channel.hang_up()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(SandboxUnavailable):
                    ask("rm", "--force", self.name)
                self._process.kill()
                self._process.wait()
            self.channel.close()
            os.close(self._stderr_fd)


class Containers:
    """A factory of sessions in containers."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def open(
        self,
        base: Path | None,
        limits: SessionLimits,
        environment: Mapping[str, str],
        *,
        image: str | None = None,
        workdir: str | None = None,
    ) -> SandboxSession:
        """Open a session in a fresh container. Pulls the image if the engine does not have it.

        Args:
            base: A directory of this machine, which is copied into the container. ``None``: the workspace is the
                content of ``workdir`` in the image.
            limits: As in the other tiers, except that the size of an image's ``workdir`` is left to the engine.
            environment: Variables for its commands, in addition to those of the image.
            image: Image to use; :data:`IMAGE` by default.
            workdir: The path of the repository in the image. Without it, and without ``base``, the workspace is empty.

        Raises:
            SandboxUnavailable: No engine answers, or the image does not exist.
            SandboxFault: The container did not start.
            ValueError: Both ``base`` and ``workdir`` are given.
        """
        if base is not None and workdir is not None:
            raise ValueError(f"base={str(base)!r} and workdir={workdir!r}: give at most one of them")
        if base is not None and not os.path.isdir(base):
            raise NotADirectoryError(f"base={str(base)!r} is not a directory")
        image = image or IMAGE
        with self._lock:
            if image not in self._known:
                remove_orphans()
                require_image(image)
                self._known.add(image)
        container = Container(image, limits, workdir)
        try:
            return SandboxSession(container, base, limits, environment, {"adopt": workdir is not None})
        except BaseException:
            container.close()
            raise

    def close(self) -> None:
        """Do nothing: no spare containers are kept."""


# Programs


class ContainerScheduler:
    """The runner of a pool's programs, each in its own container; a ``Scheduler``.

    Args:
        containers: Opens the sessions.
        max_workers: Maximum number of programs that run concurrently.
        name: Name of the thread that serves callers.
    """

    def __init__(self, containers: Containers, max_workers: int, name: str) -> None:
        self.loop = BackgroundLoop(name)
        self._containers = containers
        self._threads = ThreadPoolExecutor(max_workers, thread_name_prefix="docker-program")
        self._sessions: dict[RunningProgram, SandboxSession] = {}
        self._futures: dict[RunningProgram, Future[None]] = {}
        self._lock = threading.Lock()
        self.closed = False

    def submit(self, job: ProgramJob) -> None:
        for run in job.runs:
            with self._lock:
                if self.closed:
                    resolve_future(run.outcome, pool_closed())
                else:
                    self._futures[run] = self._threads.submit(self._run, run)
        resolve_future(job.assigned, None)

    def drop(self, job: ProgramJob) -> None:
        for run in job.runs:
            with self._lock:
                future, session = self._futures.get(run), self._sessions.get(run)
            if future is not None:
                future.cancel()
            if session is not None:
                session.close_sync()

    def close(self) -> None:
        with self._lock:
            self.closed = True
            sessions = list(self._sessions.values())
        for session in sessions:
            session.close_sync()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for run in list(self._futures):
            resolve_future(run.outcome, pool_closed())
        with contextlib.suppress(TimeoutError):
            self.loop.close(_END_S)

    def _run(self, run: RunningProgram) -> None:
        try:
            limits = _session_limits(run.program)
            with self._containers.open(None, limits, {}) as session:
                with self._lock:
                    self._sessions[run] = session
                resolve_future(run.outcome, run_in(session, run.program))
        except (RllmGymError, ValueError) as error:
            resolve_future(run.outcome, error)
        except Exception as error:  # any error must reach the caller that waits for the outcome
            fault = pool_closed() if self.closed else SandboxFault(f"a program could not be run: {error!r}")
            resolve_future(run.outcome, fault)
        finally:
            with self._lock:
                self._sessions.pop(run, None)
                self._futures.pop(run, None)


def _session_limits(program: Program) -> SessionLimits:
    limits = program.limits
    # The outputs are files next to the scratch space until they have been read.
    spare_mb = 2 * (10 * limits.output_bytes >> 20) + 2
    return SessionLimits(
        limits.memory_mb, limits.processes, limits.scratch_mb + spare_mb, limits.scratch_files + 16, 1000, limits.cpu_s
    )


def run_in(session: SandboxSession, program: Program) -> ProgramResult:
    """Run a program in a session of its own.

    Raises:
        ValueError: The program has ``preload``, which a fresh container cannot provide.
        SandboxFault: The session failed, not the program.
    """
    if program.preload:
        raise ValueError(f"preload={program.preload!r} cannot be used with sandbox='docker': containers start fresh")
    limits = program.limits
    control = ".program"
    for path, data in program.files.items():
        session.write_sync(f"work/{path}", data)
    for module, text in program.library.items():
        package = any(other.startswith(module + ".") for other in program.library)
        path = module.replace(".", "/") + ("/__init__.py" if package else ".py")
        session.write_sync(f"{control}/library/{path}", text.encode("utf-8", "surrogatepass"))
    session.write_sync(f"{control}/main.py", program.source.encode("utf-8", "surrogatepass"))
    session.write_sync(f"{control}/in", program.stdin)
    at = f"{session.workdir}/{control}"
    seconds = max(1, round(limits.cpu_s))
    line = (
        f"mkdir -p work && cd work && ulimit -St {seconds} && ulimit -Ht {seconds + 1} && "
        f"PYTHONPATH={at}/library {PYTHON} {at}/main.py {shlex.join(program.args)} "
        f"< {at}/in > {at}/out 2> {at}/err; code=$?; times > {at}/times; exit $code"
    )
    done = session.exec_sync(line, limits.wall_s)
    out, out_bytes = _output(session, f"{control}/out", limits.output_bytes)
    err, err_bytes = _output(session, f"{control}/err", limits.output_bytes)
    cpu_s = _cpu_s(session, f"{control}/times")
    code, ended = done.exit_code, done.ended
    number = None
    if max(out_bytes, err_bytes) > 10 * limits.output_bytes:
        ended = Ended.OUTPUT
    elif code is not None and code > 128:
        ended, number = Ended.SIGNALLED, code - 128
        if code == 128 + signal.SIGXCPU or cpu_s >= seconds:
            ended, number = Ended.CPU, None
    return ProgramResult(
        ended, code if ended is Ended.EXITED else None, number, out, err, out_bytes, err_bytes,
        cpu_s, done.wall_s, Tier.DOCKER.value,
    )  # fmt: skip


def _output(session: SandboxSession, path: str, max_bytes: int) -> tuple[bytes, int]:
    """Return the beginning of an output file and its length. The program may have tampered with the file."""
    try:
        data = session.read_sync(path, 10 * max_bytes + 1)
    except TreeTooLarge:
        return session.exec_sync(f"head -c {min(max_bytes, 1000)} {path}", 10).output, 10 * max_bytes + 1
    except OSError:
        return b"", 0
    return data[:max_bytes], len(data)


def _cpu_s(session: SandboxSession, path: str) -> float:
    """Return the user and system seconds of the children, from the second line that ``times`` prints."""
    try:
        words = session.read_sync(path, 1000).decode(errors="replace").splitlines()[1].split()
        return sum(60 * int(word.split("m")[0]) + float(word.split("m")[1].rstrip("s")) for word in words)
    except (OSError, TreeTooLarge, ValueError, IndexError):
        return 0.0  # the program was ended before the line was written, or it changed the file
