"""Sessions on this machine, with processes that are started in advance."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllm_gym.core import RllmGymError
from rllm_gym.sandbox import bubblewrap
from rllm_gym.sandbox.runtime import Runtime
from rllm_gym.sandbox.session import SandboxSession, SessionLimits
from rllm_gym.sandbox.session_process import SessionProcess
from rllm_gym.sandbox.tier import Tier
from rllm_gym.sandbox.tree import DirectoryStats, directory_stats

_log = logging.getLogger(__name__)

_SPARES = 2
"""The number of spare processes per runtime, once one has been requested."""

COPIED_ENTRIES, COPIED_BYTES = 300, 4 << 20
"""A base of at most this size is copied."""


class SessionPool:
    """Session processes that are started before they are needed, so that opening a session takes milliseconds.

    Args:
        tier: How they are isolated.
    """

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self._lock = threading.Lock()
        self._ready: dict[Runtime, deque[SessionProcess]] = {}
        self._starting = False
        self._closed = False

    def open(
        self, base: Path | None, limits: SessionLimits, runtime: Runtime, environment: Mapping[str, str]
    ) -> SandboxSession:
        """Open a session.

        Raises:
            NotADirectoryError: ``base`` is not a directory.
            SandboxUnavailable, SandboxFault: The session could not be started.
        """
        if base is not None and not os.path.isdir(base):
            raise NotADirectoryError(f"base={str(base)!r} is not a directory")
        host = self._take(runtime)
        try:
            settings = {
                "scratch": host.scratch,
                "host": bubblewrap.HOST,
                "user": host.user,
                "inside": bubblewrap.UID,
                "base": _describe(base) if base is not None else None,
            }
            return SandboxSession(host, base, limits, environment, settings)
        except BaseException:
            host.close()
            raise

    def close(self) -> None:
        """End the spare processes. Open sessions belong to their owners and stay open."""
        with self._lock:
            self._closed = True
            hosts = [host for ready in self._ready.values() for host in ready]
            self._ready.clear()
        for host in hosts:
            host.close()

    def _take(self, runtime: Runtime) -> SessionProcess:
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is closed; open the session in another one")
            ready = self._ready.setdefault(runtime, deque())
            host = ready.popleft() if ready else None
            if not self._starting:
                self._starting = True
                threading.Thread(target=self._refill, args=(runtime,), name="spare-sessions", daemon=True).start()
        if host is not None and host.alive:
            return host
        host = SessionProcess(self.tier, runtime)
        host.wait_until_ready()
        return host

    def _refill(self, runtime: Runtime) -> None:
        try:
            while self._wants(runtime):
                host = SessionProcess(self.tier, runtime)
                host.wait_until_ready()
                with self._lock:
                    kept = not self._closed
                    if kept:
                        self._ready[runtime].append(host)
                if not kept:
                    host.close()
        except (RllmGymError, OSError) as error:
            with self._lock:
                self._starting = False
                wanted = not self._closed and threading.main_thread().is_alive()
            if wanted:  # opening the next session fails the same way and reports it
                _log.warning("could not start a spare session: %s", error)

    def _wants(self, runtime: Runtime) -> bool:
        with self._lock:
            self._starting = not self._closed and len(self._ready[runtime]) < _SPARES
            return self._starting


# The base of a workspace

_directory_stats: dict[tuple[str, int, int, int], DirectoryStats] = {}


def _describe(base: Path) -> dict[str, Any] | None:
    """Return what the trusted process needs for an overlay over the base; ``None`` if the base is to be copied.

    Copying a small base is cheap and gives directories that can be renamed. An overlay refuses to rename directories of
    its base (``EXDEV``, as in every container), which ``mv`` handles and ``git mv`` does not. Files of several users
    can only be copied, because a user namespace has a single user.
    """
    path = os.path.realpath(base)
    status = os.stat(path)
    key = (path, status.st_dev, status.st_ino, status.st_ctime_ns)
    if key not in _directory_stats:
        if len(_directory_stats) > 4096:
            _directory_stats.clear()
        _directory_stats[key] = directory_stats(Path(path))
    found = _directory_stats[key]
    if found.owner is None or (found.entries <= COPIED_ENTRIES and found.size <= COPIED_BYTES):
        return None
    uid, gid = found.owner
    if os.geteuid() != 0 and (uid, gid) != (os.geteuid(), os.getegid()):
        return None
    return {"path": path, "device": status.st_dev, "inode": status.st_ino, "uid": uid, "gid": gid}
