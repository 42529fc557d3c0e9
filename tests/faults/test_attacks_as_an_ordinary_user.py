"""The attacks again as an unprivileged user, where bubblewrap and Landlock have fewer means."""

from __future__ import annotations

import os

import pytest

from tests.sandbox.users import ROOT, RunPython

ATTACKS = """
import os, sys, pytest
os.chdir(sys.argv[1])
options = ["-q", "-p", "no:cacheprovider", "--basetemp", os.environ["HOME"] + "/pytest", *sys.argv[2:]]
raise SystemExit(pytest.main(options))
"""


@pytest.mark.parametrize(
    ("file", "which"),
    [
        ("function", "channel"),
        ("swe", "host"),
        pytest.param("stdio", "limits or B-processes or eight", marks=pytest.mark.long),
        pytest.param("function", "special or another_style", marks=pytest.mark.long),
        pytest.param("swe", "steer or without or honest", marks=pytest.mark.long),
    ],
)
def test_no_attack_is_rewarded(file, which, ordinary_user: RunPython):
    if os.geteuid() != 0:
        return  # the attacks in this folder are already run by an unprivileged user
    done = ordinary_user(
        ATTACKS, str(ROOT), f"tests/faults/test_{file}_attacks.py", "-k", which, "-m", "not long", timeout=590
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
