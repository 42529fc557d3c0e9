"""How the process of a command becomes the agent's in each tier: which rights it keeps and what is monitored.

Sent in as source text: standard library only.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterable
from typing import Any

from rllm_gym.sandbox.inside import seccomp, syscalls, workspace

_OPEN_FILES = 1024
_ROUNDS = 40
_MEGABYTE = 1 << 20


def _cap_resources(limits: dict[str, Any]) -> None:
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits["workspace_mb"] * _MEGABYTE),
        (resource.RLIMIT_DATA, limits["memory_mb"] * _MEGABYTE),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_MEMLOCK, 1 << 16),
    ):
        syscalls.lower(kind, value)


class NamespaceConfinement:
    """Tier A: mounts and process ids already belong to the session; the process only has to give up all rights."""

    def __init__(self) -> None:
        self._filter = seccomp.deny_list(sockets="loopback")

    def become_user(self, limits: dict[str, Any], trusted: int) -> None:
        """Change the user before the workspace is entered. The ``trusted`` processes of the same user are counted."""
        syscalls.be_dumpable()  # otherwise its files in /proc belong to root
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # if memory runs out, the kernel should end a command rather than the session
        syscalls.lower(resource.RLIMIT_NPROC, limits["processes"] + trusted)

    def enter(self, limits: dict[str, Any]) -> None:
        """Apply the final restrictions. Must be the last call."""
        _cap_resources(limits)
        syscalls.drop_capabilities()
        syscalls.no_new_privileges()
        seccomp.install(self._filter)

    def as_agent(self) -> contextlib.AbstractContextManager[None]:
        """Return a context with the agent's rights to files and to /proc."""
        return contextlib.nullcontext()

    def exceeded(self, family: Iterable[int], tasks: int, limits: dict[str, Any]) -> bool:
        """Return whether a limit is exceeded that the kernel does not enforce here."""
        return False


class ContainerConfinement(NamespaceConfinement):
    """A container: its engine caps the processes and has already removed all rights."""

    def become_user(self, limits: dict[str, Any], trusted: int) -> None:
        """See :meth:`NamespaceConfinement.become_user`."""
        syscalls.be_dumpable()
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")


class UnprivilegedConfinement:
    """Tiers B and C: Landlock and seccomp around each command, or nothing; limits are monitored."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from rllm_gym.sandbox.inside import landlock_worker

        syscalls.be_subreaper()
        self._scratch: str = settings["scratch"]
        self._confinement: landlock_worker.LandlockConfinement | None = None
        self._owner = os.geteuid()
        if settings["confinement"] == "landlock":
            names = ("scratch", "uid", "readable", "without", "devices")
            self._confinement = landlock_worker.LandlockConfinement(*(settings[name] for name in names))
            if self._confinement.uid is not None:
                self._owner = self._confinement.uid
                # The agent owns the content of the directory but cannot remove the workspace itself.
                os.chown(self._scratch, 0, 0)
                os.chmod(self._scratch, 0o755)

    def make_directories(self, names: Iterable[str]) -> None:
        """Create the agent's directories."""
        for name in names:
            path = f"{self._scratch}/{name}"
            os.mkdir(path, 0o700)
            os.chown(path, self._owner, -1)

    def become_user(self, limits: dict[str, Any], trusted: int) -> None:
        """See :meth:`NamespaceConfinement.become_user`."""
        syscalls.be_dumpable()
        if self._confinement is not None:
            self._confinement.become_user({"processes": limits["processes"] + trusted})

    def enter(self, limits: dict[str, Any]) -> None:
        """See :meth:`NamespaceConfinement.enter`."""
        _cap_resources(limits)
        if self._confinement is not None:
            if self._confinement.uid is None:
                syscalls.drop_capabilities()
            syscalls.no_new_privileges()
            self._confinement.enter(self._scratch)

    def as_agent(self) -> contextlib.AbstractContextManager[None]:
        """See :meth:`NamespaceConfinement.as_agent`."""
        return self._confinement.as_program() if self._confinement is not None else contextlib.nullcontext()

    def exceeded(self, family: Iterable[int], tasks: int, limits: dict[str, Any]) -> bool:
        """See :meth:`NamespaceConfinement.exceeded`: too many processes, or too much disk space."""
        if self._confinement is None:
            return False
        scratch = {
            "processes": limits["processes"],
            "scratch_mb": limits["workspace_mb"],
            "scratch_files": limits["workspace_files"],
        }
        return bool(self._confinement.exceeded(family, tasks, scratch))

    def remaining_limits(self, limits: dict[str, Any], opened: workspace.Workspace) -> dict[str, Any]:
        """Return the limits of one command where disk use is only monitored.

        They allow the size of the base, plus what an earlier command has filled the workspace with: otherwise nothing
        could be removed any more.
        """
        size, count = limits["workspace_mb"], limits["workspace_files"]
        allowed = dict(limits)
        allowed["workspace_mb"] = size + opened.filled_bytes // _MEGABYTE + 1
        allowed["workspace_files"] = count + opened.filled_files
        for _ in range(_ROUNDS):  # not without end: what a background process hides cannot be counted
            if not self.exceeded((), 0, allowed):
                break
            allowed["workspace_mb"] += size // 4 + 1
            allowed["workspace_files"] += count // 4 + 1
        return allowed


def make_confinement(settings: dict[str, Any]) -> NamespaceConfinement | UnprivilegedConfinement:
    """Return the confinement named in the session's settings."""
    match settings["confinement"]:
        case "namespaces":
            return NamespaceConfinement()
        case "container":
            return ContainerConfinement()
        case _:
            return UnprivilegedConfinement(settings)
