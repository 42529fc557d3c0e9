"""Old log-probs of the sampler or of the trainer (decoupled PPO): the gradients equal those of a plain implementation,
and rounding does not clip.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from echo_config import echo_config
from test_value_head import some_samples

from rllm_gym.core import TokenSequence
from trainers.algorithms import LOSSES, algorithm_options, make_algorithm
from trainers.config import ConfigError, ModelConfig, OptimizerConfig, validate
from trainers.learner import Learner, UpdateStats
from trainers.loop import train
from trainers.model import Policy
from trainers.run.metrics import read_metrics
from trainers.samples import Sample
from trainers.tiny_model import make_tiny_model

RATE = 0.5
ADVANTAGES = (1.0, -0.5, 0.25, -1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(
        tmp_path_factory.mktemp("old") / "tiny", hidden_size=32, num_heads=1, num_layers=1, vocab_size=300
    )


def logps(model: Any, sequence: TokenSequence) -> torch.Tensor:
    """Return the log-probs of the sampled tokens of a sequence."""
    logp_TV = model(torch.tensor([sequence.ids])).logits[0].log_softmax(-1)
    return torch.stack([logp_TV[t - 1, sequence.ids[t]] for t, sampled in enumerate(sequence.mask) if sampled])


def sampled_with(policy: Policy, noise: float) -> list[Sample]:
    """Four episodes of one sequence, whose log-probs the sampler computed with a rounding error."""
    rng, samples = np.random.default_rng(0), []
    for sample in [drawn for drawn in some_samples(3, 40) if sum(drawn.sequences[0].mask) > 1][: len(ADVANTAGES)]:
        sequence = sample.sequences[0]
        with torch.no_grad():
            exact = iter(logps(policy.model, sequence).tolist())
        noisy = tuple(next(exact) + rng.normal(scale=noise) if sampled else 0.0 for sampled in sequence.mask)
        changed = TokenSequence(sequence.ids, sequence.mask, noisy, *(sequence.mask, noisy, sequence.turns))
        samples.append(Sample(sample.episode_id, "g", 0.0, (changed,)))
    return samples


def update(
    folder: Path, noise: float, times: int = 1, **options: Any
) -> tuple[torch.Tensor, list[UpdateStats], Policy, list[Sample], Learner]:
    """Update a model by gradient descent on the samples it drew; return its weights, and the samples."""
    policy = Policy(ModelConfig(path=str(folder), tuning="full"))
    algorithm = make_algorithm(algorithm_options(drop_zero_variance=False, **options))
    learner = Learner(policy, OptimizerConfig(warmup_steps=0, schedule="constant", max_grad_norm=1e9, lr=RATE), 10)
    learner.optimizer = torch.optim.SGD(learner.optimizer.param_groups, lr=RATE)
    stats = []
    for _ in range(times):
        samples = sampled_with(policy, noise)
        targets = {"adv": [np.full(s.num_sampled, adv) for s, adv in zip(samples, ADVANTAGES, strict=True)]}
        stats.append(learner.update(0, samples, targets, algorithm, 0.0, fresh=True))
    return weights(policy), stats, policy, samples, learner


def weights(policy: Policy) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for _, parameter in policy.parameters]).clone()


@pytest.mark.parametrize("loss", ["clip", "gspo", "reinforce"])
@pytest.mark.parametrize("epochs", [1, 2])
def test_the_update_is_that_of_decoupled_ppo(folder: Path, loss: str, epochs: int) -> None:
    """The ratio to the weights before the update is clipped, the ratio of these to the sampler is truncated to 2."""
    options: dict[str, Any] = {"clip_low": 0.02, "clip_high": 0.03} if loss == "clip" and epochs > 1 else {}
    found, (stats,), _, samples, _ = update(
        folder, 1.5, loss=loss, epochs=epochs, old_logprobs="trainer", aggregation="sequence-mean", **options
    )
    low, high = {"clip": (0.02, 0.03), "gspo": (3e-4, 4e-4), "reinforce": (1.0, 1e9)}[loss]
    naive = Policy(ModelConfig(path=str(folder), tuning="full"))
    before = [logps(naive.model, sample.sequences[0]).detach() for sample in samples]
    truncated = 0
    for _ in range(epochs):
        total = torch.zeros(())
        for sample, old_N, adv in zip(samples, before, ADVANTAGES, strict=True):
            (sequence,) = sample.sequences
            sampler_N = torch.tensor(
                [p for p, sampled in zip(sequence.logprobs, sequence.mask, strict=True) if sampled]
            )
            logp_N = logps(naive.model, sequence)
            weight_N = (old_N - sampler_N).exp()
            truncated += int((weight_N > 2).sum())
            ratio_N = (logp_N - old_N).exp()
            if loss == "gspo":
                ratio_N = (logp_N - old_N).mean().exp().expand(len(logp_N))
            objective_N = torch.minimum(ratio_N * adv, ratio_N.clamp(1 - low, 1 + high) * adv)
            if loss == "reinforce":
                objective_N = ratio_N.detach().clamp(max=2.0) * adv * logp_N  # its own importance_cap
            if loss == "gspo":  # the ratio of the sequence with the gradient of each token
                same_N = ratio_N.detach() * (logp_N - logp_N.detach()).exp()
                objective_N = torch.minimum(same_N * adv, same_N.clamp(1 - low, 1 + high) * adv)
            total = total - (weight_N.clamp(max=2.0) * objective_N).mean() / len(samples)
        total.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for _, parameter in naive.parameters:
                assert parameter.grad is not None
                parameter -= RATE * parameter.grad
                parameter.grad = None
    assert truncated, "the cap has an effect"
    assert found.numpy() == pytest.approx(weights(naive).numpy(), abs=1e-5)
    assert stats.clipped_high > 0


def test_auto_takes_the_trainers_log_probs_where_rounding_alone_would_clip(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Then the update is that of old_logprobs=trainer from the first step on; with sampler there is one warning."""
    exact, (stats,), *_ = update(folder, 0.0, loss="gspo", clip_low=3e-3, clip_high=3e-3)
    assert not caplog.records
    assert stats.clipped_low + stats.clipped_high == 0
    rounded, both, _, _, learner = update(folder, 0.05, 2, loss="gspo")
    assert [stats.clipped_low + stats.clipped_high for stats in both] == [0.0, 0.0]
    (record,) = caplog.records
    assert "from now on the old log-probs are the trainer's" in record.getMessage()
    assert torch.equal(rounded, update(folder, 0.05, 2, loss="gspo", old_logprobs="trainer")[0])
    assert not torch.allclose(rounded, exact)
    resumed = Learner(learner.policy, learner.config, 10)
    resumed.optimizer = learner.optimizer
    resumed.load_state_dict(learner.state_dict())
    assert resumed.state_dict()["bounds_clip_rounding"], "a resumed run does not measure again"

    caplog.clear()
    with caplog.at_level(logging.WARNING):
        _, both, *_ = update(folder, 0.05, 2, loss="gspo", old_logprobs="sampler")
    assert all(stats.clipped_low + stats.clipped_high > 0.2 for stats in both)
    (record,) = caplog.records
    assert "set algorithm.old_logprobs=trainer" in record.getMessage()


@pytest.mark.parametrize("loss", LOSSES)
def test_bounds_exist_only_where_they_have_an_effect(tmp_path: Path, loss: str) -> None:
    set_by_loss = {"clip": {"clip_high": 0.4}, "gspo": {"clip_low": 0.1}, "cispo": {"clip_high": 3.0},
                   "dppo": {"clip_low": 0.1}, "reinforce": {}}  # fmt: skip
    chosen = {"loss": loss, "old_logprobs": "trainer", **set_by_loss[loss]}
    for name in set_by_loss[loss]:
        with pytest.raises(ConfigError, match=f"algorithm.{name}=.* or several optimizer steps per batch .*{loss}"):
            validate(echo_config(tmp_path, algorithm=chosen))
    validate(echo_config(tmp_path, algorithm={**chosen, "epochs": 2}))


def test_gspo_in_bfloat16_does_not_clip_rounding(tmp_path: Path) -> None:
    clipped = {}
    for old in ("auto", "sampler"):
        config = echo_config(
            tmp_path,
            output=str(tmp_path / old),
            steps=1,
            model={"tuning": "lora", "dtype": "bfloat16"},
            algorithm={"loss": "gspo", "old_logprobs": old},
            validation=None,
        )
        train(config)
        row = read_metrics(tmp_path / old)[-1]
        clipped[old] = row["policy/clip_fraction/low"] + row["policy/clip_fraction/high"]
    assert clipped["sampler"] > 0.02
    assert clipped["auto"] == 0.0
