"""For tests that use a browser: skipping where there is none, and deadlines that a stalled machine does not reach."""

from __future__ import annotations

import pytest

from rllm_gym.envs.web.browser.errors import BrowserFault
from rllm_gym.envs.web.browser.executable import find_chromium

_SECONDS = {
    "session": ("GOTO_S", "LOAD_S", "ANSWER_S", "ACT_S", "OBSERVE_S", "RESPONSE_S", "STOP_S"),
    "load_state": ("LOADING_S", "REQUESTS_S", "_NAVIGATION_START_S"),
    "actions": ("INPUT_S", "_WINDOW_S"),
    "drag": ("INPUT_S", "_DRAG_S"),
    "tabs": ("_REPLY_S",),
}


def use_long_timeouts(patch: pytest.MonkeyPatch, *, keep_changes_deadline: bool = False) -> None:
    """Make deadlines so long that a test which reaches one fails; ``wait()`` becomes short.

    Args:
        patch: Restores everything.
        keep_changes_deadline: Keep the usual deadline for pages that change for ever.
    """
    for module, names in _SECONDS.items():
        for name in names:
            patch.setattr(f"rllm_gym.envs.web.browser.{module}.{name}", 100.0)
    patch.setattr("rllm_gym.envs.web.browser.actions._WAIT_S", 0.05)
    if not keep_changes_deadline:
        patch.setattr("rllm_gym.envs.web.browser.load_state._CHANGES_MS", 1_000_000)


def require_chromium() -> str:
    """Return the path of Chromium; skip the calling test or module where it or Playwright is not installed."""
    pytest.importorskip("playwright", reason="the browser needs playwright: pip install 'rllm-gym[web]'")
    try:
        return str(find_chromium())
    except BrowserFault as missing:
        pytest.skip(str(missing), allow_module_level=True)
