"""The reference of the KL divergence follows the policy, with adapters and in full fine-tuning, also after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from echo_config import echo_config
from refused_options import not_raised
from test_example_algorithms import branching_samples

from trainers.algorithms import algorithm_options, make_algorithm
from trainers.batching import MicroBatch, make_micro_batches, rows_of
from trainers.config import ConfigError, ModelConfig, OptimizerConfig, validate
from trainers.learner import LearnerSet
from trainers.model import Policy
from trainers.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(
        tmp_path_factory.mktemp("reference") / "tiny", hidden_size=32, num_heads=1, num_layers=1, vocab_size=300
    )


def whole() -> MicroBatch:
    (batch,) = make_micro_batches(rows_of(branching_samples(), {}), tokens_per_microbatch=10_000)
    return batch


def learners(folder: Path, tuning: Any) -> LearnerSet:
    policy = Policy(ModelConfig(str(folder), tuning), reference=True)
    return LearnerSet(policy, OptimizerConfig(lr=0.02, warmup_steps=0), 10)


def update(learners: LearnerSet, step: int, **options: Any) -> None:
    run = make_algorithm(algorithm_options(kl=0.1, **options))
    samples = branching_samples()
    learners.update(step, samples, run.targets(samples, {}), run, {"": 0.0})


def weights(learners: LearnerSet) -> dict[str, torch.Tensor]:
    policy = next(iter(learners.by_adapter.values())).policy
    return {name: parameter.detach().clone() for name, parameter in policy.parameters}


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_the_reference_follows_the_policy(folder: Path, tuning: str) -> None:
    own = learners(folder, tuning)
    policy, batch = next(iter(own.by_adapter.values())).policy, whole()
    with torch.no_grad():
        base = policy.outputs(batch).logp_N
        assert torch.allclose(policy.reference_logprobs(batch), base, atol=1e-6)
        expected = weights(own)
        for step in range(4):  # it moves after the second and the fourth
            with torch.enable_grad():
                update(own, step, reference_sync=(2.0, 0.25))
            if step % 2:
                now = weights(own)
                expected = {name: 0.75 * tensor + 0.25 * now[name] for name, tensor in expected.items()}
            before = weights(own)
            found = policy.reference_logprobs(batch)
            assert all(torch.equal(tensor, before[name]) for name, tensor in weights(own).items())
            plain = learners(folder, tuning)
            other = next(iter(plain.by_adapter.values())).policy
            for name, parameter in other.parameters:
                parameter.copy_(expected[name])
            assert torch.allclose(found, other.outputs(batch).logp_N, atol=1e-5), step
            assert torch.allclose(found, base, atol=1e-6) == (step == 0)

        resumed = learners(folder, tuning)
        resumed.load_state_dict(own.state_dict())
        again = next(iter(resumed.by_adapter.values())).policy.reference_logprobs(batch)
        assert torch.allclose(again, found, atol=1e-6)


def test_a_whole_step_moves_it_onto_the_policy_and_without_the_option_it_stays(folder: Path) -> None:
    for sync, same in (((1.0, 1.0), True), (None, False)):
        own = learners(folder, "lora")
        policy, batch = next(iter(own.by_adapter.values())).policy, whole()
        update(own, 0, reference_sync=sync)
        with torch.no_grad():
            assert torch.allclose(policy.reference_logprobs(batch), policy.outputs(batch).logp_N, atol=1e-5) == same
        assert bool(own.state_dict()["reference"]) == same


REFUSED = [
    (
        {"reference_sync": [1, 0.1]},
        r"reference_sync=\[1, 0.1\] is not an option here; it is one only with",
    ),
    ({"kl": 0.1, "reference_sync": [0, 0.1]}, "must be steps and a fraction up to 1: 512 0.6"),
    ({"kl": 0.1, "reference_sync": [2.5, 0.1]}, "must be steps and a fraction"),
    ({"kl": 0.1, "reference_sync": [2, 1.5]}, "must be steps and a fraction"),
    ({"kl": 0.1, "reference_sync": [2]}, "must be steps and a fraction"),
    ({"kl": 0.0, "reference_sync": [1, 0.1]}, "is not an option here"),
    ({"length_penalty": -0.1}, "length_penalty=-0.1 must be 0 or more"),
]


def test_options_without_effect_or_out_of_range_are_refused(tmp_path: Path) -> None:
    def act(options: dict[str, Any]) -> object:
        return validate(echo_config(tmp_path, algorithm=options))

    assert not not_raised(REFUSED, act, ConfigError)
