"""The tiers: what stands between a model-written program and this machine."""

from __future__ import annotations

from enum import StrEnum


class Tier(StrEnum):
    """How programs are confined. The value is what ``env.metadata``, ``info["sandbox_tier"]`` and manifests say.

    ``docs/sandbox.md`` says what each guarantees, and which test shows it.
    """

    NAMESPACES = "A"
    """Own process, network, mount, IPC and user namespaces behind bubblewrap; seccomp; rlimits."""
    LANDLOCK = "B"
    """Landlock, seccomp, rlimits and a subreaper: for ordinary containers, where namespaces are refused."""
    UNSAFE = "C"
    """A plain process with rlimits. Only when the user writes ``sandbox="unsafe"``."""
    DOCKER = "docker"
    """A container without network, where a Docker engine answers."""


SANDBOXES: dict[str, Tier] = {
    "namespaces": Tier.NAMESPACES,
    "landlock": Tier.LANDLOCK,
    "unsafe": Tier.UNSAFE,
    "docker": Tier.DOCKER,
}
"""What a user writes as ``sandbox=``; ``"auto"`` is the first of ``namespaces``, ``landlock`` that works here."""
