"""Each file of examples/algorithms is trained from the command line, and equals an implementation from its paper.

The oracles are plain Python: advantages from rewards, and the loss of a whole batch as a function of the log-probs. The
gradients are compared with finite differences of the latter.
"""

from __future__ import annotations

import ast
import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from echo_config import echo_config
from transformers import AutoModelForCausalLM

from rllm_gym.core import TokenSequence
from rllm_gym.engine import load_episodes
from trainers import commands
from trainers.algorithms import Algorithm, AlgorithmRun, PerToken, algorithm_options, make_algorithm
from trainers.batching import make_micro_batches, rows_of
from trainers.config_loading import write_yaml
from trainers.run.metrics import read_metrics
from trainers.samples import Sample, samples_of

FOLDER = Path(__file__).parents[2] / "examples" / "algorithms"

Values = list[list[float]]
"""Of each sequence, a number for each of its sampled tokens."""


@dataclass
class Batch:
    """The sequences of the samples that are trained on: their log-probs under the policy and the sampler, advantages,
    and the sample of each."""

    new: Values
    old: Values
    adv: Values
    sample: list[int]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def std(values: Sequence[float]) -> float:
    return math.sqrt(mean([(value - mean(values)) ** 2 for value in values]))


# Advantages: for each sample one number, from the rewards of the groups.


def by_group(samples: Sequence[Sample], value: Callable[[Sample], float]) -> list[list[float]]:
    """Return for each sample the values of its group."""
    return [[value(other) for other in samples if other.group_id == sample.group_id] for sample in samples]


def centred(samples: Sequence[Sample]) -> list[float]:
    groups = by_group(samples, lambda sample: sample.reward)
    return [sample.reward - mean(group) for sample, group in zip(samples, groups, strict=True)]


def differing(samples: Sequence[Sample]) -> list[bool]:
    """Return which samples are trained on by algorithms that compare within a group."""
    return [len(set(group)) > 1 for group in by_group(samples, lambda sample: sample.reward)]


def all_of(samples: Sequence[Sample]) -> list[bool]:
    return [True] * len(samples)


def maxrl(samples: Sequence[Sample]) -> list[float]:
    groups = by_group(samples, lambda sample: sample.reward)
    return [(s.reward - mean(g)) / mean(g) if mean(g) > 1e-3 else 0.0 for s, g in zip(samples, groups, strict=True)]


def lite_ppo(samples: Sequence[Sample]) -> list[float]:
    spread = std([sample.reward for sample, kept in zip(samples, differing(samples), strict=True) if kept])
    return [adv / (spread + 1e-6) for adv in centred(samples)]


def reinforce_pp_baseline(samples: Sequence[Sample]) -> list[float]:
    per_token = [
        adv
        for sample, adv, kept in zip(samples, centred(samples), differing(samples), strict=True)
        for _ in range(sample.num_sampled if kept else 0)
    ]
    return [(adv - mean(per_token)) / (std(per_token) + 1e-6) for adv in centred(samples)]


def gdpo(samples: Sequence[Sample]) -> list[float]:
    names = {name for sample in samples for name in sample.components}
    total = [0.0] * len(samples)
    for name in [*names, "rest"]:

        def value(sample: Sample, name: str = name) -> float:
            rest = sample.reward - sum(sample.components.values())
            return rest if name == "rest" else sample.components.get(name, 0.0)

        for index, (sample, group) in enumerate(zip(samples, by_group(samples, value), strict=True)):
            total[index] += (value(sample) - mean(group)) / (std(group) + 1e-6)
    return [(adv - mean(total)) / (std(total) + 1e-6) for adv in total]


# Losses: the value of each sampled token. ``at`` are the log-probs at which weights without gradient are computed.


def clip(batch: Batch, at: Values) -> Values:
    def loss(new: float, old: float, adv: float) -> float:
        ratio = math.exp(new - old)
        return -min(ratio * adv, min(max(ratio, 0.8), 1.28) * adv)

    return each(loss, batch.new, batch.old, batch.adv)


def dual_clip(batch: Batch, at: Values) -> Values:
    """Equation 5: max(min(ratio A, clip(ratio) A), c A) for A < 0."""
    return each(lambda loss, adv: min(loss, -3.0 * adv) if adv < 0 else loss, clip(batch, at), batch.adv)


def sapo(batch: Batch, at: Values) -> Values:
    def loss(new: float, old: float, adv: float) -> float:
        tau = 1.0 if adv > 0 else 1.05
        return -4 / tau / (1 + math.exp(-tau * (math.exp(new - old) - 1))) * adv

    return each(loss, batch.new, batch.old, batch.adv)


def icepop(batch: Batch, at: Values) -> Values:
    def loss(new: float, old: float, adv: float, then: float) -> float:
        return -math.exp(new - old) * adv if 0.5 <= math.exp(then - old) <= 5.0 else 0.0

    return each(loss, batch.new, batch.old, batch.adv, at)


def gmpo(batch: Batch, at: Values) -> Values:
    """The product of min(ratio A, clip(ratio) A) over the tokens, to the power of one over their number."""
    losses = []
    for new, old, adv in zip(batch.new, batch.old, batch.adv, strict=True):
        sign = 1.0 if adv[0] > 0 else -1.0
        product = 1.0
        for n, o in zip(new, old, strict=True):
            ratio = math.exp(n - o)
            product *= abs(min(ratio * sign, min(max(ratio, math.exp(-0.4)), math.exp(0.4)) * sign))
        losses.append([-adv[0] * product ** (1 / len(new))] * len(new))
    return losses


def luspo(batch: Batch, at: Values) -> Values:
    losses = []
    for new, old, adv in zip(batch.new, batch.old, batch.adv, strict=True):
        ratio = math.exp(mean(new) - mean(old))
        losses.append([-min(ratio * adv[0], min(max(ratio, 1 - 3e-4), 1 + 4e-4) * adv[0]) * len(new)] * len(new))
    return losses


def vespo(batch: Batch, at: Values) -> Values:
    losses = []
    for new, then, old, adv in zip(batch.new, at, batch.old, batch.adv, strict=True):
        ratio = math.exp(sum(then) - sum(old))
        k, decay = (2.0, 3.0) if adv[0] >= 0 else (3.0, 2.0)
        weight = math.exp(decay) * ratio**k * math.exp(-decay * ratio)
        losses.append([-weight * adv[0] * n for n in new])
    return losses


def each(loss: Callable[..., float], *columns: Values) -> Values:
    return [[loss(*token) for token in zip(*rows, strict=True)] for rows in zip(*columns, strict=True)]


@dataclass
class Example:
    """A file with the algorithm of this name, and its oracles."""

    file: str
    advantages: Callable[[Sequence[Sample]], list[float]] = centred
    trained: Callable[[Sequence[Sample]], list[bool]] = differing
    loss: Callable[[Batch, Values], Values] = clip
    by_sequence: bool = False

    @property
    def algorithm(self) -> Algorithm:
        found: Algorithm = getattr(importlib.import_module(f"examples.algorithms.{self.file}"), self.file.upper())
        return found


EXAMPLES = [
    Example("maxrl", maxrl),
    Example("lite_ppo", lite_ppo),
    Example("reinforce_pp_baseline", reinforce_pp_baseline),
    Example("gdpo", gdpo, all_of),
    Example("top_entropy"),
    Example("icepop", loss=icepop),
    Example("dual_clip", loss=dual_clip),
    Example("sapo", loss=sapo, by_sequence=True),
    Example("gmpo", loss=gmpo, by_sequence=True),
    Example("luspo", loss=luspo, by_sequence=True),
    Example("vespo", loss=vespo),
]


def token_advantages(example: Example, samples: Sequence[Sample], entropy: PerToken) -> list[list[float]]:
    """Return the oracle's advantage of every token of every sample."""
    adv = [[value] * s.num_sampled for value, s in zip(example.advantages(samples), samples, strict=True)]
    if example.file == "top_entropy":
        trained = [e for own, kept in zip(entropy["entropy"], differing(samples), strict=True) if kept for e in own]
        least = np.quantile(trained, 0.8)
        adv = [
            [a * (e >= least) for a, e in zip(*rows, strict=True)] for rows in zip(adv, entropy["entropy"], strict=True)
        ]
    return adv


def total(example: Example, batch: Batch, at: Values) -> float:
    """Return the loss of the batch: the mean over all tokens, or over the samples of the mean over their tokens."""
    losses = example.loss(batch, at)
    if not example.by_sequence:
        return mean([loss for own in losses for loss in own])
    chosen = [[n for n, sample in enumerate(batch.sample) if sample == other] for other in sorted(set(batch.sample))]
    return mean([mean([loss for n in own for loss in losses[n]]) for own in chosen])


def batch_of(samples: Sequence[Sample], adv: Sequence[Sequence[float]], trained: Sequence[bool]) -> Batch:
    """Return the trained sequences, with the sampler's log-probs also as those of the policy."""
    batch = Batch([], [], [], [])
    for index, (sample, values, kept) in enumerate(zip(samples, adv, trained, strict=True)):
        left = iter(values)
        for sequence in sample.sequences if kept else ():
            old = [logp for logp, sampled in zip(sequence.logprobs, sequence.mask, strict=True) if sampled]
            if old:
                batch.new.append(list(old))
                batch.old.append(old)
                batch.adv.append([next(left) for _ in old])
                batch.sample.append(index)
    return batch


def branching_samples() -> list[Sample]:
    """Three groups of four episodes with one to three branches of several turns; the last group's rewards are equal."""
    rng = np.random.default_rng(1)
    rewards = ((1.0, 0.0, 0.5, 0.0), (0.0, 1.0, 1.0, 1.0), (0.5, 0.5, 0.5, 0.5))
    samples = []
    for group, member in np.ndindex(3, 4):
        common = tuple(rng.integers(5, 250, size=4).tolist())
        sequences = []
        for branch in range(int(rng.integers(1, 4))):
            mask = (0, 0, *rng.integers(0, 2, size=int(rng.integers(4, 9))).tolist(), 1)
            ids = (common + tuple(rng.integers(5, 250, size=len(mask)).tolist()))[: len(mask)]
            logps = tuple(float(-rng.exponential() - 0.1) if sampled else 0.0 for sampled in mask)
            turns = tuple(branch if sampled else -1 for sampled in mask)
            sequences.append(TokenSequence(ids, mask, logps, turns, (0.0,) * len(mask), turns))
        reward = rewards[group][member]
        style = float(rng.normal())
        components = {"right": reward - style, "style": style} if member else {"right": reward - 0.1}
        samples.append(Sample(f"{group}.{member}", f"g{group}", reward, tuple(sequences), components=components))
    return samples


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.file)
def test_an_example_equals_its_paper_on_branching_episodes(example: Example) -> None:
    samples, rng = branching_samples(), np.random.default_rng(0)
    run = make_algorithm(algorithm_options(example.algorithm, group_size=4))
    entropy: PerToken = {"entropy": [rng.exponential(size=sample.num_sampled) for sample in samples]}
    adv = token_advantages(example, samples, entropy)
    targets = run.targets(samples, entropy)
    trained = example.trained(samples)
    assert run.trainable_mask(samples).tolist() == trained
    for index in np.flatnonzero(trained):
        assert targets["adv"][index] == pytest.approx(adv[index], abs=1e-9)

    batch = batch_of(samples, adv, trained)
    batch.new = [[min(-1e-3, logp + rng.normal(scale=0.7)) for logp in own] for own in batch.old]
    loss, slopes = loss_and_gradient(run, samples, targets, batch)
    assert loss == pytest.approx(total(example, batch, batch.new), abs=1e-5)
    changed = 0
    for n, own in enumerate(batch.new):
        for t in range(len(own)):
            moved = [total(example, shifted(batch, n, t, step), batch.new) for step in (1e-5, -1e-5)]
            assert slopes[n][t] == pytest.approx((moved[0] - moved[1]) / 2e-5, abs=1e-5), (n, t)
            changed += slopes[n][t] != 0
    assert changed, "the loss has a gradient"


def shifted(batch: Batch, n: int, t: int, step: float) -> Batch:
    new = [list(own) for own in batch.new]
    new[n][t] += step
    return replace(batch, new=new)


def loss_and_gradient(
    run: AlgorithmRun, samples: Sequence[Sample], targets: PerToken, batch: Batch
) -> tuple[float, Values]:
    """Return the trainer's loss over several microbatches with common prefixes, and its gradient by each log-prob."""
    keep = np.flatnonzero(run.trainable_mask(samples)).tolist()
    chosen = {name: [values[index] for index in keep] for name, values in targets.items()}
    rows = rows_of([samples[index] for index in keep], chosen)
    weighting: Any = run.options.aggregation
    loss, slopes = 0.0, [[0.0] * len(own) for own in batch.new]
    batches = make_micro_batches(rows, tokens_per_microbatch=40, weighting=weighting, share_prompts=True)
    assert len(batches) > 1
    for part in batches:
        places, seen = [], dict.fromkeys(part.sequence_N.tolist(), 0)
        for n in part.sequence_N.tolist():
            places.append((n, seen[n]))
            seen[n] += 1
        logp_N = torch.tensor([batch.new[n][t] for n, t in places], dtype=torch.float64, requires_grad=True)
        loss_N, _ = run.loss(logp_N, part)
        own = (part.weight_N * loss_N).sum()
        own.backward()  # type: ignore[no-untyped-call]
        loss += own.item()
        assert logp_N.grad is not None
        for (n, t), slope in zip(places, logp_N.grad.tolist(), strict=True):
            slopes[n][t] = slope
    return loss, slopes


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    echo_config(folder)  # creates the model
    return folder


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.file)
def test_an_example_is_trained_from_the_command_line(
    example: Example, shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sampler's probabilities are the trainer's, so that every ratio is 1."""
    monkeypatch.syspath_prepend(FOLDER)
    output = shared / example.file
    config = echo_config(shared, output=str(output), steps=2, save_episodes_every=1, validation=None)
    write_yaml(shared / f"{example.file}.yaml", config)
    words = ["--config", str(shared / f"{example.file}.yaml"), "--algorithm.group-size", "3"]
    commands.train([*words, "--algorithm.name", f"{example.file}:{example.file.upper()}"])
    first, second = read_metrics(output)
    samples = samples_of(load_episodes(output / "episodes" / "train-000001.jsonl"))
    assert len(samples) == 12
    adv = token_advantages(example, samples, {"entropy": entropies(shared / "tiny", samples)})
    batch = batch_of(samples, adv, example.trained(samples))
    assert recorded_advantages(output / "episodes" / "train-000001.jsonl") == [
        pytest.approx(adv_N, abs=1e-5) for adv_N in adv
    ]
    assert first["optim/trained_tokens"] == sum(map(len, batch.old))
    assert first["advantages/std"] == pytest.approx(std([a for own in batch.adv for a in own]), abs=1e-5)
    assert first["loss"] == pytest.approx(total(example, batch, batch.new), abs=1e-5)
    assert first["optim/grad_norm"] > 0
    assert second["optim/skipped_steps"] == 0


def recorded_advantages(file: Path) -> list[list[float]]:
    """Return the advantages that were saved with each episode."""
    return [
        [value for step in episode.trajectories[0].steps if step.tokens for value in step.tokens.advantages]
        for episode in load_episodes(file)
    ]


def entropies(model: Path, samples: Sequence[Sample]) -> list[np.ndarray]:
    """Return the entropy at each sampled token, from separate forward passes of the model before training."""
    policy = AutoModelForCausalLM.from_pretrained(model)
    found = []
    for sample in samples:
        own: list[float] = []
        for sequence in sample.sequences:
            with torch.no_grad():
                logp_TV = policy(torch.tensor([sequence.ids])).logits[0].log_softmax(-1)
            entropy_T = -(logp_TV.exp() * logp_TV).sum(-1)
            own += [entropy_T[t - 1].item() for t, sampled in enumerate(sequence.mask) if sampled]
        found.append(np.array(own))
    return found


def test_each_example_is_short_and_names_its_paper() -> None:
    files = sorted(path.stem for path in FOLDER.glob("*.py"))
    assert files == sorted(example.file for example in EXAMPLES)
    for file in files:
        source = (FOLDER / f"{file}.py").read_text()
        tree = ast.parse(source)
        texts = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        ]
        described = {line for node in texts for line in range(node.lineno, (node.end_lineno or 0) + 1)}
        lines = [
            line
            for number, line in enumerate(source.splitlines(), 1)
            if line.strip() and not line.strip().startswith("#") and number not in described
        ]
        assert len(lines) <= 30, file
        assert "20" in (ast.get_docstring(tree) or ""), f"{file} names no paper"


def test_a_signal_that_does_not_exist_is_an_error() -> None:
    for signals in (("entropies",), "entropy"):
        with pytest.raises(
            ValueError, match=r"signals=.* of algorithm 'maxrl' are not some of \('entropy', 'old_logp'"
        ):
            replace(EXAMPLES[0].algorithm, signals=signals)
