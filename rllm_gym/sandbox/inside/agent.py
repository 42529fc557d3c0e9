"""How a command's process becomes the agent's, in each tier: what it may do from then on, and what is watched.

Sent in as source text: standard library only.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterable
from typing import Any

from rllm_gym.sandbox.inside import confine, seccomp, workspace

_OPEN_FILES = 1024
_MEGABYTE = 1 << 20


def _cap_resources(limits: dict[str, Any]) -> None:
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits["workspace_mb"] * _MEGABYTE),
        (resource.RLIMIT_DATA, limits["memory_mb"] * _MEGABYTE),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_MEMLOCK, 1 << 16),
    ):
        confine.lower(kind, value)


class Namespaces:
    """Tier A: mounts and process ids are the session's own already; what is left is to give up all rights."""

    def __init__(self) -> None:
        self._filter = seccomp.deny_list(sockets="loopback")

    def become_user(self, limits: dict[str, Any], trusted: int) -> None:
        """Before the workspace is entered. ``trusted`` processes are of the same user, and are counted."""
        confine.be_dumpable()  # or its files in /proc are root's
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # where memory runs out, better a command is ended than the session
        confine.lower(resource.RLIMIT_NPROC, limits["processes"] + trusted)

    def close(self, limits: dict[str, Any]) -> None:
        """Last of all."""
        _cap_resources(limits)
        confine.drop_capabilities()
        confine.no_new_privileges()
        seccomp.install(self._filter)

    def as_agent(self) -> contextlib.AbstractContextManager[None]:
        """With the agent's rights to files and to /proc."""
        return contextlib.nullcontext()

    def exceeded(self, family: Iterable[int], tasks: int, limits: dict[str, Any]) -> bool:
        """Whether a limit is broken that no kernel keeps here."""
        return False


class Container(Namespaces):
    """A container: its engine caps the processes, and has taken all rights away already."""

    def become_user(self, limits: dict[str, Any], trusted: int) -> None:
        """As :meth:`Namespaces.become_user`."""
        confine.be_dumpable()
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")


class Lower:
    """Tiers B and C: Landlock and seccomp around each command, or nothing; and a watch."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from rllm_gym.sandbox.inside import landlocked

        confine.be_subreaper()
        self._scratch: str = settings["scratch"]
        self._wall: landlocked.Wall | None = None
        self._owner = os.geteuid()
        if settings["confinement"] == "landlock":
            names = ("scratch", "uid", "readable", "without", "devices")
            self._wall = landlocked.Wall(*(settings[name] for name in names))
            if self._wall.uid is not None:
                self._owner = self._wall.uid
                # The agent owns what is in it, and cannot take the workspace itself away.
                os.chown(self._scratch, 0, 0)
                os.chmod(self._scratch, 0o755)

    def furnish(self, names: Iterable[str]) -> None:
        """Make the agent's directories."""
        for name in names:
            path = f"{self._scratch}/{name}"
            os.mkdir(path, 0o700)
            os.chown(path, self._owner, -1)

    def become_user(self, limits: dict[str, Any], trusted: int) -> None:
        """As :meth:`Namespaces.become_user`."""
        confine.be_dumpable()
        if self._wall is not None:
            self._wall.become_user({"processes": limits["processes"] + trusted})

    def close(self, limits: dict[str, Any]) -> None:
        """As :meth:`Namespaces.close`."""
        _cap_resources(limits)
        if self._wall is not None:
            if self._wall.uid is None:
                confine.drop_capabilities()
            confine.no_new_privileges()
            self._wall.close(self._scratch)

    def as_agent(self) -> contextlib.AbstractContextManager[None]:
        """As :meth:`Namespaces.as_agent`."""
        return self._wall.as_program() if self._wall is not None else contextlib.nullcontext()

    def exceeded(self, family: Iterable[int], tasks: int, limits: dict[str, Any]) -> bool:
        """As :meth:`Namespaces.exceeded`: too many processes, or too much on the disk."""
        if self._wall is None:
            return False
        scratch = {
            "processes": limits["processes"],
            "scratch_mb": limits["workspace_mb"],
            "scratch_files": limits["workspace_files"],
        }
        return bool(self._wall.exceeded(family, tasks, scratch))

    def room(self, limits: dict[str, Any], place: workspace.Workspace) -> dict[str, Any]:
        """The limits of one command, where the disk is only watched: beside its base, and beside what an earlier one
        has filled the workspace with, since otherwise nothing could ever be removed again."""
        size, count = limits["workspace_mb"], limits["workspace_files"]
        allowed = dict(limits)
        allowed["workspace_mb"] = size + place.filled_bytes // _MEGABYTE + 1
        allowed["workspace_files"] = count + place.filled_files
        while self.exceeded((), 0, allowed):
            allowed["workspace_mb"] += size // 4 + 1
            allowed["workspace_files"] += count // 4 + 1
        return allowed


def of(settings: dict[str, Any]) -> Namespaces | Lower:
    """What the session's settings ask for."""
    match settings["confinement"]:
        case "namespaces":
            return Namespaces()
        case "container":
            return Container()
        case _:
            return Lower(settings)
