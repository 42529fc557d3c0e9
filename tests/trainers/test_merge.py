"""rllm-gym merge: the merged model computes what adapter and base compute together; invalid adapters are errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rllm_gym.commands.errors import CommandError
from trainers import commands
from trainers.config import ConfigError, LoraConfig, LoraModelConfig, ModelConfig
from trainers.config.merge import MergeConfig
from trainers.model import Policy
from trainers.model.adapters import TRAINED_ON
from trainers.model.merge import merge_adapter
from trainers.tiny_model import make_tiny_model

IDS = torch.arange(40)[None] * 11 % 700


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("merge") / "base")


def adapter_of(base: Path, folder: Path, tuning: Any = "lora") -> Policy:
    policy = Policy(LoraModelConfig(str(base), tuning, lora=LoraConfig(rank=4)))
    changed([parameter for _, parameter in policy.parameters])
    policy.save(folder)
    return policy


def changed(parameters: list[torch.nn.Parameter]) -> None:
    with torch.no_grad():
        for number, parameter in enumerate(parameters):
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    result: torch.Tensor = model(input_ids=IDS).logits.float()
    return result


def loaded(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.mark.parametrize("settings", [{}, {"use_rslora": True}, {"use_dora": True}])
def test_the_merged_model_computes_what_the_adapter_did(base: Path, tmp_path: Path, settings: dict[str, bool]) -> None:
    """Also adapters of PEFT that the trainer does not train."""
    options = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", **settings)  # type: ignore[arg-type]
    adapted = peft.get_peft_model(loaded(base), options)
    changed([parameter for parameter in adapted.parameters() if parameter.requires_grad])
    adapted.save_pretrained(tmp_path / "adapter")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "adapter")
    merged = merge_adapter(MergeConfig(str(tmp_path / "adapter"), str(tmp_path / "merged")))
    model = loaded(merged.output)
    assert torch.allclose(logits(model), logits(adapted), atol=1e-4)
    assert not torch.allclose(logits(model), logits(loaded(base)), atol=0.1)
    assert type(model) is type(loaded(base))
    assert AutoTokenizer.from_pretrained(merged.output).chat_template
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "merged"]


def test_an_adapter_trained_in_four_bits_is_merged_into_either_base(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = adapter_of(base, tmp_path / "adapter", "qlora")
    adapter = str(tmp_path / "adapter")
    assert commands.merge([adapter, "--output", str(tmp_path / "exact"), "--nf4"]) == 0
    assert "--nf4" not in capsys.readouterr().out
    assert torch.allclose(logits(loaded(tmp_path / "exact")), logits(policy.model), atol=1e-4)

    assert commands.merge([adapter, "--output", str(tmp_path / "usual")]) == 0
    assert "trained on an NF4 base" in capsys.readouterr().out
    beside = PeftModel.from_pretrained(loaded(base), adapter).eval()
    usual = logits(loaded(tmp_path / "usual"))
    assert torch.allclose(usual, logits(beside), atol=1e-4)
    assert not torch.allclose(usual, logits(policy.model), atol=1e-2)


def test_weights_are_summed_before_rounding(base: Path, tmp_path: Path) -> None:
    policy = adapter_of(base, tmp_path / "adapter")
    merge_adapter(MergeConfig(str(tmp_path / "adapter"), str(tmp_path / "half"), dtype="bfloat16"))
    half = loaded(tmp_path / "half")
    assert half.dtype == torch.bfloat16
    expected = {name: tensor.bfloat16() for name, tensor in policy.weight_update(merged=True).tensors}
    for name, tensor in half.state_dict().items():
        assert torch.equal(tensor, expected[name]), name

    # A base in bfloat16 written in float32 keeps the full precision of the adapter.
    loaded(base).bfloat16().save_pretrained(tmp_path / "short")
    policy.tokenizer.save_pretrained(tmp_path / "short")
    short = adapter_of(tmp_path / "short", tmp_path / "other")
    merge_adapter(MergeConfig(str(tmp_path / "other"), str(tmp_path / "long"), dtype="float32"))
    assert torch.allclose(logits(loaded(tmp_path / "long")), logits(short.model), atol=1e-4)


def test_a_base_model_that_moved_can_be_specified(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "before")
    policy = adapter_of(tmp_path / "before", tmp_path / "adapter")
    (tmp_path / "before").rename(tmp_path / "after")
    adapter, output = str(tmp_path / "adapter"), str(tmp_path / "merged")
    with pytest.raises(CommandError, match="set its current location with --base"):
        commands.merge([adapter, "--output", output])
    assert commands.merge([adapter, "--output", output, "--base", str(tmp_path / "after")]) == 0
    assert torch.allclose(logits(loaded(tmp_path / "merged")), logits(policy.model), atol=1e-4)


def test_an_invalid_adapter_is_an_error_and_no_output_is_left(base: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter_of(base, adapter)
    file = tmp_path / "file"
    file.write_text("")
    other = make_tiny_model(tmp_path / "other", hidden_size=64, num_heads=2)
    torn, odd, poisoned = (shutil.copytree(adapter, tmp_path / name) for name in ("torn", "odd", "poisoned"))
    weights = torn / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    (odd / TRAINED_ON).write_text(json.dumps({"dtype": "float3"}))
    tensors = load_file(poisoned / "adapter_model.safetensors")
    save_file({name: tensor * float("nan") for name, tensor in tensors.items()}, poisoned / "adapter_model.safetensors")
    before = sorted(tmp_path.iterdir())
    for words, named in (
        ([str(base)], "a full model, which needs no merging"),
        ([str(tmp_path / "nowhere")], "no such folder"),
        ([str(tmp_path)], "it contains no adapter_config.json"),
        ([str(adapter), "--base", str(other)], "check that it is its base"),
        ([str(torn)], "cannot be merged"),
        ([str(poisoned)], "cannot be merged"),
        ([str(odd)], "was not written by rllm-gym"),
        ([str(adapter), "--nf4"], "is not marked as trained on an NF4 base"),
    ):
        with pytest.raises(CommandError, match=named):
            commands.merge([*words, "--output", str(tmp_path / "merged")])
    with pytest.raises(CommandError, match="exists already"):
        commands.merge([str(adapter), "--output", str(other)])
    with pytest.raises(CommandError, match="cannot be written"):
        commands.merge([str(adapter), "--output", str(file / "merged")])
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("change", ["lacks", "has unexpected"])
def test_an_incomplete_adapter_is_an_error(base: Path, tmp_path: Path, change: str) -> None:
    """PEFT only warns, and the missing part would silently be left out of the merged model."""
    adapter_of(base, tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = load_file(file)
    some = next(iter(tensors))
    if change == "lacks":
        del tensors[some]
    else:
        tensors[some.replace("layers.0", "layers.9")] = tensors[some].clone()
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=change):
        merge_adapter(MergeConfig(str(tmp_path / "adapter"), str(tmp_path / "merged")))
    assert not (tmp_path / "merged").exists()
    with pytest.raises(ConfigError, match=change):  # as the start of a run, too
        Policy(ModelConfig(str(tmp_path / "adapter"), "full"))


def test_extra_files_of_a_base_model_do_not_prevent_saving(base: Path, tmp_path: Path) -> None:
    """Several chat templates are in a separate folder; generation settings may be invalid for saving."""
    adapter_of(base, tmp_path / "adapter")
    odd = shutil.copytree(base, tmp_path / "odd")
    settings = json.loads((odd / "generation_config.json").read_text())
    kept = {name: value for name, value in settings.items() if name.endswith("_token_id")}
    (odd / "generation_config.json").write_text(json.dumps({**settings, "do_sample": False, "temperature": 0.7}))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "adapter")
    tokenizer.chat_template = {"default": tokenizer.chat_template, "tool_use": "{{ messages }}"}
    tokenizer.save_pretrained(tmp_path / "adapter")
    merged = merge_adapter(MergeConfig(str(tmp_path / "adapter"), str(tmp_path / "merged"), base=str(odd)))
    assert AutoTokenizer.from_pretrained(merged.output).chat_template.keys() == {"default", "tool_use"}
    written = json.loads((merged.output / "generation_config.json").read_text())
    assert kept.items() <= written.items()
    assert "temperature" not in written
