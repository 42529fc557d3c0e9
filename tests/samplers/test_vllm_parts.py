"""The parts of the vLLM samplers that need no engine: adapter files, probes, order of weight syncs, scratch folders."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from rllm_gym.samplers import Probe, SamplerError, WeightUpdate
from rllm_gym.samplers.vllm import temporary_folder
from rllm_gym.samplers.vllm.adapter import max_rank, write_adapter
from rllm_gym.samplers.vllm.checkpoint_files import checked, tensor_shapes, write_checkpoint
from rllm_gym.samplers.vllm.read_write_lock import ReadWriteLock
from rllm_gym.samplers.vllm.server_api import ServerApi, ServerLost
from rllm_gym.samplers.vllm.weight_probe import compare


def update_of(modules: dict[str, int], seed: int = 0, name: str = "", **config: Any) -> WeightUpdate:
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for module, rank in modules.items():
        for part, shape in (("lora_A", (rank, 6)), ("lora_B", (4, rank))):
            full_name = f"base_model.model.{module}.{part}{name}.weight"
            tensors.append((full_name, torch.randn(shape, generator=generator)))
    return WeightUpdate(tensors, "lora", {"r": 4, "lora_alpha": 8} | config)


@settings(max_examples=30, deadline=None)
@given(
    ranks=st.lists(st.integers(1, 8), min_size=1, max_size=3),
    alphas=st.lists(st.integers(1, 64), min_size=3, max_size=3),
    rank_stabilised=st.booleans(),
    name=st.sampled_from(["", ".default"]),
)
def test_vllm_computes_the_same_as_peft_from_the_adapter_file(
    tmp_path_factory: pytest.TempPathFactory, ranks: list[int], alphas: list[int], rank_stabilised: bool, name: str
) -> None:
    """vLLM: ``lora_alpha / r * B @ A`` with the file's one alpha and r. PEFT: an alpha and a rank for each module."""
    modules = {f"model.layers.{layer}.self_attn.q_proj": rank for layer, rank in enumerate(ranks)}
    patterns = {f"layers.{layer}.self_attn.q_proj": alpha for layer, alpha in enumerate(alphas)}
    update = update_of(modules, name=name, alpha_pattern=patterns, use_rslora=rank_stabilised)
    folder = tmp_path_factory.mktemp("adapter") / "written"
    write_adapter(update, folder, rank=8)
    config = json.loads((folder / "adapter_config.json").read_text())
    written = load_file(folder / "adapter_model.safetensors")
    original_tensors = dict(update.tensors)
    for (module, rank), alpha in zip(modules.items(), alphas, strict=False):
        down, up = (
            np.asarray(original_tensors[f"base_model.model.{module}.lora_{side}{name}.weight"], np.float64)
            for side in "AB"
        )
        expected = alpha / (math.sqrt(rank) if rank_stabilised else rank) * up @ down
        file_down, file_up = (
            np.asarray(written[f"base_model.model.{module}.lora_{side}.weight"], np.float64) for side in "AB"
        )
        scale = config["lora_alpha"] / config["r"]
        np.testing.assert_allclose(scale * file_up @ file_down, expected, rtol=1e-5, atol=1e-6)
    assert config["r"] == max(ranks)


def test_adapters_that_vllm_would_get_wrong_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    q = "model.layers.0.self_attn.q_proj"
    complete = update_of({q: 4})
    cases = [
        (WeightUpdate(complete.tensors, "lora"), "lora_config"),
        (update_of({q: 4}, use_dora=True), "DoRA"),
        (update_of({q: 9}), "rank 9"),
        (WeightUpdate(list(complete.tensors)[:1], "lora", {"r": 4}), "needs lora_A and lora_B"),
        (WeightUpdate([("base_model.model.lm_head.weight", torch.ones(2, 2))], "lora", {"r": 4}), "modules_to_save"),
        (WeightUpdate([], "lora", {"r": 4}), "no tensors"),
    ]
    for update, message in cases:
        with pytest.raises(ValueError, match=message):
            write_adapter(update, folder, rank=8)
    assert not folder.exists()


def test_the_lora_rank_is_rounded_up_to_a_supported_one() -> None:
    assert [max_rank(rank) for rank in (0, 1, 2, 8, 9, 100, 512)] == [1, 1, 8, 8, 16, 128, 512]
    with pytest.raises(ValueError, match="lora_rank=513"):
        max_rank(513)


def test_a_probe_distinguishes_rounding_from_other_weights() -> None:
    probe = Probe((1, 2, 3), (-1.0, -2.0))
    compare(probe, [-1.00005, -2.0], 1e-4, "now")
    for wrong in ([-1.0002, -2.0], [-1.0, math.nan], [-math.inf, -2.0]):
        with pytest.raises(SamplerError, match="stale adapter or weights now"):
            compare(probe, wrong, 1e-4, "now")
    compare(Probe((1, 2), (-3000.0,)), [-3000.02], 1e-4, "where logits are large")
    for ids, logprobs in [((1,), ()), ((1, 2), ()), ((1, 2), (-1.0, -1.0))]:
        with pytest.raises(ValueError, match="probe of"):
            Probe(ids, logprobs)


def test_full_weights_are_checked_against_the_models_files(tmp_path: Path) -> None:
    tensors = {"embed.weight": torch.ones(5, 3), "norm.weight": torch.ones(3)}
    save_file(tensors, tmp_path / "model.safetensors")
    shapes = tensor_shapes(tmp_path)
    assert shapes == {"embed.weight": (5, 3), "norm.weight": (3,)}
    tied = [*tensors.items(), ("lm_head.weight", tensors["embed.weight"])]
    assert dict(checked(tied, shapes, tied=True)).keys() == tensors.keys()
    with pytest.raises(ValueError, match="lm_head"):
        checked(tied, shapes, tied=False)
    with pytest.raises(ValueError, match="lacks 1 of 2"):
        checked(list(tensors.items())[:1], shapes, tied=True)
    stream = checked(iter(list(tensors.items())[:1]), shapes, tied=True)
    assert next(stream)[0] == "embed.weight"  # what is made while it is read is checked as it passes
    with pytest.raises(ValueError, match="lacks 1 of 2"):
        next(stream)


def test_full_weights_are_written_atomically_in_files_of_bounded_size(tmp_path: Path) -> None:
    tensors = {f"layer.{number}": torch.full((10,), float(number)) for number in range(5)}
    write_checkpoint(iter(tensors.items()), tmp_path / "new", file_bytes=80)
    files = sorted((tmp_path / "new").iterdir())
    assert len(files) == 3
    read = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())

    def failing_stream() -> Any:
        yield "layer.0", tensors["layer.0"]
        raise ValueError("out of layers")

    with pytest.raises(ValueError, match="out of layers"):
        write_checkpoint(failing_stream(), tmp_path / "half", file_bytes=1)
    assert not (tmp_path / "half").exists()


def test_weight_syncs_wait_for_running_requests_and_block_new_ones() -> None:
    async def scenario() -> list[str]:
        gate, output, done = ReadWriteLock(), [], asyncio.Event()

        async def entered() -> None:
            return None

        async def sample(name: str) -> None:
            async with gate.read(entered):
                output.append(f"{name} in")
                await done.wait()
                output.append(f"{name} out")

        async def sync() -> None:
            async with gate.write():
                output.append("sync")

        tasks = [asyncio.create_task(work) for work in (sample("a"), sample("b"), sync(), sample("c"))]
        for _ in range(5):
            await asyncio.sleep(0)
        assert output == ["a in", "b in"]
        done.set()
        await asyncio.gather(*tasks)
        return output

    output = asyncio.run(asyncio.wait_for(scenario(), 200))
    assert output[-3:] == ["sync", "c in", "c out"]


def test_only_folders_of_dead_owners_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary_folder, "_MEMORY", tmp_path)
    monkeypatch.setattr(temporary_folder.tempfile, "gettempdir", lambda: str(tmp_path))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left, kept, foreign = (
        tmp_path / name
        for name in (f"rllm-gym-vllm-{dead.pid}-x", f"rllm-gym-vllm-{os.getppid()}-x", "rllm-gym-vllm-notes")
    )
    for folder in (left, kept, foreign):
        folder.mkdir()
    mine = temporary_folder.private_folder()
    assert mine.stat().st_mode & 0o077 == 0
    assert str(os.getpid()) in mine.name
    assert not left.exists()
    assert kept.exists()
    assert foreign.exists()
    if not (child := os.fork()):
        try:
            temporary_folder.remove_private_folder(mine)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert mine.exists(), "a forked child removed the folder of its parent"
    temporary_folder.remove_private_folder(mine)
    assert not mine.exists()


def test_the_samplers_are_imported_only_when_used() -> None:
    code = (
        "import rllm_gym.samplers, sys; assert not {'torch', 'vllm', 'aiohttp'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=250)


def test_a_closed_connection_is_reported_as_a_lost_server(tmp_path: Path) -> None:
    """One request finds the server dead and hangs up; the others ask about it at the same moment."""

    async def ask() -> None:
        api = ServerApi(tmp_path / "socket")
        await api.close()
        assert not await api.healthy()
        with pytest.raises(ServerLost, match="connection was closed"):
            await api.complete("model", [1], {}, 1.0)

    asyncio.run(ask())
