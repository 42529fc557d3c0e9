"""The comparison with TRL, without TRL: our side answers commands, and the script reports that TRL is missing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.vs_trl import Case, Measured, Side, main, row, write_data

CASE = Case("small", "update", 24, (4, 8), 4, 2, 1.0)


@pytest.mark.long
def test_our_side_reports_update_gradient_and_memory_and_exits_when_closed(tmp_path: Path) -> None:
    data = str(write_data(CASE, tmp_path))
    side = Side("ours", sys.executable, tmp_path)
    try:
        assert side.ask("prepare", data=data) == {"ready": True}
        # Advantages add up to 0 and the policy is still the sampler: equal lengths would make this 0.
        assert abs(side.ask("gradient", file=str(tmp_path / "gradient.npz"))["loss"]) < 0.2
        with np.load(tmp_path / "gradient.npz") as gradient:
            assert any(np.abs(gradient[name]).max() > 0 for name in gradient.files)
            assert all("lora_" in name for name in gradient.files)
        assert side.ask("update")["cpu"] > 0
        assert side.ask("memory")["mib"] >= 0
        with pytest.raises(SystemExit, match="ours ended with status"):
            side.ask("nonsense")
    finally:
        side.close()


def test_prompts_and_completions_have_the_configured_lengths(tmp_path: Path) -> None:
    import json

    data = json.loads(write_data(CASE, tmp_path).read_text())
    assert [len(ids) for ids in data["prompts"]] == [24, 24]
    assert all(4 <= len(ids) <= 8 for group in data["completions"] for ids in group)
    assert all(len(group) == 4 for group in data["completions"])


def test_without_trl_the_error_names_the_install_command() -> None:
    if importlib.util.find_spec("trl") is not None:
        pytest.skip("TRL can be imported here")
    with pytest.raises(SystemExit, match="--peer-python"):
        main(["--only", "update"])


def test_a_missed_target_is_reported() -> None:
    assert "| NO |" in row(Measured(CASE, 1.0, 0.9, 0.9, 0.8, 1.0))
    assert "| yes |" in row(Measured(CASE, 1.0, 1.1, 1.1, 1.0, 1.2))
