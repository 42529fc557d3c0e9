"""A vLLM server as a child process: started, monitored, and ended with all its descendants."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllm_gym.samplers.protocol import SamplerError

_LINES = 30


class ServerProcess:
    """A running ``vllm.entrypoints.openai.api_server`` that listens on a Unix socket only this user can reach.

    The kernel kills it when the thread that started it ends, also when the whole program is killed with SIGKILL.

    Args:
        arguments: Arguments of ``vllm.EngineArgs``, by their Python names.
        variables: Further environment variables.
        socket: Its socket; a path of at most 107 bytes.
        log: File that its output is appended to.

    Raises:
        SamplerError: It cannot be started.
    """

    def __init__(self, arguments: Mapping[str, Any], variables: Mapping[str, str], socket: Path, log: Path) -> None:
        self.socket = socket
        self._log = log
        self._owner = os.getpid()
        command = [sys.executable, "-m", "rllm_gym.samplers.vllm.server_main", str(os.getpid())]
        command += ["--uds", str(socket), "--disable-uvicorn-access-log", *_flags(arguments)]
        code = str(Path(__file__).resolve().parents[3])
        path = os.pathsep.join(filter(None, [code, os.environ.get("PYTHONPATH", "")]))
        with log.open("ab") as stream:
            self._log_begin = stream.tell()
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    env={**os.environ, **variables, "PYTHONPATH": path},
                    start_new_session=True,  # Ctrl-C goes to the trainer, which closes the server itself
                )
            except OSError as error:
                raise SamplerError(f"vLLM's server cannot be started: {error}") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_description(self) -> str:
        """How it ended, in words; ``""`` while it runs."""
        status = self._process.poll()
        if status is None:
            return ""
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        return f"exit status {status}"

    def log_tail(self) -> str:
        """Return the end of its output, and the path of the log."""
        try:
            with self._log.open("rb") as stream:
                stream.seek(self._log_begin)
                lines = stream.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            return f"(its log {self._log} cannot be read)"
        return "\n".join([f"The end of its log, {self._log}:", *lines[-_LINES:]])

    def stop(self, grace: float = 10.0) -> None:
        """End it and all its descendants: terminated first, killed after ``grace`` seconds. Safe to call twice.

        In a forked child it does nothing: the server is the parent's.
        """
        if os.getpid() == self._owner and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace)
        self.kill()

    def kill(self) -> None:
        """Kill it and all its descendants at once."""
        if os.getpid() != self._owner:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10.0)
        self.socket.unlink(missing_ok=True)


def _flags(arguments: Mapping[str, Any]) -> list[str]:
    flags = []
    for name, value in arguments.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(flag if value else "--no-" + flag[2:])
        elif isinstance(value, Mapping | list | tuple):
            flags += [flag, json.dumps(value)]
        else:
            flags += [flag, str(value)]
    return flags
