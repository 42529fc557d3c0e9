"""The packaged recipes train a tiny model to cross unseen lakes (takes minutes: long)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trainers.config import SftConfig, TrainConfig
from trainers.config_loading import load_yaml
from trainers.fine_tuning.sft import sft
from trainers.loop import train
from trainers.run.metrics import read_metrics


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("recipe", ["frozen_lake_full", "frozen_lake_lora"])
def test_the_recipes_teach_a_tiny_model_to_cross_the_lake(tmp_path: Path, recipe: str) -> None:
    base = sft(replace(load_yaml(SftConfig, "frozen_lake_sft"), output=str(tmp_path / "sft"), progress=False))
    assert base.stopped, "the rule that ends the fine-tuning was never met"
    config = load_yaml(TrainConfig, recipe)
    result = train(
        replace(
            config,
            output=str(tmp_path / "rl"),
            model=replace(config.model, path=str(base.model)),
            validation=replace(config.validation, tasks=256),
            progress=False,
        )
    )
    rows = read_metrics(result.output)
    assert rows[0]["validation/success"] <= 0.5
    assert rows[-1]["validation/success"] >= 0.75
    assert max(row.get("sampling/logprob_difference/max", 0.0) for row in rows) < 1e-3
