"""Measure training on a GPU: time per update by tuning and layout, beside TRL; rollout speed, peak memory, and MFU.

    python -m benchmarks.gpu --shape 0.5b 1.5b 7b [--tunings lora qlora full] [--write]
    python -m benchmarks.gpu --shape tiny --device cpu      # takes seconds; run in CI

If TRL can be imported, the update of its ``GRPOTrainer`` is measured on the same sequences, with several numbers of
sequences per forward pass, of which the fastest counts.

The models have the shapes of Qwen2.5-0.5B, -1.5B and -7B and random weights, created here: nothing is downloaded. A
batch is ``prompts`` x ``group`` sequences, those of a group with the same prompt. *Sequence tokens* are counted as if
each sequence were computed alone, so that layouts can be compared; *computed tokens* are those processed by the model.

MFU is the number of floating-point operations of the update over its time and the machine's peak. Operations: per
weight and token 2 in the forward pass, 2 in the backward pass through a frozen weight, 4 through a trained one; in
attention 12 per layer, width and attended pair; recomputation is not counted. The peak is taken from the data sheet
for the GPUs in ``PEAKS`` (dense bfloat16), and from a measured matrix product for other devices.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.util
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import torch
import transformers
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.utils.logging import disable_progress_bar

from rllm_gym.core import TokenSequence
from rllm_gym.samplers import SamplingParams, SamplingRequest, TorchSampler
from trainers.algorithms.losses import clipped_surrogate
from trainers.batching import MicroBatch, Row
from trainers.batching.cost_model import CostModel
from trainers.batching.layout import Layout, fill, layout_tokens, pad
from trainers.batching.microbatch import build_micro_batches
from trainers.batching.prefix_tree import PrefixTrees, SortedRows, build_prefix_trees
from trainers.config import LoraConfig, LoraModelConfig, ModelConfig, OptimizerConfig
from trainers.learner import Learner
from trainers.model import Policy, TokenOutputs
from trainers.tiny_model import make_tiny_model

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Shape:
    """A model's dimensions, and the batch it is measured with."""

    sizes: dict[str, Any]
    prompts: int
    group: int
    prompt: int
    completion: int
    tokens_per_microbatch: int


SHAPES = {
    "tiny": Shape(
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 128,
            "vocab_size": 1024,
            "tie_word_embeddings": True,
        },
        prompts=2,
        group=4,
        prompt=96,
        completion=16,
        tokens_per_microbatch=2048,
    ),
    "0.5b": Shape(
        {
            "hidden_size": 896,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "intermediate_size": 4864,
            "vocab_size": 151_936,
            "tie_word_embeddings": True,
        },
        prompts=16,
        group=8,
        prompt=1024,
        completion=512,
        tokens_per_microbatch=32_768,
    ),
    "1.5b": Shape(
        {
            "hidden_size": 1536,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "intermediate_size": 8960,
            "vocab_size": 151_936,
            "tie_word_embeddings": True,
        },
        prompts=8,
        group=8,
        prompt=1024,
        completion=512,
        tokens_per_microbatch=16_384,
    ),
    "7b": Shape(
        {
            "hidden_size": 3584,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "intermediate_size": 18_944,
            "vocab_size": 152_064,
            "tie_word_embeddings": False,
        },
        prompts=8,
        group=8,
        prompt=1024,
        completion=512,
        tokens_per_microbatch=16_384,
    ),
}

TUNINGS = ["lora", "qlora", "full"]

# Dense bfloat16, operations per second, by the name of the device.
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "RTX 4090": 165e12}


@dataclass(frozen=True)
class UpdateRow:
    """One layout of one tuning: seconds per update, tokens, operations, bytes."""

    shape: str
    tuning: str
    layout: str
    seconds: float
    sequence_tokens: int
    computed_tokens: int
    mfu: float
    peak_bytes: int


def make_model(folder: Path, shape: Shape, device: torch.device) -> Path:
    """Save random weights in bfloat16 (float32 on a CPU) with a tokenizer, as a Hugging Face folder."""
    make_tiny_model(folder)  # for its tokenizer; the weights are replaced
    tokenizer_ids = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": 0}
    config = Qwen2Config(**shape.sizes, **tokenizer_ids, max_position_embeddings=32_768, rope_theta=1e6)
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = Qwen2ForCausalLM(config)
    model.to(torch.bfloat16 if device.type == "cuda" else torch.float32).save_pretrained(folder)
    return folder


def rows_of(shape: Shape, vocabulary: int, seed: int = 0) -> list[Row]:
    rng = random.Random(seed)
    rows = []
    for _ in range(shape.prompts):
        prompt = [rng.randrange(vocabulary) for _ in range(shape.prompt)]
        for _ in range(shape.group):
            sampled = [rng.randrange(vocabulary) for _ in range(shape.completion)]
            sequence = TokenSequence(
                ids=(*prompt, *sampled),
                mask=(0,) * len(prompt) + (1,) * len(sampled),
                logprobs=(0.0,) * len(prompt) + (-11.0,) * len(sampled),
                versions=(-1,) * len(prompt) + (0,) * len(sampled),
                rewards=(0.0,) * (len(prompt) + len(sampled)),
                turns=(-1,) * len(prompt) + (0,) * len(sampled),
            )
            rows.append(Row(sequence, {"adv": torch.randn(len(sampled)).double().numpy()}))
    return rows


def layouts_of(rows: Sequence[Row], tokens: int, costs: CostModel) -> dict[str, list[Layout]]:
    """Return the three layouts of the same rows."""
    together = SortedRows.of(rows)
    alone = [build_prefix_trees(together.part(place, place + 1), costs.is_worth_sharing) for place in range(len(rows))]
    return {
        "padded": pad(torch.tensor([len(row.sequence) for row in rows]).numpy(), range(len(rows)), tokens, costs),
        "packed": fill(alone, tokens),
        "prefix tree": fill(_by_prompt(rows, costs), tokens),
    }


def _by_prompt(rows: Sequence[Row], costs: CostModel) -> list[PrefixTrees]:
    """Return the prefix tree of each group: here the sequences of a group share only their prompt."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(row.sequence.ids[: row.sequence.mask.index(1)], []).append(index)
    return [build_prefix_trees(SortedRows.of(rows, members), costs.is_worth_sharing) for members in groups.values()]


def operations(policy: Policy, layouts: Sequence[Layout], sampled: int) -> float:
    """Return the floating-point operations of an update that computes these layouts."""
    config = policy.model.config.get_text_config()
    head = config.vocab_size * config.hidden_size
    trained = sum(parameter.numel() for _, parameter in policy.parameters)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width, keys = config.num_attention_heads * size, config.num_key_value_heads * size
    layer = config.hidden_size * (2 * width + 2 * keys) + 3 * config.hidden_size * config.intermediate_size
    tokens = sum(layout_tokens(layout) for layout in layouts)
    pairs = 0.0
    for layout in layouts:
        if isinstance(layout, PrefixTrees):
            pairs += sum((stop - start) * ((stop - start + 1) / 2 + end - stop) for start, stop, end in layout.spans())
        else:
            pairs += len(layout.sequences) * layout.length * (layout.length + 1) / 2
    if trained > config.num_hidden_layers * layer:  # all of it, with the head
        linear = 6 * tokens * config.num_hidden_layers * layer + 6 * sampled * head
    else:
        linear = tokens * (4 * config.num_hidden_layers * layer + 6 * trained) + 4 * sampled * head
    return float(linear + 12 * config.num_hidden_layers * width * pairs)


class Machine:
    """The device: its name, its clock, its peak speed and its memory."""

    def __init__(self, name: str) -> None:
        self.device = torch.device(name)
        self.cuda = self.device.type == "cuda"
        self.name = torch.cuda.get_device_name(self.device) if self.cuda else f"CPU {platform.machine()}"
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        known = [peak for key, peak in PEAKS.items() if key in self.name]
        self.peak_source = "data sheet" if known else "measured product"
        self.peak = known[0] if known else self._measure_peak()

    def time(self, work: Callable[[], object]) -> float:
        """Return seconds: wall-clock time on a GPU, including synchronization; CPU time on a CPU."""
        if not self.cuda:
            began = time.process_time()
            work()
            return time.process_time() - began
        torch.cuda.synchronize()
        wall = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return time.perf_counter() - wall

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """Return the peak memory of the work: allocated on a GPU; resident in the process on a CPU."""
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
            work()
            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated()
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
        work()
        status = Path("/proc/self/status").read_text().splitlines()
        [line] = [line for line in status if line.startswith("VmHWM:")]
        return 1024 * int(line.split()[1])

    def forget(self) -> None:
        """Release the memory of the last model."""
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()

    def _measure_peak(self) -> float:
        size = 8192 if self.cuda else 1024
        a = torch.randn(size, size, device=self.device, dtype=self.dtype)
        seconds = min(self.time(lambda: a @ a) for _ in range(5))
        return float(2 * size**3 / seconds)


def make_policy(machine: Machine, name: str, folder: Path, tuning: str) -> Policy:
    options: dict[str, Any] = {
        "path": str(folder),
        "tuning": tuning,
        "dtype": "bfloat16" if machine.cuda else "float32",
        "device": str(machine.device),
        "gradient_checkpointing": name == "7b",
    }
    if tuning == "full":
        return Policy(ModelConfig(**options))
    return Policy(LoraModelConfig(**options, lora=LoraConfig(rank=16, alpha=32.0)))


def measure_updates(
    machine: Machine, name: str, shape: Shape, folder: Path, tuning: str, rounds: int
) -> list[UpdateRow]:
    policy = make_policy(machine, name, folder, tuning)
    options = OptimizerConfig(lr=1e-5, tokens_per_microbatch=shape.tokens_per_microbatch)
    learner = Learner(policy, options, steps=1000)
    rows = rows_of(shape, shape.sizes["vocab_size"])
    sampled = sum(row.num_sampled for row in rows)
    every = sum(len(row.sequence) for row in rows)
    measured = []
    layouts = layouts_of(rows, shape.tokens_per_microbatch, policy.costs)
    if not policy.shares_prompts:
        raise SystemExit(f"{name}: this model does not support tree attention, so there is nothing to compare")
    for layout, planned in layouts.items():
        batches = build_micro_batches(rows, planned)

        def update(batches: Sequence[MicroBatch] = batches) -> None:
            learner.optimizer_step(0, batches, _loss)

        update()  # warm-up: compiles, allocates
        peak = machine.peak_bytes(update)
        seconds = statistics.median(machine.time(update) for _ in range(rounds))
        speed = operations(policy, planned, sampled) / seconds
        computed = sum(layout_tokens(one) for one in planned)
        measured.append(UpdateRow(name, tuning, layout, seconds, every, computed, speed / machine.peak, peak))
        print(row_of(measured[-1]), flush=True)
    return measured


def _loss(outputs: TokenOutputs, batch: MicroBatch) -> torch.Tensor:
    loss_N, _ = clipped_surrogate(outputs.logp_N, batch.sampler_logp_N, batch.targets["adv"], low=0.2, high=0.28)
    return (batch.weight_N * loss_N).sum()


def measure_trl(machine: Machine, name: str, shape: Shape, folder: Path, rounds: int) -> list[UpdateRow]:
    """Measure TRL's update with LoRA on the same sequences: ``compute_loss``, backward, clip, step. Return the fastest
    of several numbers of sequences at a time; nothing if memory ran out with all of them.
    """
    import trl
    from datasets import Dataset
    from peft import LoraConfig as PeftConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rows = rows_of(shape, shape.sizes["vocab_size"])
    ids = torch.tensor([row.sequence.ids for row in rows], device=machine.device)
    sampled = torch.tensor(len(rows) * shape.completion)
    measured: list[UpdateRow] = []
    for size in sorted({min(size, len(rows)) for size in (8, 16, 32)}):
        config = trl.GRPOConfig(
            output_dir=str(folder / "trl"),
            per_device_train_batch_size=size,
            gradient_accumulation_steps=len(rows) // size,
            num_generations=shape.group,
            max_completion_length=shape.completion,
            learning_rate=1e-5,
            beta=0.0,
            loss_type="dapo",
            epsilon_high=0.28,
            bf16=machine.cuda,
            use_cpu=not machine.cuda,
            gradient_checkpointing=name == "7b",
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = trl.GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype=machine.dtype),
            processing_class=AutoTokenizer.from_pretrained(folder),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config,
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "x"}]}] * 64),
            peft_config=PeftConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        )
        trainer.create_optimizer_and_scheduler(1000)
        trainer.current_gradient_accumulation_steps = len(rows) // size
        model = trainer.model_wrapped.to(machine.device).train()
        batches = [
            {
                "prompt_ids": part[:, : shape.prompt],
                "prompt_mask": torch.ones_like(part[:, : shape.prompt]),
                "completion_ids": part[:, shape.prompt :],
                "completion_mask": torch.ones_like(part[:, shape.prompt :]),
                "advantages": torch.randn(size, device=machine.device),
                "num_items_in_batch": sampled,
            }
            for part in ids.split(size)
        ]

        def update(trainer: Any = trainer, model: Any = model, batches: Sequence[dict[str, Any]] = batches) -> None:
            for batch in batches:
                with trainer.compute_loss_context_manager():
                    loss = trainer.compute_loss(model, batch)
                trainer.accelerator.backward(loss)
            trainer.accelerator.clip_grad_norm_(model.parameters(), 1.0)
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()

        try:
            update()
            peak = machine.peak_bytes(update)
            seconds = statistics.median(machine.time(update) for _ in range(rounds))
        except torch.cuda.OutOfMemoryError:
            print(f"TRL, {size} sequences at a time: out of memory", flush=True)
        else:
            layout = f"TRL, {size} at a time"
            measured.append(UpdateRow(name, "lora", layout, seconds, ids.numel(), ids.numel(), 0.0, peak))
            print(row_of(measured[-1]), flush=True)
        del trainer, model, batches, update
        machine.forget()
    return sorted(measured, key=lambda row: row.seconds)[:1]


def measure_rollout(machine: Machine, shape: Shape, folder: Path) -> float:
    """Return the sampled tokens per second of the embedded sampler, with the prompts of a group shared."""
    rng = random.Random(1)
    params = SamplingParams(max_tokens=shape.completion)
    vocabulary = shape.sizes["vocab_size"]
    prompts = [tuple(rng.randrange(vocabulary) for _ in range(shape.prompt)) for _ in range(shape.prompts)]
    requests = [SamplingRequest(prompt, params, seed=member) for prompt in prompts for member in range(shape.group)]

    async def sample(sampler: TorchSampler) -> int:
        completions = await sampler.sample(requests)
        return sum(len(completion.ids) for completion in completions)

    async def run() -> float:
        batch = len(requests)
        sampler = TorchSampler(
            str(folder), max_batch=batch, device=machine.device, dtype=machine.dtype, eos_token_ids=()
        )
        async with sampler:
            await sampler.sample([replace(requests[0], params=SamplingParams(max_tokens=4))])  # warm-up
            began = time.perf_counter()
            tokens = await sample(sampler)
            return tokens / (time.perf_counter() - began)

    return asyncio.run(run())


HEAD = [
    "| shape | tuning | layout | update s | sequence tok/s | computed tok/s | MFU | peak memory |",
    "|---|---|---|---|---|---|---|---|",
]


def row_of(row: UpdateRow) -> str:
    return (
        f"| {row.shape} | {row.tuning} | {row.layout} | {row.seconds:.3f} | {row.sequence_tokens / row.seconds:,.0f} "
        f"| {row.computed_tokens / row.seconds:,.0f} | {f'{row.mfu:.1%}' if row.mfu else '-'} "
        f"| {row.peak_bytes / 2**30:.2f} GiB |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", nargs="+", choices=list(SHAPES), default=["0.5b", "1.5b", "7b"])
    parser.add_argument("--tunings", nargs="+", choices=TUNINGS, default=TUNINGS)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 …, or cpu")
    parser.add_argument("--rounds", type=int, default=5, help="number of timed updates; the median is reported")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/gpu-MACHINE.md")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder that --write writes to")
    options = parser.parse_args(arguments)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("no CUDA device found; use --device cpu --shape tiny to try the script")
    disable_progress_bar()
    machine = Machine(options.device)
    print(f"{machine.name}: peak {machine.peak / 1e12:.2f} TFLOP/s ({machine.peak_source})")
    print("\n".join(HEAD), flush=True)
    updates: list[UpdateRow] = []
    rollouts: list[str] = []
    for name in options.shape:
        shape = SHAPES[name]
        with tempfile.TemporaryDirectory() as folder:
            make_model(Path(folder), shape, machine.device)
            for tuning in options.tunings:
                if tuning == "full" and name == "7b":
                    continue  # weights, gradients and states of the optimizer alone take 122 GB
                updates += measure_updates(machine, name, shape, Path(folder), tuning, options.rounds)
                machine.forget()
            if importlib.util.find_spec("trl"):
                updates += measure_trl(machine, name, shape, Path(folder), options.rounds)
            speed = measure_rollout(machine, shape, Path(folder))
            machine.forget()
        sequences = shape.prompts * shape.group
        rollouts.append(
            f"{name}: {speed:,.0f} sampled tokens per second, {sequences} replies of {shape.completion} to "
            f"{shape.prompts} prompts of {shape.prompt} at once"
        )
        print(f"rollout, {rollouts[-1]}", flush=True)
    if options.write:
        write_results(machine, updates, rollouts, options)
    return 0


def write_results(machine: Machine, updates: list[UpdateRow], rollouts: list[str], options: argparse.Namespace) -> None:
    slug = "-".join("".join(letter if letter.isalnum() else " " for letter in machine.name.lower()).split())
    batches = "; ".join(
        f"{name}: {shape.prompts} x {shape.group} sequences, {shape.prompt} + {shape.completion} tokens, micro-batches "
        f"of {shape.tokens_per_microbatch:,}"
        for name in options.shape
        for shape in [SHAPES[name]]
    )
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / f"gpu-{slug}.md").write_text(
        f"# Training on {machine.name}\n\n"
        + "\n".join([*HEAD, *map(row_of, updates)])
        + "\n\nRollout, embedded sampler:\n\n"
        + "\n".join(f"- {words}" for words in rollouts)
        + f"\n\n{batches}. LoRA rank 16 on all linear layers; the 7B shape with gradient checkpointing. Medians of "
        f"{options.rounds} updates, {'wall-clock' if machine.cuda else 'CPU'} time. Peak "
        f"{machine.peak / 1e12:.2f} TFLOP/s ({machine.peak_source}). torch {torch.__version__}, transformers "
        f"{transformers.__version__}, Python "
        f"{platform.python_version()}.\n\nReproduce: "
        f"`python -m benchmarks.gpu --shape {' '.join(options.shape)} --write`\n"
    )


if __name__ == "__main__":
    sys.exit(main())
