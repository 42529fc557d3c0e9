"""The notebook that trains SmolLM2-135M-Instruct, with fewer steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from notebook_runs import printed, run_notebook

from trainers.run.metrics import read_metrics


@pytest.mark.long
def test_the_notebook_trains_the_model(smollm2: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "smollm2").symlink_to(smollm2)
    shown = printed(run_notebook("train_a_model.ipynb", tmp_path, STEPS=2))
    assert [row["step"] for row in read_metrics(tmp_path / "runs" / "sums")] == [0, 1, 2]
    assert any("success after" in text for text in shown)
