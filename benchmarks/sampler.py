"""Compare tokens per second of the embedded sampler and of ``transformers.generate``: one turn, and eight turns.

    python benchmarks/sampler.py [--rounds 5] [--write]

Both run in this process, one after the other in every round, with one torch thread, on random models created here
(nothing is downloaded). Time is CPU time of the whole process, including the sampler's thread; the figure is the median
over the rounds. ``generate`` gets the whole batch at once, padded on the left, and for later turns the whole
conversation again, because it keeps no cache between calls; the sampler gets 64 requests per turn through its
asynchronous interface, and returns the log-probs that a trainer needs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rllm_gym.samplers import SamplingParams, SamplingRequest, TorchSampler

BATCH = 64
RESULTS = Path(__file__).parent / "results" / "sampler.md"


@dataclass(frozen=True)
class Workload:
    """Length range of the first prompt, number of turns, and tokens per turn: sampled, and added by the environment."""

    name: str
    prompt: tuple[int, int]
    turns: int
    new: int
    env_tokens: int
    goal: float


WORKLOADS = [
    Workload("one turn", (32, 96), 1, 64, 0, 1.3),
    Workload("eight turns", (192, 256), 8, 8, 48, 4.0),
]

MODELS = {
    "tiny: d 96, 2 layers": {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "vocab_size": 512},
    "small: d 256, 4 layers": {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "vocab_size": 2048,
    },
}


def build(settings: dict[str, int]) -> Any:
    torch.manual_seed(0)
    config = Qwen2Config(
        **settings,
        num_key_value_heads=settings["num_attention_heads"],
        intermediate_size=2 * settings["hidden_size"],
        max_position_embeddings=2048,
        eos_token_id=None,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config).eval()


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per byte: decoding is part of the measured time."""
    alphabet = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def prompts(workload: Workload, seed: int) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(256) for _ in range(rng.randint(*workload.prompt))) for _ in range(BATCH)]


def run_generate(model: Any, workload: Workload, seed: int) -> int:
    """Return the number of sampled tokens."""
    rng = random.Random(seed)
    histories = prompts(workload, seed)
    for _ in range(workload.turns):
        width = max(map(len, histories))
        ids = torch.tensor([[0] * (width - len(history)) + list(history) for history in histories])
        mask = torch.tensor([[0] * (width - len(history)) + [1] * len(history) for history in histories])
        with torch.inference_mode():
            output = model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=workload.new,
                pad_token_id=0,
            )
        replies = output[:, width:].tolist()
        histories = [
            (*history, *reply, *(rng.randrange(256) for _ in range(workload.env_tokens)))
            for history, reply in zip(histories, replies, strict=True)
        ]
    return BATCH * workload.turns * workload.new


async def run_sampler(sampler: TorchSampler, workload: Workload, seed: int) -> int:
    params = SamplingParams(max_tokens=workload.new)

    async def converse(number: int, history: tuple[int, ...]) -> None:
        rng = random.Random(seed * BATCH + number)
        name = f"{seed} {number}"
        for turn in range(workload.turns):
            [completion] = await sampler.sample([SamplingRequest(history, params, seed=seed + turn, conversation=name)])
            assert len(completion.ids) == workload.new
            history = (*history, *completion.ids, *(rng.randrange(256) for _ in range(workload.env_tokens)))
        await sampler.release(name)

    await asyncio.gather(*(converse(number, history) for number, history in enumerate(prompts(workload, seed))))
    return BATCH * workload.turns * workload.new


async def measure(rounds: int) -> list[str]:
    rows = [
        "| model | workload | sampler tok/CPU-s | deterministic | generate | ratio | goal |",
        "|---|---|---|---|---|---|---|",
    ]
    tokenizer = byte_tokenizer()
    for name, settings in MODELS.items():
        model = build(settings)
        async with (
            TorchSampler(model, tokenizer, eos_token_ids=(), num_threads=1) as sampler,
            TorchSampler(model, tokenizer, eos_token_ids=(), num_threads=1, deterministic=True) as fixed,
        ):
            for workload in WORKLOADS:
                speeds: dict[str, list[float]] = {"sampler": [], "fixed": [], "generate": []}
                for seed in range(rounds + 1):
                    for kind in speeds:
                        begin = time.process_time()
                        if kind == "generate":
                            tokens = run_generate(model, workload, seed)
                        else:
                            tokens = await run_sampler(sampler if kind == "sampler" else fixed, workload, seed)
                        if seed:  # the first round is a warm-up
                            speeds[kind].append(tokens / (time.process_time() - begin))
                median = {kind: statistics.median(values) for kind, values in speeds.items()}
                # Compared per round, so that load on the machine affects both alike.
                ratio = statistics.median(a / b for a, b in zip(speeds["sampler"], speeds["generate"], strict=True))
                rows.append(
                    f"| {name} | {workload.name} | {median['sampler']:,.0f} | {median['fixed']:,.0f} | "
                    f"{median['generate']:,.0f} | {ratio:.2f}x | {workload.goal}x |"
                )
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5, help="number of timed rounds; the median is reported")
    parser.add_argument("--write", action="store_true", help=f"write the table to {RESULTS.name}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = asyncio.run(measure(options.rounds))
    if options.write:
        loads = "; ".join(
            f"{w.name}: {BATCH} prompts of {w.prompt[0]}-{w.prompt[1]} tokens, {w.turns} x {w.new} sampled"
            + (f", {w.env_tokens} added per turn" if w.env_tokens else "")
            for w in WORKLOADS
        )
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(
            "# The embedded sampler against `transformers.generate`\n\n"
            + "\n".join(rows)
            + f"\n\n{loads}. Medians of {options.rounds} interleaved rounds, CPU time, one thread, float32. "
            f"torch {torch.__version__}, transformers {transformers.__version__}, {platform.machine()}, "
            f"{os.cpu_count()} cores (shared).\n\nReproduce: `python benchmarks/sampler.py --write`\n"
        )


if __name__ == "__main__":
    main()
