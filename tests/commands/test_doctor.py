"""`rllm-gym doctor`: reports what is installed and how to install what is missing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from commands.command_line import rllm_gym, rllm_gym_process

from rllm_gym.commands import doctor
from rllm_gym.envs import TABLE
from rllm_gym.sandbox import session_process
from rllm_gym.sandbox.probe import probe_tier
from rllm_gym.sandbox.tier import Tier
from tests.sandbox.users import needs


@pytest.fixture(scope="module")
def findings() -> dict[str, dict[str, Any]]:
    """Return findings by subject. An examination starts every environment, so one serves all tests."""
    result = rllm_gym_process("doctor", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    return {finding["subject"]: finding for finding in json.loads(result.stdout)}


def test_a_working_installation_is_healthy(findings: dict[str, dict[str, Any]]) -> None:
    for subject in (
        "python",
        "rllm-gym",
        "processors",
        "memory",
        "disk",
        "base packages",
        "extra train",
        "torch",
        "sandbox",
        "docker",
        "node",
    ):
        assert findings[subject]["detail"]
    assert findings["base packages"]["status"] == "ok"
    assert f"{len(TABLE)} of {len(TABLE)} can be created" in findings["environments"]["detail"]
    assert all(finding["fix"] for finding in findings.values() if finding["status"] in ("missing", "broken"))


def test_the_report_is_readable_text(findings: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    found = [doctor.DoctorFinding(**finding) for finding in findings.values()]
    monkeypatch.setattr(doctor, "run_checks", lambda: found)
    shown = rllm_gym("doctor").stdout
    assert "torch" in shown
    assert "GiB" in shown


def test_the_sandbox_tier_is_reported_with_the_reason(findings: dict[str, dict[str, Any]]) -> None:
    found = findings["sandbox"]
    if found["status"] == "ok":
        assert "tier A" in found["detail"]
        assert not found["fix"]
    else:
        assert "ier A: " in found["detail"]
        assert found["fix"]
    assert (found["status"] == "ok") == probe_tier(Tier.NAMESPACES).works


def test_directories_that_programs_share_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel refuses overlays, tier A still works, but its programs can signal with locks."""
    needs(Tier.NAMESPACES)
    sources = session_process.sources
    monkeypatch.setattr(
        session_process,
        "sources",
        lambda names: [(name, text.replace('target, "overlay"', 'target, "unknown"')) for name, text in sources(names)],
    )
    found = next(finding for finding in doctor._sandbox() if finding.subject == "sandbox files")
    assert found.status == "note"
    assert "/usr" in found.detail
