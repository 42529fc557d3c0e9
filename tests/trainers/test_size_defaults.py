"""Defaults by kind of model: tiny models learn at rates that destroy pretrained ones, which need longer replies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from echo_config import echo_config
from transformers import Qwen2Config, Qwen2ForCausalLM

from rllm_gym.core import TextEnv
from trainers.config import (
    EnvConfig,
    LoraModelConfig,
    ModelConfig,
    OptimizerConfig,
    SamplingConfig,
    TrainConfig,
)
from trainers.config_loading import load_yaml
from trainers.dry_run import dry_run
from trainers.learner import Learner, TrainingDiverged
from trainers.loop import train
from trainers.model import Policy
from trainers.model.size_defaults import size_note, with_learning_rate, with_max_tokens
from trainers.run.divergence import LossWatch
from trainers.tiny_model import make_tiny_model
from trainers.train_env import open_train_env


def pretrained(*, adapted: bool = False, context: int = 8192) -> Any:
    """Return a model of 12 million weights without values."""
    settings = Qwen2Config(
        vocab_size=32000, hidden_size=192, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=256, max_position_embeddings=context, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = Qwen2ForCausalLM(settings)
    if adapted:
        model.model.requires_grad_(False)
    return model


def test_the_learning_rate_depends_on_size_and_tuning(tmp_path: Path) -> None:
    unset = OptimizerConfig()
    assert with_learning_rate(unset, pretrained()).lr == 2e-5
    assert with_learning_rate(unset, pretrained(adapted=True)).lr == 2e-4
    assert with_learning_rate(OptimizerConfig(lr=0.5), pretrained()).lr == 0.5
    path = str(make_tiny_model(tmp_path / "tiny", hidden_size=32, num_heads=1, num_layers=1, vocab_size=300))
    for model in (ModelConfig(path, "full"), LoraModelConfig(path)):
        assert Learner(Policy(model), unset, 10).peak_lr == 2e-3
    assert size_note(pretrained(), {}) == []
    (line,) = size_note(pretrained(), {"optimizer.lr": 2e-5})
    assert line == "the model has 12.6 M weights and counts as pretrained (10 M or more): optimizer.lr=2e-05"


def test_the_length_of_replies_depends_on_size_context_and_environment(tmp_path: Path) -> None:
    unset, asked = SamplingConfig(), open_train_env(EnvConfig("rllm/Math-v0")).reply_tokens
    assert asked >= 512
    assert with_max_tokens(unset, pretrained(), asked).max_tokens == asked
    assert with_max_tokens(unset, pretrained(context=600), asked).max_tokens == 300, "half the context of the model"
    assert with_max_tokens(SamplingConfig(context_length=400), pretrained(), asked).max_tokens == 200
    assert with_max_tokens(SamplingConfig(max_tokens=7), pretrained(), asked).max_tokens == 7
    assert with_max_tokens(unset, pretrained(), 2048).max_tokens == 2048
    assert open_train_env(EnvConfig("rllm/Code-v0")).reply_tokens > TextEnv.reply_tokens
    config = echo_config(tmp_path, steps=1, sampling={"max_tokens": None}, optimizer={"lr": None}, validation=None)
    assert dry_run(config).config.sampling.max_tokens == 64
    train(config)
    written = load_yaml(TrainConfig, str(tmp_path / "run" / "config.yaml"))
    assert (written.sampling.max_tokens, written.optimizer.lr) == (64, 2e-3), "what was chosen can be read afterwards"
    train(replace(config, steps=2, resume=True))


def test_a_loss_that_explodes_in_the_first_steps_stops_the_run() -> None:
    """Not a noisy one, not one that starts high, and not one that rises much later."""

    messages: list[str] = []

    def stopped(losses: list[float]) -> int | None:
        watch = LossWatch()
        for step, loss in enumerate(losses, 1):
            try:
                watch.check(step, loss, 2e-3)
            except TrainingDiverged as error:
                messages.append(str(error))
                return step
        return None

    assert stopped([2.0, 2.1, 3.0, 4.5, 6.0, 7.0, 7.5]) == 6
    assert messages[0].startswith("the loss grew from 2 to 7 within 6 steps")
    assert "Lower optimizer.lr (now 0.002)" in messages[0]
    assert stopped([0.2, 0.1, 1.3, 1.4, 1.1, 1.3, 1.3]) is None
    assert stopped([0.69, 0.6, 1.8, 2.0, 2.5]) == 5, "DPO"
    assert stopped([6.0, 5.0, 7.0, 8.0, 7.0] * 3) is None
    assert stopped([1.0] * 100 + [9.0] * 10) is None


def test_sft_stops_when_the_loss_explodes(tmp_path: Path) -> None:
    from test_sft_runs import chat, options

    from trainers.fine_tuning.sft import sft

    base = str(make_tiny_model(tmp_path / "tiny", hidden_size=32, num_heads=1, num_layers=1, vocab_size=300))
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
    rows = [chat("2 + 2?", "four"), chat("1 + 1?", "two"), chat("3 + 3?", "six"), chat("5 + 5?", "ten")]
    model = sft(options(base, tmp_path / "good", rows, steps=30, optimizer={"lr": 3e-3})).model
    with pytest.raises(TrainingDiverged, match="the updates destroy the model"):
        sft(options(str(model), tmp_path / "bad", rows, steps=60, optimizer={"lr": 50.0}))
