"""`rllm-gym doctor`: says what there is, and of what is missing how to get it."""

from __future__ import annotations

import json

from commands.running import rllm_gym


def test_a_working_installation_is_healthy() -> None:
    result = rllm_gym("doctor", "--json")
    assert result.returncode == 0, result.stdout
    findings = {finding["subject"]: finding for finding in json.loads(result.stdout)}
    for subject in ("python", "rllm-gym", "processors", "memory", "disk", "base packages", "extra train", "torch"):
        assert findings[subject]["detail"]
    assert findings["base packages"]["status"] == "ok"
    assert "5 of 5 start" in findings["environments"]["detail"]
    assert all(finding["fix"] for finding in findings.values() if finding["status"] in ("missing", "broken"))


def test_it_can_be_read_by_a_person() -> None:
    shown = rllm_gym("doctor").stdout
    assert "torch" in shown
    assert "GiB" in shown
