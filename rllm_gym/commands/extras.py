"""Optional packages: which ones rllm-gym's extras require, which are installed, and how to install a missing one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9][\w.-]*)(\[[^\]]*\])?\s*(?P<versions>[^;]*?)\s*(;\s*(?P<marker>.*))?$")
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")
_IMPORT_NAMES = {"pillow": "PIL", "pyyaml": "yaml", "math-verify": "math_verify"}
# Extras for developers of rllm-gym; never suggested to users.
DEVELOPER_EXTRAS = {"dev"}
# Extras of third-party libraries install much more than one package, so they are suggested last.
_LIBRARY_EXTRAS = {
    "ray",
    "reasoning-gym",
    "rllib",
    "stable-baselines3",
    "textarena",
    "tianshou",
    "torchrl",
    "trl",
    "verl",
}


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement of the installed rllm-gym.

    Attributes:
        name: Its name on the package index.
        versions: The version range, ``""`` for any.
        extra: The extra that requires it, ``""`` for the base.
        installed: The installed version, ``None`` if it is missing.
    """

    name: str
    versions: str
    extra: str
    installed: str | None

    @property
    def import_name(self) -> str:
        return _IMPORT_NAMES.get(self.name.lower(), self.name.replace("-", "_"))


def requirements() -> list[Requirement]:
    """Return every requirement of the installed rllm-gym, base first. Empty if its metadata is missing."""
    try:
        lines = requires("rllm-gym") or []
    except PackageNotFoundError:
        return []
    found: list[Requirement] = []
    for line in lines:
        match = _REQUIREMENT.match(line.strip())
        if match is None:
            continue
        extra = _EXTRA.search(match["marker"] or "")
        found.append(
            Requirement(match["name"], match["versions"], extra[1] if extra else "", _installed(match["name"]))
        )
    return sorted(found, key=lambda requirement: requirement.extra)


def advice_for_missing(module: str, command: str = "") -> str | None:
    """Return the command after which ``import module`` works, or ``None`` if rllm-gym does not require the module.

    Args:
        module: Its name.
        command: The command that needs it: an extra of this name is suggested first.
    """
    root = module.partition(".")[0]
    extras = [
        requirement.extra
        for requirement in requirements()
        if requirement.import_name == root and requirement.extra not in DEVELOPER_EXTRAS
    ]
    if not extras:
        return None
    extras.sort(key=lambda extra: (extra != command, extra in _LIBRARY_EXTRAS))
    return f"pip install 'rllm-gym[{extras[0]}]'" if extras[0] else "pip install --upgrade rllm-gym"


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
