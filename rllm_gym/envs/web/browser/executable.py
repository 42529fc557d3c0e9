"""Finds the Chromium to use: the named one, otherwise the first one on this machine, preferring the headless shell."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rllm_gym.envs.web.browser.errors import BrowserFault

VARIABLE = "RLLM_GYM_CHROMIUM"
"""The environment variable that names an executable."""

INSTALL = "apt-get install chromium-headless-shell"

# Debian's wrapper in /usr/bin starts the browser as a child of a shell, which would then receive the signals.
_HEADLESS = (
    "/usr/lib/chromium/chromium-headless-shell",
    "chromium-headless-shell",
    "chrome-headless-shell",
    "headless_shell",
)
_FULL = ("/usr/lib/chromium/chromium", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium(executable: str | os.PathLike[str] | None = None) -> Path:
    """Return the Chromium to start.

    The search order is: ``executable``, the variable ``RLLM_GYM_CHROMIUM``, a headless shell of the system or of
    ``playwright install``, a full Chromium or Chrome, which needs about five times the CPU time.

    Raises:
        BrowserFault: There is no Chromium, or the named one does not exist; the message says what was tried and how to
            fix it.
    """
    for origin, name in (("executable", executable), (VARIABLE, os.environ.get(VARIABLE))):
        if name:
            found = _which(os.fspath(name))
            if found is None:
                raise BrowserFault(
                    f"{origin}={os.fspath(name)!r} is not an executable file; set it to a Chromium, or unset it and "
                    f"run `{INSTALL}`",
                    kind="browser_unavailable",
                )
            return found
    candidates = [*_HEADLESS, *_downloaded("chromium_headless_shell-*"), *_FULL, *_downloaded("chromium-*")]
    for candidate in candidates:
        if found := _which(candidate):
            return found
    raise BrowserFault(
        f"no Chromium found (on PATH, in /usr/lib/chromium, in the browsers of `playwright install`): run `{INSTALL}` "
        f"on Debian or Ubuntu, or `playwright install --only-shell chromium`, or set {VARIABLE}",
        kind="browser_unavailable",
    )


def _which(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found).absolute() if found else None


def _downloaded(pattern: str) -> list[str]:
    """Return the browsers that ``playwright install`` downloaded, newest first."""
    named = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    folder = Path(named) if named and named != "0" else Path.home() / ".cache" / "ms-playwright"
    names = ("chrome-headless-shell", "headless_shell", "chrome")
    found = [path for path in folder.glob(f"{pattern}/*/*") if path.name in names]
    return [str(path) for path in sorted(found, key=_revision, reverse=True)]


def _revision(path: Path) -> int:
    revision = path.parent.parent.name.rpartition("-")[2]
    return int(revision) if revision.isdecimal() else 0
