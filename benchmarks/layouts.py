"""Compare predicted and measured times of padded, packed and prefix-tree micro-batches on a CPU.

    python benchmarks/layouts.py [--rounds 5] [--models 0 1 2] [--write]

The cost model (``trainers.batching.cost_model``) chooses a layout from predictions. Here they are compared with CPU
times of forward and backward pass; the layouts alternate, and the minimum of the rounds counts. ``one padded`` is the
layout of a trainer without this optimization; ``dense mask`` is the prefix tree with a mask of all pairs in SDPA,
instead of attention by nodes. The exit status is 1 if a chosen layout took more than 10 % longer than the fastest of
the others.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rllm_gym.core import TokenSequence
from trainers.batching import MicroBatch, Row
from trainers.batching.layout import Layout, Padded, fill, layout_tokens, pad, plan_layouts, predict_seconds
from trainers.batching.microbatch import build_micro_batches
from trainers.batching.prefix_tree import SortedRows, build_prefix_trees
from trainers.config import LoraConfig, LoraModelConfig, ModelConfig
from trainers.model import Policy
from trainers.model.token_logprobs import token_logprobs
from trainers.tiny_model import make_tiny_model

RESULTS = Path(__file__).resolve().parent / "results" / "layouts.md"
BUDGET = 16384
SLACK = 1.1


@dataclass(frozen=True)
class Case:
    """Number of prompts, completions per prompt, tokens of a prompt, and range of completion lengths in tokens."""

    prompts: int
    group: int
    prompt: int
    completion: tuple[int, int]

    def __str__(self) -> str:
        low, high = self.completion
        return f"{self.prompts} x {self.group}, {self.prompt} + {low if low == high else f'{low}-{high}'}"


CASES = [
    Case(2, 8, 512, (64, 64)),
    Case(4, 8, 64, (16, 128)),
    Case(4, 8, 64, (128, 128)),
    Case(4, 8, 32, (16, 16)),
    Case(32, 1, 1, (16, 128)),
    Case(64, 1, 1, (8, 32)),
    Case(32, 1, 1, (63, 63)),
    Case(8, 1, 1, (20, 400)),
    Case(4, 1, 1, (511, 511)),
]
MODELS = [("lora", 96, 2), ("full", 96, 2), ("lora", 256, 4)]


def rows_of_case(case: Case, seed: int = 0) -> list[Row]:
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(case.prompts):
        prompt = rng.integers(10, 700, case.prompt).tolist()
        for _ in range(case.group):
            completion = rng.integers(10, 700, rng.integers(case.completion[0], case.completion[1] + 1)).tolist()
            mask = (0,) * len(prompt) + (1,) * len(completion)
            n = len(mask)
            zeros, marks = (0.0,) * n, tuple(m - 1 for m in mask)
            rows.append(Row(TokenSequence((*prompt, *completion), mask, zeros, marks, zeros, marks), {}))
    return rows


def layouts_of(rows: Sequence[Row], policy: Policy) -> dict[str, list[Layout]]:
    lengths, costs = np.array([len(row.sequence) for row in rows]), policy.costs
    longest_first = tuple(int(index) for index in np.argsort(-lengths, kind="stable"))
    return {
        "one padded": [Padded(longest_first, int(lengths.max()))],
        "padded": pad(lengths, range(len(rows)), BUDGET, costs),
        "packed": fill(
            [build_prefix_trees(SortedRows.of(rows, [index]), costs.is_worth_sharing) for index in range(len(rows))],
            BUDGET,
        ),
        "prefix tree": fill([build_prefix_trees(SortedRows.of(rows), costs.is_worth_sharing)], BUDGET),
        "chosen": plan_layouts(rows, tokens=BUDGET, costs=costs, share=True),
    }


def under_a_dense_mask(policy: Policy, batch: MicroBatch) -> torch.Tensor:
    """Return log-probs of a prefix tree computed by SDPA with a mask of all pairs."""
    model: Any = policy.model.get_base_model() if policy.adapted else policy.model
    layout: dict[str, Any] = {}
    if batch.end_BT is not None:
        column_T = torch.arange(batch.end_BT.shape[1])
        seen = (column_T[:, None] >= column_T) & (column_T[:, None] < batch.end_BT[:, None, :])
        layout = {"attention_mask": seen[:, None], "position_ids": batch.position_BT}
    hidden_BTD = model.base_model(input_ids=batch.ids_BT, use_cache=False, **layout).last_hidden_state
    target_N = batch.ids_BT[batch.row_N, batch.column_N]
    return token_logprobs(model, hidden_BTD[batch.row_N, batch.source_N], target_N)[0]


def seconds(policy: Policy, batches: Sequence[MicroBatch], *, dense: bool) -> float:
    start = time.process_time()
    for batch in batches:
        logp_N = under_a_dense_mask(policy, batch) if dense else policy.outputs(batch).logp_N
        (batch.weight_N * logp_N).sum().backward()  # type: ignore[no-untyped-call]
    policy.model.zero_grad(set_to_none=True)
    return time.process_time() - start


def measure(policy: Policy, case: Case, rounds: int) -> tuple[str, bool]:
    """Return a line of the table, and whether the choice was right."""
    rows = rows_of_case(case)
    layouts = layouts_of(rows, policy)
    batches = {name: build_micro_batches(rows, planned) for name, planned in layouts.items()}
    batches["dense mask"] = batches["prefix tree"]
    least = dict.fromkeys(batches, float("inf"))
    for number in range(rounds + 1):
        for name, created in batches.items():
            taken = seconds(policy, created, dense=name == "dense mask")
            if number:  # the first round is a warm-up
                least[name] = min(least[name], taken)
    cells = []
    for name, planned in layouts.items():
        forecast = sum(predict_seconds(layout, policy.costs) for layout in planned)
        tokens = sum(layout_tokens(layout) for layout in planned)
        cells.append(f"{1000 * least[name]:.0f} ({1000 * forecast:.0f}; {len(planned)} x, {tokens:,})")
    right = least["chosen"] <= SLACK * min(least.values())
    return " | ".join([str(case), *cells, f"{1000 * least['dense mask']:.0f}", "yes" if right else "NO"]), right


def write_results(lines: Sequence[str], rounds: int) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        "# Layouts of micro-batches on a CPU\n\nMilliseconds of forward and backward pass: measured (predicted; "
        "micro-batches, tokens with padding).\n\n| model | prompts x group, tokens | one padded | padded | packed "
        "| prefix tree | chosen | prefix tree with a dense mask | chosen within 10 % of the fastest |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
        + "\n".join(lines)
        + f"\n\nMinimum CPU time of {rounds} rounds, one thread, float32, {os.cpu_count()} shared cores, "
        f"{platform.machine()}, load at the end {os.getloadavg()[0]:.1f}. Reproduce: "
        "`python benchmarks/layouts.py --write`\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="number of timed rounds; the minimum is reported")
    parser.add_argument("--models", nargs="+", type=int, choices=range(len(MODELS)), help="which models, by number")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/layouts.md")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    lines, all_right = [], True
    chosen = range(len(MODELS)) if options.models is None else options.models
    for tuning, width, layers in (MODELS[number] for number in chosen):
        with tempfile.TemporaryDirectory() as folder:
            make_tiny_model(folder, hidden_size=width, num_layers=layers, num_heads=width // 32)
            lora = LoraModelConfig(folder, device="cpu", lora=LoraConfig(rank=16))
            policy = Policy(lora if tuning == "lora" else ModelConfig(folder, "full", device="cpu"))
        for case in CASES:
            line, right = measure(policy, case, options.rounds)
            all_right &= right
            lines.append(f"| {tuning}, {width} wide, {layers} layers | {line} |")
            print(lines[-1], flush=True)
    if options.write:
        write_results(lines, options.rounds)
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
