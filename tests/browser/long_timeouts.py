"""The browser's deadlines put where neither a busy nor a stalled machine reaches them, for tests of something else."""

from __future__ import annotations

import pytest

_SECONDS = {
    "session": ("GOTO_S", "LOAD_S", "ANSWER_S", "ACT_S", "OBSERVE_S", "RESPONSE_S", "STOP_S"),
    "load_state": ("LOADING_S", "REQUESTS_S", "_ASKED_S"),
    "actions": ("INPUT_S", "_WINDOW_S"),
    "drag": ("INPUT_S", "_DRAG_S"),
}


def use_long_timeouts(patch: pytest.MonkeyPatch, *, restless: bool = False) -> None:
    """What does not end by itself is waited for so long that a test which runs into it fails; ``wait()`` is brief.

    Args:
        patch: Puts everything back.
        restless: Of pages that change for ever: that alone is waited for as usual.
    """
    for module, names in _SECONDS.items():
        for name in names:
            patch.setattr(f"rllm_gym.browser.{module}.{name}", 100.0)
    patch.setattr("rllm_gym.browser.actions._WAIT_S", 0.05)
    if not restless:
        patch.setattr("rllm_gym.browser.load_state._CHANGES_MS", 1_000_000)
