"""The GPU benchmark with a tiny shape on a CPU, so that errors in the script are found before it runs on a rented
machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu import SHAPES, TUNINGS, Machine, layouts_of, main, make_model, operations, rows_of
from trainers.batching.layout import layout_tokens
from trainers.batching.microbatch import build_micro_batches
from trainers.config import ModelConfig
from trainers.model import Policy

TINY = SHAPES["tiny"]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    folder = make_model(tmp_path_factory.mktemp("model"), TINY, torch.device("cpu"))
    return Policy(ModelConfig(path=str(folder), tuning="lora", device="cpu"))


@pytest.mark.long
def test_the_script_measures_every_layout_of_both_tunings_and_writes_them(tmp_path: Path) -> None:
    assert main(["--shape", "tiny", "--device", "cpu", "--rounds", "1", "--write", "--results", str(tmp_path)]) == 0
    [written] = tmp_path.glob("gpu-cpu-*.md")
    text = written.read_text()
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| tiny")]
    assert [(row[1].strip(), row[2].strip()) for row in rows] == [
        (tuning, layout) for tuning in TUNINGS for layout in ("padded", "packed", "prefix tree")
    ]
    assert all(float(row[3]) > 0 and float(row[6].strip().rstrip("%")) > 0 for row in rows)
    assert "sampled tokens per second" in text


def test_only_the_prefix_tree_computes_a_prompt_once(policy: Policy) -> None:
    rows = rows_of(TINY, TINY.sizes["vocab_size"])
    every = sum(len(row.sequence) for row in rows)
    layouts = layouts_of(rows, TINY.tokens_per_microbatch, policy.costs)
    computed = {name: sum(layout_tokens(layout) for layout in planned) for name, planned in layouts.items()}
    assert computed["padded"] == computed["packed"] == every
    assert computed["prefix tree"] == TINY.prompts * (TINY.prompt + TINY.group * TINY.completion)


def test_operations_are_those_that_torch_counts(policy: Policy) -> None:
    """Compare with an independent operation count of the same update."""
    rows = rows_of(TINY, TINY.sizes["vocab_size"])
    planned = layouts_of(rows, TINY.tokens_per_microbatch, policy.costs)["padded"]
    with FlopCounterMode(display=False) as counter:
        for batch in build_micro_batches(rows, planned):
            policy.outputs(batch).logp_N.sum().backward()
    ours = operations(policy, planned, sum(row.num_sampled for row in rows))
    # Theirs counts every pair of attention, the head's recomputed logits, and no gradient into the embeddings.
    assert 0.8 < ours / counter.get_total_flops() < 1.25


def test_without_a_gpu_the_error_names_the_cpu_options() -> None:
    if torch.cuda.is_available():
        assert Machine("cuda").peak > 1e12
        return
    with pytest.raises(SystemExit, match="--device cpu --shape tiny"):
        main(["--shape", "tiny"])
