"""The tiers: how model-written programs are isolated from this machine."""

from __future__ import annotations

from enum import StrEnum


class Tier(StrEnum):
    """The isolation of programs. The value appears in ``env.metadata``, ``info["sandbox_tier"]`` and manifests.

    ``docs/sandbox.md`` describes the guarantees of each tier and the tests that check them.
    """

    NAMESPACES = "A"
    """Separate process, network, mount, IPC and user namespaces with bubblewrap; seccomp; rlimits."""
    LANDLOCK = "B"
    """Landlock, seccomp, rlimits and a subreaper: for ordinary containers, where namespaces are refused."""
    UNSAFE = "C"
    """A plain process with rlimits. Used only for an explicit ``sandbox="unsafe"``."""
    DOCKER = "docker"
    """A container without network. Needs a Docker engine."""


SANDBOXES: dict[str, Tier] = {
    "namespaces": Tier.NAMESPACES,
    "landlock": Tier.LANDLOCK,
    "unsafe": Tier.UNSAFE,
    "docker": Tier.DOCKER,
}
"""The values of ``sandbox=``; ``"auto"`` is the first of ``namespaces``, ``landlock`` that works here."""
