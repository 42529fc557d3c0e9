"""The policy's log-probs and gradients equal a naive forward pass, only at sampled tokens, for full and LoRA tuning."""

from __future__ import annotations

import asyncio
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from token_sequences import token_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from rllm_gym.core import TokenSequence
from rllm_gym.samplers import SamplingParams, SamplingRequest, TorchSampler
from trainers.algorithms import algorithm_options, make_algorithm
from trainers.algorithms.losses import ClipOptions
from trainers.batching import Row, make_micro_batches
from trainers.config import LoraConfig, LoraModelConfig, ModelConfig, OptimizerConfig
from trainers.learner import Learner, TrainingDiverged
from trainers.model import ModelUnusable, Policy
from trainers.samples import Sample
from trainers.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("policy") / "tiny")


def sequences(count: int, seed: int = 0) -> list[TokenSequence]:
    """Conversations of several turns: prompt, reply, tool text, reply …, of very different lengths."""
    rng = np.random.default_rng(seed)
    result = []
    for _ in range(count):
        mask = [0] * int(rng.integers(1, 6))
        for _ in range(int(rng.integers(1, 4))):
            mask += [1] * int(rng.integers(1, 5)) + [0] * int(rng.integers(0, 7))
        n = len(mask)
        logps = [float(-rng.exponential()) if m else 0.0 for m in mask]
        result.append(token_sequence([int(i) for i in rng.integers(3, 700, n)], mask, logps))
    return result


def with_prompt(sequence: TokenSequence, prompt: tuple[int, ...]) -> TokenSequence:
    """Return the sequence after another prompt."""
    start, zeros = sequence.mask.index(1), (0,) * len(prompt)
    return token_sequence(
        prompt + sequence.ids[start:], zeros + sequence.mask[start:], zeros + sequence.logprobs[start:]
    )


def naive(model: Any, rows: list[Row], config: ClipOptions, temperature: float, entropy: float) -> torch.Tensor:
    """Return the loss with all logits of each sequence alone, token by token."""
    total = torch.zeros(())
    tokens = sum(row.num_sampled for row in rows)
    for row in rows:
        ids = torch.tensor([row.sequence.ids])
        logp_TV = torch.log_softmax(model(input_ids=ids).logits[0] / temperature, -1)
        sampled = 0
        for place, marked in enumerate(row.sequence.mask):
            if not marked:
                continue
            logp = logp_TV[place - 1, row.sequence.ids[place]]
            advantage = float(row.targets["adv"][sampled])
            ratio = torch.exp(logp - row.sequence.logprobs[place])
            clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
            total = total - torch.minimum(ratio * advantage, clipped * advantage) / tokens
            total = total + entropy * (logp_TV[place - 1].exp() * logp_TV[place - 1]).sum() / tokens
            sampled += 1
    return total


def test_an_embedded_sampler_in_bfloat16_shares_the_base_and_loses_no_update(folder: Path) -> None:
    """Merged into bfloat16 weights, an adapter that is much smaller than they are would be rounded away."""
    policy = Policy(LoraModelConfig(path=str(folder), tuning="lora", dtype="bfloat16", device="cpu"))
    assert policy.shares_base
    base = {name: parameter for name, parameter in policy.model.named_parameters() if "lora" not in name}
    before = {name: parameter.clone() for name, parameter in base.items()}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in policy.parameters:
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 1e-6)

    async def go() -> None:
        sampler = TorchSampler(policy.shared_base(), policy.tokenizer, merge_adapters=False)
        async with sampler:
            await sampler.sync_weights(policy.weight_update())
            addresses = {parameter.data_ptr() for parameter in base.values()}
            assert {parameter.data_ptr() for parameter in sampler.model.parameters()} == addresses
            assert all(torch.equal(parameter, before[name]) for name, parameter in base.items())
            trained = policy.model.get_base_model().model.layers[1].mlp.down_proj
            served = sampler.model.model.layers[1].mlp.down_proj
            kinds = []
            trained.lora_A["default"].register_forward_pre_hook(lambda layer, inputs: kinds.append(inputs[0].dtype))
            [batch] = make_micro_batches([Row(sequences(1)[0], {})], tokens_per_microbatch=10**6)
            policy.outputs(batch)
            assert kinds == [torch.bfloat16]  # PEFT would save a copy in float32
            with torch.no_grad():
                trained.weight.zero_()  # what is left is the adapter's part
                states = torch.randn(64, trained.in_features, generator=generator)
                exact = trained.lora_B["default"](trained.lora_A["default"](states)) * trained.scaling["default"]
                got = served(states.bfloat16()).float()
            assert (got * exact).sum() / exact.square().sum() == pytest.approx(1.0, abs=0.01)

    asyncio.run(go())


@pytest.mark.parametrize("tuning", ["full", "lora"])
@pytest.mark.parametrize(
    ("budget", "chunk", "share"),
    [(10**6, 10**6, False), (64, 7, False), (1, 3, False), (10**6, 10**6, True), (60, 7, True)],
)
def test_gradient_of_a_batch_equals_the_naive_one(
    folder: Path, tuning: Any, budget: int, chunk: int, share: bool
) -> None:
    policy = Policy(ModelConfig(str(folder), tuning), temperature=0.7, tokens_per_chunk=chunk)
    if tuning == "lora":  # adapters start at zero, where half of their gradient is zero too
        with torch.no_grad():
            for number, (_, parameter) in enumerate(policy.parameters):
                generator = torch.Generator().manual_seed(number)
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    rng = np.random.default_rng(1)
    drawn = sequences(9) + [with_prompt(s, (4, 5, 6, 7, 8, 9, 10, 11) * 2) for s in sequences(9, seed=5)]
    rows = [Row(sequence, {"adv": rng.normal(size=sum(sequence.mask))}) for sequence in drawn]
    config = algorithm_options(clip_low=0.2, clip_high=0.28)
    assert isinstance(config, ClipOptions)
    naive(policy.model, rows, config, 0.7, entropy=0.01).backward()
    expected = {name: parameter.grad.clone() for name, parameter in policy.parameters if parameter.grad is not None}
    policy.model.zero_grad()
    loss = make_algorithm(config).loss
    assert policy.shares_prompts
    batches = make_micro_batches(rows, tokens_per_microbatch=budget, share_prompts=share)
    assert share == any(batch.end_BT is not None for batch in batches)
    for batch in batches:
        assert batch.ids_BT.numel() <= budget or len(batch.ids_BT) == 1
        outputs = policy.outputs(batch)
        loss_N, _ = loss(outputs.logp_N, batch)
        (batch.weight_N * (loss_N - 0.01 * outputs.entropy_N)).sum().backward()
    for name, parameter in policy.parameters:
        assert parameter.grad is not None, name
        assert torch.allclose(parameter.grad, expected[name], rtol=1e-4, atol=1e-6), name


def test_prompt_and_tool_tokens_get_no_gradient_of_their_own(folder: Path) -> None:
    """Only the marked tokens are trained: no other token's log-prob is part of the loss."""
    policy = Policy(ModelConfig(str(folder), "full"))
    sequence = sequences(1, seed=3)[0]
    row = Row(sequence, {"adv": np.ones(sum(sequence.mask))})
    (batch,) = make_micro_batches([row], tokens_per_microbatch=10**6)
    marked = [place for place, m in enumerate(sequence.mask) if m]
    assert batch.column_N.tolist() == marked
    # Changing the last unmarked token, after which nothing is sampled, changes no gradient.
    tail, other = (
        token_sequence((*sequence.ids, *more), (*sequence.mask, 0, 0), (*sequence.logprobs, 0.0, 0.0))
        for more in ((7, 8), (99, 100))
    )

    def gradient(s: TokenSequence) -> list[torch.Tensor]:
        policy.model.zero_grad()
        (batch,) = make_micro_batches([Row(s, row.targets)], tokens_per_microbatch=10**6)
        (batch.weight_N * policy.outputs(batch).logp_N).sum().backward()
        return [p.grad.clone() for _, p in policy.parameters if p.grad is not None]

    reference = gradient(sequence)
    for changed in (tail, other):
        for mine, theirs in zip(reference, gradient(changed), strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_no_logits_exist_at_unmarked_tokens_nor_beyond_a_chunk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy(ModelConfig(str(folder), "full"), tokens_per_chunk=5)
    rows = [Row(s, {"adv": np.ones(sum(s.mask))}) for s in sequences(6)]
    seen: list[int] = []
    policy.model.get_output_embeddings().register_forward_hook(lambda module, args, out: seen.append(len(out)))
    for batch in make_micro_batches(rows, tokens_per_microbatch=10**6):
        policy.outputs(batch)
    assert sum(seen) == sum(row.num_sampled for row in rows)
    assert max(seen) <= 5


def test_prompts_are_shared_only_where_that_saves_work_and_the_model_allows_it(folder: Path, tmp_path: Path) -> None:
    prompt = tuple(range(10, 50))
    short = [with_prompt(s, prompt) for s in sequences(8)]
    rows = [Row(s, {"adv": np.ones(sum(s.mask))}) for s in short]
    alone, shared = (
        sum(b.ids_BT.numel() for b in make_micro_batches(rows, tokens_per_microbatch=10**6, share_prompts=share))
        for share in (False, True)
    )
    assert shared < 0.6 * alone
    long = [Row(with_prompt(s, (1, 2)), row.targets) for s, row in zip(short, rows, strict=True)]
    (batch,) = make_micro_batches(long, tokens_per_microbatch=10**6, share_prompts=True)
    assert batch.end_BT is None or batch.ids_BT.shape[1] <= max(len(row.sequence) for row in long)
    windowed = make_tiny_model(tmp_path / "windowed")
    settings = json.loads((windowed / "config.json").read_text())
    settings |= {"use_sliding_window": True, "sliding_window": 4, "layer_types": ["sliding_attention"] * 2}
    (windowed / "config.json").write_text(json.dumps(settings))
    assert not Policy(ModelConfig(str(windowed), "full")).shares_prompts


def learner_of(folder: Path, tuning: Any = "full", **options: Any) -> Learner:
    return Learner(Policy(ModelConfig(str(folder), tuning)), OptimizerConfig(**options), steps=10)


def samples_with(rewards: list[float]) -> list[Sample]:
    return [Sample(str(i), "g", reward, (s,)) for i, (reward, s) in enumerate(zip(rewards, sequences(len(rewards))))]


def test_samples_without_advantage_change_nothing(folder: Path) -> None:
    learner = learner_of(folder)
    before = [p.detach().clone() for _, p in learner.policy.parameters]
    config = algorithm_options()
    stats = learner.update(0, [], {"adv": []}, make_algorithm(config), 0.1)
    assert stats.tokens == 0
    assert all(torch.equal(a, b) for a, (_, b) in zip(before, learner.policy.parameters, strict=True))


def test_a_loss_that_is_not_finite_is_skipped_counted_and_ends_the_run_if_it_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainers.learner.learner.MAX_BAD_STEPS", 2)
    learner = learner_of(folder)
    before = [p.detach().clone() for _, p in learner.policy.parameters]
    samples, config = samples_with([1.0, 0.0]), algorithm_options()
    targets = {"adv": [np.full(sample.num_sampled, np.inf) for sample in samples]}
    stats = learner.update(0, samples, targets, make_algorithm(config), 0.0)
    assert stats.skipped == 1
    assert all(torch.equal(a, b) for a, (_, b) in zip(before, learner.policy.parameters, strict=True))
    with pytest.raises(TrainingDiverged, match="2 optimizer steps in a row"):
        learner.update(1, samples, targets, make_algorithm(config), 0.0)


def test_statistics_of_several_passes_and_minibatches(folder: Path) -> None:
    """Every token counts once, and only the first optimizer step compares the log-probs with the sampler's."""
    learner = learner_of(folder, lr=0.05, warmup_steps=0)
    samples = [
        Sample(str(index), f"g{index // 4}/{role}", float(index % 4 < 2), (sequence,), role=role)
        for index, (sequence, role) in enumerate(zip(sequences(8), "ab" * 4, strict=True))
    ]
    first = {role: [sample for sample in samples[:4] if sample.role == role] for role in "ab"}
    expected = {role: learner.measure(own).logprob_difference_mean for role, own in first.items()}
    algorithm = make_algorithm(algorithm_options(epochs=2, minibatches=2))
    advantages = [np.full(sample.num_sampled, -1.0) for sample in samples]
    stats = learner.update(0, samples, {"adv": advantages}, algorithm, 0.0)
    assert learner.version == 4
    assert stats.tokens == sum(sample.num_sampled for sample in samples)
    for role in "ab":
        assert stats.roles[role].tokens == sum(sample.num_sampled for sample in samples if sample.role == role)
        means = stats.roles[role].means()
        assert means["logprob_difference_mean"] == pytest.approx(expected[role], abs=1e-5)
        assert 0 < means["entropy"] < 10
    tokens = {role: sum(sample.num_sampled for sample in own) for role, own in first.items()}
    mean = sum(expected[role] * tokens[role] for role in "ab") / sum(tokens.values())
    assert stats.logprob_difference_mean == pytest.approx(mean, abs=1e-5)
    entropies = [stats.roles[role].means()["entropy"] * stats.roles[role].tokens for role in "ab"]
    assert stats.entropy == pytest.approx(sum(entropies) / stats.tokens)


def test_more_minibatches_than_groups_are_one_optimizer_step_per_group(folder: Path) -> None:
    learner = learner_of(folder, lr=0.05, warmup_steps=0)
    samples = [Sample(str(i), f"g{i // 2}", float(i % 2), (sequence,)) for i, sequence in enumerate(sequences(8))]
    algorithm = make_algorithm(algorithm_options(groups_per_step=4, minibatches=50))
    advantages = [np.full(sample.num_sampled, -1.0) for sample in samples]
    stats = learner.update(0, samples, {"adv": advantages}, algorithm, 0.0)
    assert learner.version == 4
    assert stats.tokens == sum(sample.num_sampled for sample in samples)


def test_kl_pulls_towards_the_reference_with_adapters_and_with_a_copy(folder: Path) -> None:
    for tuning in ("lora", "full"):
        policy = Policy(ModelConfig(str(folder), tuning), reference=True)  # type: ignore[arg-type]
        rows = [Row(s, {"adv": np.zeros(sum(s.mask))}) for s in sequences(4)]
        (batch,) = make_micro_batches(rows, tokens_per_microbatch=10**6)
        base = policy.reference_logprobs(batch)
        assert torch.allclose(base, policy.outputs(batch).logp_N, atol=1e-6)
        with torch.no_grad():
            for _, parameter in policy.parameters:
                parameter.add_(0.05)
        assert torch.allclose(base, policy.reference_logprobs(batch)), tuning
        assert not torch.allclose(base, policy.outputs(batch).logp_N, atol=1e-2), tuning


def test_the_schedule_warms_up_and_falls_to_a_tenth(folder: Path) -> None:
    learner = Learner(Policy(ModelConfig(str(folder), "full")), OptimizerConfig(lr=1.0, warmup_steps=5), 101)
    rates = [learner.learning_rate(step) for step in range(101)]
    assert rates[0] == pytest.approx(1 / 6)
    assert rates[:5] == sorted(rates[:5])
    assert rates[5] == max(rates)
    assert rates[-1] == pytest.approx(0.1)


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_synced_weights_compute_what_the_saved_model_computes(folder: Path, tmp_path: Path, tuning: Any) -> None:
    """Policy, sampler after a weight sync, and the saved model in transformers or PEFT give the same log-probs."""
    policy = Policy(
        LoraModelConfig(str(folder), lora=LoraConfig(rank=4)) if tuning == "lora" else ModelConfig(str(folder), tuning)
    )
    with torch.no_grad():
        for number, (_, parameter) in enumerate(policy.parameters):
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
            parameter.add_(0.03 * noise)
    policy.save(tmp_path / "model")
    if tuning == "lora":
        from peft import AutoPeftModelForCausalLM

        loaded = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "model").merge_and_unload()
    else:
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert AutoTokenizer.from_pretrained(tmp_path / "model").chat_template

    async def sampled() -> list[Any]:
        base = AutoModelForCausalLM.from_pretrained(folder).eval()
        async with TorchSampler(base, policy.tokenizer) as sampler:
            await sampler.sync_weights(policy.weight_update())
            prompts = [(5, 6, 7, 8), (9, 10, 11)]
            requests = [SamplingRequest(p, SamplingParams(temperature=0.8, max_tokens=12), seed=3) for p in prompts]
            return list(zip(prompts, await sampler.sample(requests), strict=True))

    rows = []
    for prompt, completion in asyncio.run(sampled()):
        n = len(completion.ids)
        ids = prompt + completion.ids
        head = len(prompt)
        sequence = token_sequence(ids, (0,) * head + (1,) * n, (0.0,) * head + completion.logprobs)
        rows.append(Row(sequence, {"adv": np.ones(n)}))
        with torch.no_grad():
            logp_TV = torch.log_softmax(loaded(input_ids=torch.tensor([ids])).logits[0].float() / 0.8, -1)
        theirs = [logp_TV[head + i - 1, token].item() for i, token in enumerate(completion.ids)]
        assert np.allclose(theirs, completion.logprobs, atol=1e-4)
    policy.temperature = 0.8
    for batch in make_micro_batches(rows, tokens_per_microbatch=10**6):
        assert (policy.outputs(batch).logp_N - batch.sampler_logp_N).abs().max() < 1e-4


def test_an_adapter_finds_its_base_from_any_working_directory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peft import AutoPeftModelForCausalLM

    with warnings.catch_warnings(), monkeypatch.context() as there:
        warnings.simplefilter("error", UserWarning)
        there.chdir(folder.parent)
        Policy(ModelConfig(folder.name, "lora")).save(tmp_path / "model")
    AutoPeftModelForCausalLM.from_pretrained(tmp_path / "model")


def test_a_model_that_cannot_be_loaded_is_an_error_that_names_it(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match="nowhere"):
        Policy(ModelConfig(str(tmp_path / "nowhere")))
    with pytest.raises(ModelUnusable, match="no_such_layer"):
        Policy(LoraModelConfig(str(folder), lora=LoraConfig(targets="no_such_layer")))
    Policy(ModelConfig(str(folder), "lora")).save(tmp_path / "adapter")
    with pytest.raises(ModelUnusable, match="merge_and_unload"):
        Policy(ModelConfig(str(tmp_path / "adapter"), "lora"))
    Policy(ModelConfig(str(tmp_path / "adapter"), "full"))
