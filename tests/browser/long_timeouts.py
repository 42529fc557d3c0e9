"""Browser deadlines that neither a busy nor a stalled machine reaches, for tests of other behaviour."""

from __future__ import annotations

import pytest

_SECONDS = {
    "session": ("GOTO_S", "LOAD_S", "ANSWER_S", "ACT_S", "OBSERVE_S", "RESPONSE_S", "STOP_S"),
    "load_state": ("LOADING_S", "REQUESTS_S", "_NAVIGATION_START_S"),
    "actions": ("INPUT_S", "_WINDOW_S"),
    "drag": ("INPUT_S", "_DRAG_S"),
}


def use_long_timeouts(patch: pytest.MonkeyPatch, *, restless: bool = False) -> None:
    """Make deadlines so long that a test which reaches one fails; ``wait()`` becomes short.

    Args:
        patch: Restores everything.
        restless: Keep the usual deadline for pages that change for ever.
    """
    for module, names in _SECONDS.items():
        for name in names:
            patch.setattr(f"rllm_gym.envs.web.browser.{module}.{name}", 100.0)
    patch.setattr("rllm_gym.envs.web.browser.actions._WAIT_S", 0.05)
    if not restless:
        patch.setattr("rllm_gym.envs.web.browser.load_state._CHANGES_MS", 1_000_000)
