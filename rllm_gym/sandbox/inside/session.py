"""The trusted process of a session: keeps the workspace, runs the agent's commands and answers its owner.

It is pid 1 of the session's pid namespace (in the lower tiers: a subreaper); the agent's processes can neither signal
nor inspect it. Sent in as source text: standard library only. The content of the workspace, the output of commands and
the names of processes are controlled by the agent: none of it is executed or trusted.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from rllm_gym.sandbox.inside import command_confinement, files, frames, processes, syscalls, workspace

WATCH_S = 0.1
"""Seconds between two checks of the resource use of the agent's processes."""

_BACKGROUND_WATCH_S = 0.5
_CHUNK = 1 << 16
_CHUNKS = 64
_BACKGROUND_CHUNKS = 16
"""Maximum chunks of background output read and discarded per check. A process that writes more has to wait."""

_DRAIN_S = 0.5
_LONG = 100_000
_RUN_SCRIPT = b'IFS= read -r -d "" -u %d REPLY; exec %d<&-; eval "$REPLY"'
"""The script with which the shell itself reads a command that is too long for one argument of the kernel."""

_SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2
_KILL_S = 60.0
"""Seconds in which the processes of a command must end. It is only used up on a machine with much other work."""


class FrameConnection:
    """Frames to and from the owner, over a socket or two pipes."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing

    def fileno(self) -> int:
        return self._reading

    def receive(self) -> tuple[dict[str, Any], bytes]:
        header, body = frames.LENGTHS.unpack(self._exactly(frames.LENGTHS.size))
        return json.loads(self._exactly(header)), self._exactly(body)

    def send(self, header: dict[str, Any], *bodies: bytes) -> None:
        try:
            for piece in (frames.frame_start(header, *bodies), *bodies):
                view = memoryview(piece)
                while view:
                    view = view[os.write(self._writing, view) :]
        except OSError as error:
            raise frames.OwnerGone from error

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                piece = os.read(self._reading, min(size - len(data), 1 << 20))
            except ConnectionError:
                piece = b""
            if not piece:
                raise frames.OwnerGone
            data += piece
        return bytes(data)


class CommandOutput:
    """The output of a command: its beginning, its end, and its total length."""

    def __init__(self, limit: int) -> None:
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._half = max(limit // 2, 1)
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        space = self._half - len(self._head)
        if space > 0:
            self._head += data[:space]
            data = data[space:]
        if data:
            self._tail.append(data)
            self._tail_bytes += len(data)
            while self._tail_bytes - len(self._tail[0]) >= self._half:
                self._tail_bytes -= len(self._tail.popleft())

    def text(self) -> bytes:
        tail = b"".join(self._tail)[-self._half :]
        left_out = self.total - len(self._head) - len(tail)
        if not left_out:
            return bytes(self._head) + tail
        return bytes(self._head) + b"\n[... %d bytes left out ...]\n" % left_out + tail


@dataclass(slots=True)
class RunningCommand:
    """One command of the agent. Its ``supervisor`` process adopts what the command starts and ends after all of it."""

    supervisor: int
    output_fd: int
    report_fd: int
    output: CommandOutput
    started: float = field(default_factory=time.monotonic)
    deadline: float = 0.0
    cpu_before: float | None = None
    """CPU seconds of the family when its shell ended. Later use is background work."""


class SessionServer:
    """Serves one owner until it closes the connection."""

    def __init__(self, connection: FrameConnection, owner: int, settings: dict[str, Any]) -> None:
        self._connection = connection
        self._owner = owner
        self._confinement: str = settings["confinement"]
        self._is_alone = self._confinement == "namespaces" and os.getpid() == 1
        """Whether all other processes of its pid namespace are the agent's."""
        self._agent = command_confinement.make_confinement(settings)
        self._limits: dict[str, Any] = {}
        self._allowed: dict[str, Any] = {}
        """The limits; where the kernel does not enforce those of the workspace, increased by what is already there."""
        self._environment: dict[bytes, bytes] = {}
        self._workspace: workspace.Workspace | None = None
        self._commands: dict[int, RunningCommand] = {}
        self._current: RunningCommand | None = None
        self._next_watch = 0.0
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)
        if owner >= 0:
            self._poll.register(owner, select.POLLIN)

    # Main loop

    def serve(self) -> None:
        while True:
            events = {fd for fd, _ in self._poll.poll(self._poll_timeout_ms())}
            if self._owner in events:
                raise frames.OwnerGone
            current = self._current
            if current is not None and current.output_fd in events:
                self._read_output(current, _CHUNKS)
            for command in list(self._commands.values()):
                if command.report_fd in events:
                    self._reported(command)
            self._check_limits()
            if self._connection.fileno() in events:
                self._answer()

    def _poll_timeout_ms(self) -> float | None:
        if self._current is not None:
            until = min(self._current.deadline, self._next_watch)
            return max(until - time.monotonic(), 0.0) * 1000 + 1
        return _BACKGROUND_WATCH_S * 1000 if self._commands else None

    def _answer(self) -> None:
        header, body = self._connection.receive()
        try:
            operation = getattr(self, f"_do_{header['do']}")
            reply = operation(header, body)
        except files.FileTooLarge as error:
            self._connection.send({"error": "too large", "message": str(error)})
        except OSError as error:
            name = error.filename
            shown = os.fsdecode(name) if isinstance(name, str | bytes) else header.get("path")
            number = error.errno or errno.EIO
            self._connection.send({"error": "os", "errno": number, "message": error.strerror, "path": shown})
        except frames.OwnerGone:
            raise
        except Exception as error:
            self._connection.send({"error": "broke", "message": f"{type(error).__name__}: {error}"})
        else:
            if reply is not None:
                self._connection.send(*reply)

    # Workspace

    @property
    def _opened_workspace(self) -> workspace.Workspace:
        if self._workspace is None:
            raise OSError(errno.ENOENT, "the workspace was not prepared")
        return self._workspace

    def _do_prepare(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any]]:
        self._limits = self._allowed = header["limits"]
        variables = header["environment"]
        if self._confinement == "namespaces":
            self._workspace = workspace.prepare(header)
            syscalls.drop_bounding_set()
        elif self._confinement == "container":
            self._workspace = workspace.take_over(header["workdir"], adopt=header["adopt"])
            variables = {**os.environ, **variables}
        else:
            if isinstance(self._agent, command_confinement.UnprivilegedConfinement):
                self._agent.make_directories(("workspace", "tmp", "shm"))
            self._workspace = workspace.Workspace(header["workdir"], workspace.open_directory(header["workdir"]))
        self._environment = {os.fsencode(key): os.fsencode(value) for key, value in variables.items()}
        syscalls.be_undumpable()
        return ({"overlay": self._workspace.upper is not None},)

    def _do_fill(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any]]:
        with self._agent.as_agent():
            self._opened_workspace.fill(header["entries"], body)
        return ({},)

    def _do_read(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        opened = self._opened_workspace
        return {}, files.read_file(opened.root, header["path"], opened.name, header["max_bytes"])

    def _do_write(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any]]:
        opened = self._opened_workspace
        with self._agent.as_agent():
            files.write_file(opened.root, header["path"], opened.name, body, header["executable"])
        return ({},)

    def _do_read_tree(self, header: dict[str, Any], body: bytes) -> tuple[Any, ...]:
        budget = files.ReadBudget(header["max_bytes"], header["max_files"])
        with self._held_still():
            found = list(files.walk(self._opened_workspace.root, budget, frozenset(header["leave_out"])))
        return _entries({}, found)

    def _do_changes(self, header: dict[str, Any], body: bytes) -> tuple[Any, ...]:
        budget = files.ReadBudget(header["max_bytes"], header["max_files"])
        with self._held_still():
            found = self._opened_workspace.difference(budget, frozenset(header["leave_out"]))
        return _entries({"removed": found.removed}, found.written)

    @contextlib.contextmanager
    def _held_still(self) -> Any:
        """Stop background processes for the duration of the block, so that a reading is consistent."""
        table = processes.processes()
        held = [pid for pid in self._agents(table) if table[pid].runs]
        for pid in held:
            processes.send(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in held:
                processes.send(pid, signal.SIGCONT)

    # Commands

    def _do_exec(self, header: dict[str, Any], body: bytes) -> None:
        if self._current is not None:
            raise OSError(errno.EBUSY, "a command is running")
        if self._commands:
            self._end_orphans()
            self._cap_use(processes.processes())
        if isinstance(self._agent, command_confinement.UnprivilegedConfinement):
            self._opened_workspace.renew(self._agent.as_agent())
            self._allowed = self._agent.remaining_limits(self._limits, self._opened_workspace)
        output_read, output_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        report_read, report_write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(output_write, True)
        supervisor = os.fork()
        if supervisor == 0:
            self._supervise_shell(body, output_write, report_write)
        os.close(output_write)
        os.close(report_write)
        command = RunningCommand(supervisor, output_read, report_read, CommandOutput(self._limits["output_bytes"]))
        command.deadline = command.started + header["timeout"]
        self._commands[supervisor] = command
        self._current = command
        self._next_watch = command.started + WATCH_S
        self._poll.register(output_read, select.POLLIN)
        self._poll.register(report_read, select.POLLIN)

    def _do_stop(self, header: dict[str, Any], body: bytes) -> None:
        """Stop the command, whose caller no longer waits, and answer as for a command that ended."""
        if self._current is not None:
            self._finish(self._current, "stopped", kill=True)

    def _supervise_shell(self, command: bytes, output: int, report: int) -> None:
        """In the fork: start the shell, adopt its orphans, report its end, and exit when the last of them has ended."""
        try:
            os.setsid()
            syscalls.be_subreaper()
            syscalls.be_undumpable()
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            shell = os.fork()
            if shell == 0:
                self._exec_shell(command, output, report)
            syscalls.close_all_but({report})
            while True:
                try:
                    pid, status = os.waitpid(-1, 0)
                except ChildProcessError:
                    break
                if pid == shell:
                    os.write(report, b"%d" % os.waitstatus_to_exitcode(status))
        finally:
            os._exit(0)

    def _exec_shell(self, command: bytes, output: int, report: int) -> None:
        try:
            os.setsid()
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            self._agent.become_user(self._limits, 1 + len(self._commands) + 1)
            try:
                os.chdir(self._opened_workspace.name)
            except OSError as error:
                os.write(2, f"{self._opened_workspace.name}: {error.strerror}\n".encode())
                os.chdir("/")
            for number in (*_SIGNALS, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            script = _in_memory(command) if len(command) > _LONG else -1
            self._agent.enter(self._limits)
            kept = {0, 1, 2, report}  # the report pipe is closed on exec
            if script >= 0:
                os.set_inheritable(script, True)
                kept.add(script)
                command = _RUN_SCRIPT % (script, script)
            syscalls.close_all_but(kept)
            shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
            os.execve(shell, [shell.encode(), b"-c", command], self._environment)
        except BaseException as error:
            os.write(report, f"E{type(error).__name__}: {error}".encode(errors="replace")[:1000])
        finally:
            os._exit(1)

    def _read_output(self, command: RunningCommand, chunks: int) -> bool:
        """Read output. Return True when the pipe is empty, now or permanently."""
        for _ in range(chunks):
            try:
                data = os.read(command.output_fd, _CHUNK)
            except BlockingIOError:
                return True
            except OSError:
                data = b""
            if not data:
                self._close_output(command)
                return True
            command.output.add(data)  # after the command has ended: counted, not kept
        return False

    def _close_output(self, command: RunningCommand) -> None:
        if command.output_fd >= 0:
            self._unwatch(command.output_fd)
            os.close(command.output_fd)
            command.output_fd = -1

    def _unwatch(self, fd: int) -> None:
        with contextlib.suppress(KeyError):
            self._poll.unregister(fd)

    def _reported(self, command: RunningCommand) -> None:
        """Handle the supervisor's report of how the shell ended, or, if the pipe is closed, its own end."""
        data = os.read(command.report_fd, 4096)
        if data.startswith(b"E"):
            self._end(command)
            self._current = None
            self._forget(command)
            self._connection.send({"error": "broke", "message": f"a command: {data[1:].decode(errors='replace')}"})
        elif data:
            code = int(data)
            self._finish(command, "exited", code if code >= 0 else 128 - code)
        elif command is self._current:
            # It was killed, and it is no longer known which processes belong to this command.
            self._finish(command, "signalled", 128 + signal.SIGKILL, kill=True)
        else:
            self._forget(command)
            self._end_orphans()

    def _finish(self, command: RunningCommand, ended: str, code: int | None = None, *, kill: bool = False) -> None:
        clean = self._end(command) if kill else True
        limit = time.monotonic() + _DRAIN_S
        while command.output_fd >= 0 and not self._read_output(command, 1) and time.monotonic() < limit:
            pass
        self._current = None
        reply = {
            "ended": ended,
            "code": code,
            "wall_s": time.monotonic() - command.started,
            "output_bytes": command.output.total,
            "clean": clean,
        }
        text = command.output.text()
        command.output = CommandOutput(0)
        if kill:
            self._forget(command)
        elif command.output_fd >= 0:
            self._unwatch(command.output_fd)  # from here on it is only read between other work
        self._connection.send(reply, text)

    # Monitoring

    def _check_limits(self) -> None:
        now = time.monotonic()
        if self._current is not None and now >= self._current.deadline:
            self._finish(self._current, "wall limit", kill=True)
        if now < self._next_watch or not self._commands:
            return
        pause = WATCH_S if self._current is not None else _BACKGROUND_WATCH_S
        work = time.process_time()
        for command in self._commands.values():
            if command is not self._current and command.output_fd >= 0:
                self._read_output(command, _BACKGROUND_CHUNKS)
        self._end_orphans()
        table = processes.processes()
        self._cap_use(table)
        self._cap_background(table)
        # Monitoring takes at most a tenth of the time, however many processes there are.
        self._next_watch = time.monotonic() + max(pause, 10 * (time.process_time() - work))

    def _agents(self, table: dict[int, processes.Process]) -> set[int]:
        """Return the ids of all processes of the agent."""
        return processes.descendants([os.getpid()], table) - set(self._commands)

    def _orphans(self, table: dict[int, processes.Process]) -> set[int]:
        """Return the processes whose supervisor was killed, with their descendants: their command is unknown."""
        me = os.getpid()
        lost = {process.pid for process in table.values() if process.parent == me} - set(self._commands)
        return lost | processes.descendants(lost, table)

    def _end_orphans(self) -> None:
        table = processes.processes()
        if any(table[pid].alive for pid in self._orphans(table)):
            processes.end(self._orphans, time.monotonic() + _KILL_S)
        processes.reap()

    def _cap_use(self, table: dict[int, processes.Process]) -> None:
        limit = self._limits["memory_mb"] * 1024 * 1024
        agents = self._agents(table)
        current = self._current
        family = processes.descendants([current.supervisor], table) if current is not None else set()
        tasks = {pid: table[pid].threads for pid in agents if table[pid].alive}
        idle = sum(tasks[pid] for pid in tasks.keys() - family)
        # Processes left running must leave room for the next command.
        too_many = idle > self._limits["processes"] // 2
        with self._agent.as_agent():
            others = 0
            over = processes.memory(agents, limit) > limit
            if over:
                others = processes.memory(agents - family, limit)
            elif not self._agent.exceeded(agents, sum(tasks.values()), self._allowed):
                if not too_many:
                    return
                current = None
        if current is None or too_many or others > limit // 2:
            for command in list(self._commands.values()):
                if command is not self._current:
                    self._end(command)
                    self._forget(command)
        if current is not None:
            self._finish(current, "memory limit", kill=True)

    def _cap_background(self, table: dict[int, processes.Process]) -> None:
        for command in list(self._commands.values()):
            if command is self._current:
                continue
            family = processes.descendants([command.supervisor], table) | {command.supervisor}
            used = sum(table[pid].cpu_s for pid in family & set(table))
            if command.cpu_before is None:
                command.cpu_before = used
            elif used - command.cpu_before > self._limits["background_cpu_s"]:
                self._end(command)
                self._forget(command)

    def _end(self, command: RunningCommand) -> bool:
        """Kill everything that ``command`` started, and its supervisor. Returns False if a process did not end."""

        def family(table: dict[int, processes.Process]) -> set[int]:
            return processes.descendants([command.supervisor], table) | self._orphans(table)

        deadline = time.monotonic() + _KILL_S
        clean = processes.end(family, deadline, whole_namespace=self._is_alone and len(self._commands) == 1)
        return processes.end(lambda table: {command.supervisor} & set(table), deadline) and clean

    def _forget(self, command: RunningCommand) -> None:
        """Release a command whose processes have all ended."""
        self._close_output(command)
        if command.report_fd >= 0:
            self._unwatch(command.report_fd)
            os.close(command.report_fd)
            command.report_fd = -1
        self._commands.pop(command.supervisor, None)
        processes.reap()

    def end_everything(self) -> None:
        """Kill all processes of the agent."""
        me = os.getpid()
        deadline = time.monotonic() + _KILL_S
        processes.end(lambda table: processes.descendants([me], table), deadline, whole_namespace=self._is_alone)


def _in_memory(text: bytes) -> int:
    """Return a descriptor from which ``text`` can be read."""
    fd = os.memfd_create("command")
    with open(fd, "wb", closefd=False) as file:
        file.write(text)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _entries(header: dict[str, Any], found: list[files.FileEntry]) -> tuple[Any, ...]:
    header["entries"] = [[entry.path, entry.kind, entry.executable, len(entry.data)] for entry in found]
    return (header, *(entry.data for entry in found))


def main(reading: int, writing: int, owner: int, settings: dict[str, Any]) -> None:
    """Serve until the owner closes the connection or ends; the kernel then ends everything in the namespace."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    shared = []
    if settings["view"] is not None:
        from rllm_gym.sandbox.inside import private_files

        shared = private_files.isolate(settings["view"])
    syscalls.be_undumpable()
    wire = FrameConnection(reading, writing)
    session = SessionServer(wire, owner, settings)
    try:
        wire.send({"op": "ready", "shared": shared})
        session.serve()
    except frames.OwnerGone:
        pass
    finally:
        session.end_everything()
        if settings["folder"] is not None:
            from rllm_gym.sandbox.inside import landlock_worker

            landlock_worker.remove(settings["folder"])
