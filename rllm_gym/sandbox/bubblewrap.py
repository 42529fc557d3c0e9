"""The outer isolation of tier A: builds the ``bwrap`` command that starts a process with a read-only view of a runtime.

``bwrap`` creates the mounts and the process, network, IPC and host-name namespaces. As root it does so with root's
rights, so that a Python below a private directory can be mounted. The process that it starts is trusted: it drops the
rest of its rights itself (see ``inside/worker.py``) before any hostile code runs; before that it replaces the mounts by
others with files of their own (``inside/private_files.py``).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import Any

from rllm_gym.sandbox.errors import SandboxUnavailable
from rllm_gym.sandbox.runtime import Runtime

SCRATCH = "/scratch"
"""The path of a program's scratch space inside. The working directory, ``/tmp`` and ``/dev/shm`` are parts of it."""

HOST = "/host"
"""The path of the machine's tree inside while the process that ``bwrap`` starts sets up the sandbox."""

UID = 1000
"""The user id of programs inside; the user's name there is ``sandbox``."""

DEVICES = ("null", "zero", "full", "random", "urandom")
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime")
READABLE = ("/usr", *_SYSTEM, *_ETC)
"""System paths, besides the runtime, that are mounted here and that stay readable in the lower tiers."""

EMPTY = tuple(path for path in ("/usr/local", "/usr/src") if os.path.isdir(path))
"""Directories below readable ones that appear empty, except for what the runtime has there."""

_TEXTS = {
    "/etc/passwd": f"root:x:0:0:root:/:/bin/false\nsandbox:x:{UID}:{UID}:sandbox:/tmp:/bin/sh\n",
    "/etc/group": f"root:x:0:\nsandbox:x:{UID}:\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
}


def environment(runtime: Runtime) -> dict[str, str]:
    """Return all environment variables of a program."""
    return {
        "PATH": runtime.path,
        "HOME": temporary_directory(runtime),
        "TMPDIR": temporary_directory(runtime),
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",  # the same program behaves the same in every worker
        "PYTHONNOUSERSITE": "1",
        "MALLOC_ARENA_MAX": "2",  # address space is capped, and an arena reserves 64 MB of it
        "OMP_NUM_THREADS": "1",  # a worker that has threads cannot be forked
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def temporary_directory(runtime: Runtime) -> str:
    """Return the directory for temporary files: ``/tmp``, unless it contains the runtime and is therefore read-only."""
    visible = (runtime.python, *(inside for inside, _ in runtime.files))
    return f"{SCRATCH}/tmp" if any(path.startswith("/tmp/") for path in visible) else "/tmp"


class BubblewrapCommand:
    """One ``bwrap`` command line and the descriptors it reads its small files from. Close it once the process runs.

    Attributes:
        command: The command line.
        fds: The descriptors that it needs.
        view: The settings of ``inside/private_files.py``, which the started process has to call.
    """

    def __init__(
        self,
        runtime: Runtime,
        command: Sequence[str],
        *,
        extra: Sequence[str] = (),
    ) -> None:
        """Build the command line.

        Args:
            runtime: The files that are visible inside.
            command: The command to start, as pid 1 of its own pid namespace.
            extra: Additional arguments of ``bwrap``, placed after all mounts of the runtime and before the root is made
                read-only.

        Raises:
            SandboxUnavailable: ``bwrap`` is not installed.
        """
        bwrap = shutil.which("bwrap", path=os.environ.get("PATH", os.defpath) + ":/usr/bin:/usr/local/bin")
        if bwrap is None:
            raise SandboxUnavailable(
                "sandbox='namespaces' needs bubblewrap, and 'bwrap' was not found: apt-get install bubblewrap"
            )
        self.fds: list[int] = []
        self._sources: dict[str, tuple[str, str]] = {}
        root = os.geteuid() == 0
        arguments = ["--die-with-parent", "--new-session", "--as-pid-1", "--clearenv", "--chdir", "/"]
        arguments += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
        arguments += ["--hostname", "sandbox"]
        arguments += ["--cap-add", "ALL"]  # as an ordinary user: in the user namespace that bwrap creates
        if root:  # the process mounts /proc and changes to an unprivileged user itself
            arguments += ["--dir", "/proc"]
        else:
            arguments += ["--unshare-user", "--uid", str(UID), "--gid", str(UID), "--proc", "/proc"]
        arguments += self._mounts(runtime)
        arguments += ["--dir", HOST, "--bind", "/", HOST, *extra]
        arguments += ["--remount-ro", "/"]
        for name, value in environment(runtime).items():
            arguments += ["--setenv", name, value]
        self.command = [bwrap, *arguments, "--", *command]
        empty = [*EMPTY, *runtime.hidden]
        self.view: dict[str, Any] = {
            "host": HOST,
            "keep_host": False,
            "scratch": SCRATCH,
            "proc": root,
            "devices": [f"/dev/{name}" for name in DEVICES],
            "own": empty,
            "sources": self._sources,
        }

    def _mounts(self, runtime: Runtime) -> list[str]:
        arguments = self._directory("/usr", "/usr")
        for path in EMPTY:
            arguments += ["--tmpfs", path]
        for path in _SYSTEM:
            if os.path.islink(path):
                arguments += ["--symlink", os.readlink(path), path]
            elif os.path.isdir(path):
                arguments += self._directory(path, path)
        arguments += self._parents([*_ETC, *_TEXTS, *(inside for inside, _ in runtime.files), runtime.python])
        for path in _ETC:
            if os.path.exists(path):
                arguments += self._entry(os.path.realpath(path), path)
        for path, text in _TEXTS.items():
            arguments += ["--perms", "0644", "--file", str(self._holding(text)), path]
        arguments += ["--dir", "/dev"]
        for name in DEVICES:
            arguments += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
        for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
            arguments += ["--symlink", f"/proc/self/{target}", f"/dev/{name}"]
        arguments += ["--dir", SCRATCH]
        if temporary_directory(runtime) == "/tmp":
            arguments += ["--symlink", f"{SCRATCH[1:]}/tmp", "/tmp"]
        arguments += ["--symlink", f"{SCRATCH}/shm", "/dev/shm"]
        for inside, outside in runtime.files:
            as_source = self._directory if os.path.isdir(outside) else self._entry
            arguments += as_source(os.path.realpath(outside), inside)
        for path, target in runtime.links:
            arguments += ["--symlink", target, path]
        for path in runtime.hidden:
            arguments += ["--tmpfs", path]
        for name, outside in runtime.packages:
            arguments += self._entry(outside, os.path.join(runtime.site, name))
        for path in (*EMPTY, *runtime.hidden):
            arguments += ["--remount-ro", path]
        return arguments

    def _directory(self, outside: str, inside: str) -> list[str]:
        self._sources[inside] = (outside, "")
        return ["--ro-bind", outside, inside]

    def _entry(self, outside: str, inside: str) -> list[str]:
        """Mount a file, or one of several directories with the same parent. The parent becomes the overlay."""
        self._sources[inside] = os.path.split(outside)
        return ["--ro-bind", outside, inside]

    @staticmethod
    def _parents(paths: Sequence[str]) -> list[str]:
        """Return the parent directories to create. ``bwrap`` would make missing ones readable by their owner only."""
        found = {os.path.dirname(path) for path in paths}
        for path in list(found):
            while (path := os.path.dirname(path)) != "/":
                found.add(path)
        wanted = sorted(path for path in found if path != "/" and not path.startswith("/usr/"))
        return [argument for path in wanted for argument in ("--dir", path)]

    def _holding(self, text: str) -> int:
        fd = os.memfd_create("etc", os.MFD_CLOEXEC)
        self.fds.append(fd)
        os.write(fd, text.encode())
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def close(self) -> None:
        while self.fds:
            os.close(self.fds.pop())
