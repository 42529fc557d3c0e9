"""DPO: losses as in the papers, the gradient of a plain computation; preferred answers become more likely."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refused_options import not_raised
from termination import terminated_at

from rllm_gym.chat import ChatRenderer
from trainers import commands
from trainers.config import ConfigError, DpoConfig, LengthConfig, ModelConfig, OptimizerConfig, PreferenceConfig
from trainers.config.dpo import validate_dpo
from trainers.config.mapping import from_mapping
from trainers.fine_tuning.dpo import dpo
from trainers.fine_tuning.pair_batches import PairBatches
from trainers.fine_tuning.preference_loss import PreferenceLoss
from trainers.fine_tuning.preferences import TokenPair, read_preferences, tokenize_pair
from trainers.fine_tuning.tokenized import LengthLimit
from trainers.learner import Learner
from trainers.model import Policy
from trainers.run.metrics import read_metrics
from trainers.tiny_model import make_tiny_model

logps = st.floats(-60, -0.01)


def loss_config(**options: Any) -> DpoConfig:
    return DpoConfig(preferences=PreferenceConfig(file="x"), model=ModelConfig(path="x"), **options)


def oracle(policy: np.ndarray, reference: np.ndarray, tokens: np.ndarray, config: DpoConfig) -> float:
    """Compute the loss of one pair from the papers: Rafailov et al. 2023 (7), Azar et al. 2023 (17), hinge, Pang et al.
    2024 (1).
    """
    normalized = config.loss == "ipo" if config.length_normalized is None else config.length_normalized
    log_ratio = policy - reference
    if normalized:
        log_ratio = log_ratio / tokens
    h = log_ratio[0] - log_ratio[1]
    if config.loss == "sigmoid":
        right, wrong = (-math.log(1 / (1 + math.exp(-sign * config.beta * h))) for sign in (1, -1))
    elif config.loss == "ipo":
        right, wrong = ((sign * h - 1 / (2 * config.beta)) ** 2 for sign in (1, -1))
    else:
        right, wrong = (max(0.0, 1 - sign * config.beta * h) for sign in (1, -1))
    loss = (1 - config.label_smoothing) * right + config.label_smoothing * wrong
    return float(loss - config.rpo_alpha * policy[0] / tokens[0])


@settings(max_examples=150, deadline=None)
@given(
    policy=st.tuples(logps, logps),
    reference=st.tuples(logps, logps),
    tokens=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    beta=st.sampled_from([0.01, 0.1, 0.5]),
    loss=st.sampled_from(["sigmoid", "ipo", "hinge"]),
    normalized=st.sampled_from([None, True, False]),
    rpo_alpha=st.sampled_from([0.0, 1.5]),
    smoothing=st.sampled_from([0.0, 0.2]),
)
def test_losses_equal_the_formulas_of_the_papers(
    policy: Any,
    reference: Any,
    tokens: Any,
    beta: float,
    loss: Any,
    normalized: Any,
    rpo_alpha: float,
    smoothing: float,
) -> None:
    config = loss_config(
        beta=beta,
        loss=loss,
        length_normalized=normalized,
        rpo_alpha=rpo_alpha,
        label_smoothing=smoothing,
    )
    arrays = [np.array(values, dtype=np.float64) for values in (policy, reference, tokens)]
    (found,) = PreferenceLoss(config)(*(torch.from_numpy(values)[None] for values in arrays))
    assert found.item() == pytest.approx(oracle(*arrays, config), rel=1e-9, abs=1e-12)


# Gradients


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(
        tmp_path_factory.mktemp("dpo") / "tiny", vocab_size=300, hidden_size=32, num_heads=1, num_layers=1
    )


PAIRS = [
    {"prompt": "say yes or no: " + "really " * 5, "chosen": "yes", "rejected": "no, never in my life"},
    {"prompt": "short", "chosen": "a much longer answer than the other", "rejected": "b"},
    {
        "chosen": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "1"},
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "2"},
        ],
        "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "3"}],
    },
]


def token_pairs(policy: Policy, folder: Path, rows: list[dict[str, Any]]) -> list[TokenPair]:
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    renderer, limit = ChatRenderer(policy.tokenizer), LengthLimit(LengthConfig(), None)
    pairs = read_preferences(str(folder / "pairs.jsonl"), PreferenceConfig(file="x")).pairs
    return [created for pair in pairs if (created := tokenize_pair(pair, renderer, limit)) is not None]


def plain_logp(policy: Policy, pair: TokenPair) -> torch.Tensor:
    """Log-probs of both answers by a plain computation, each sequence alone."""
    sides = []
    for tokens in (pair.chosen[0], pair.rejected[0]):
        ids = torch.tensor(tokens.ids_T, dtype=torch.long)[None]
        logp = policy.model(input_ids=ids).logits[0].log_softmax(-1)
        sides.append(logp[:-1].gather(1, ids[0, 1:, None])[:, 0][torch.from_numpy(tokens.mask_T[1:])].sum())
    return torch.stack(sides)


@pytest.mark.parametrize("loss", ["sigmoid", "ipo"])
@pytest.mark.parametrize("budget", [4096, 60, 1])
def test_the_gradient_is_that_of_the_plain_computation(model: Path, tmp_path: Path, loss: Any, budget: int) -> None:
    """For every layout of pairs: together, one micro-batch each, or one answer here and the other there."""
    policy = Policy(ModelConfig(path=str(model), tuning="full"))
    pairs = token_pairs(policy, tmp_path, PAIRS)
    config = loss_config(loss=loss, beta=0.3, rpo_alpha=0.5)
    reference = torch.tensor([[-9.0, -60.0], [-80.0, -7.0], [-30.0, -12.0]])

    batches = PairBatches(pairs, policy, budget)
    measured: dict[str, float] = {}
    part = batches.loss_of(PreferenceLoss(config), reference, lambda batch: policy.outputs(batch).logp_N, measured)
    value = 0.0
    for batch in batches.batches:
        here = part(policy.outputs(batch), batch)
        here.backward()
        value += here.item()
    found = {name: parameter.grad.clone() for name, parameter in policy.parameters}

    policy.model.zero_grad()
    logp_P2 = torch.stack([plain_logp(policy, pair) for pair in pairs])
    tokens_P2 = torch.tensor([pair.num_trained for pair in pairs])
    expected = PreferenceLoss(config)(logp_P2, reference, tokens_P2).mean()
    expected.backward()
    assert value == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in policy.parameters:
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=2e-6 * max(1.0, expected.item()))
    assert measured["logps/chosen"] == pytest.approx(logp_P2[:, 0].mean().item(), rel=1e-5)
    numbers = [tuple(batch.targets["answer"].long().tolist()) for batch in batches.batches]
    if budget == 1:
        assert len(numbers) > len(pairs), "the test shows nothing: no pair was spread"


# Runs


def write_pairs(path: Path, number: int = 64) -> str:
    """Write pairs: the chosen answer repeats the word of the prompt, the other one is the opposite."""
    with open(path, "w") as file:
        for index in range(number):
            word, opposite = ("up", "down") if index % 2 else ("down", "up")
            file.write(json.dumps({"prompt": f"{index}: say {word}", "chosen": word, "rejected": opposite}) + "\n")
    return str(path)


def run_config(base: Path, folder: Path, **sections: Any) -> DpoConfig:
    options: dict[str, Any] = {
        "output": str(folder / "run"),
        "pairs_per_step": 8,
        "progress": False,
        "model": {"path": str(base), "tuning": "full"},
        "preferences": {"file": write_pairs(folder / "pairs.jsonl")},
        "optimizer": {"lr": 3e-3, "warmup_steps": 0},
        "checkpoint": None,
    }
    for name, value in sections.items():
        options[name] = {**(options.get(name) or {}), **value} if isinstance(value, dict) else value
    return from_mapping(DpoConfig, options)


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_preferences_generalize_to_unseen_prompts(model: Path, tmp_path: Path, tuning: str) -> None:
    result = dpo(
        run_config(
            model,
            tmp_path,
            steps=40,
            model={"tuning": tuning},
            optimizer={"lr": 3e-3 if tuning == "full" else 1e-2},
            validation={"fraction": 0.25, "every": 40},
        )
    )
    rows = read_metrics(result.output)
    assert rows[0]["step"] == 0
    assert rows[0]["validation/loss"] == pytest.approx(math.log(2), abs=1e-4), "nothing is preferred before"
    assert rows[0]["validation/rewards/accuracies"] == 0.5
    assert result.validation["validation/rewards/accuracies"] >= 0.9
    assert result.validation["validation/rewards/margins"] > 0.5
    assert result.validation["validation/loss"] < 0.5
    assert result.model is not None
    saved = "model.safetensors" if tuning == "full" else "adapter_model.safetensors"
    assert (result.model / saved).is_file()
    assert (result.output / "manifest.json").is_file()


def test_reference_log_probs_are_computed_once_and_only_for_used_pairs(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    plain = Policy.reference_logprobs
    monkeypatch.setattr(
        Policy, "reference_logprobs", lambda self, batch: calls.append(len(batch.sequence_S)) or plain(self, batch)
    )
    dpo(run_config(model, tmp_path, steps=2, model={"tuning": "lora"}))
    assert sum(calls) == 2 * 8 * 2
    calls.clear()
    dpo(run_config(model, tmp_path, epochs=3, steps=99, model={"tuning": "lora"}, output=str(tmp_path / "epochs")))
    pairs = len((tmp_path / "pairs.jsonl").read_text().splitlines())
    assert sum(calls) == 2 * pairs
    assert len(read_metrics(tmp_path / "epochs")) == math.ceil(3 * pairs / 8)


def test_another_model_can_be_the_reference(model: Path, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other", seed=5, vocab_size=300, hidden_size=32, num_heads=1, num_layers=1)
    result = dpo(run_config(model, tmp_path, steps=1, reference=str(other)))
    assert read_metrics(result.output)[0]["rewards/margins"] != 0.0
    strange = make_tiny_model(tmp_path / "strange", vocab_size=290, hidden_size=32, num_heads=1, num_layers=1)
    with pytest.raises(ConfigError, match="another vocabulary"):
        dpo(run_config(model, tmp_path, steps=1, reference=str(strange), output=str(tmp_path / "x")))


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_a_resumed_run_equals_an_uninterrupted_one(model: Path, tmp_path: Path, tuning: str) -> None:
    options: dict[str, Any] = {"steps": 6, "model": {"tuning": tuning}, "checkpoint": {"every": 2}}
    options["validation"] = {"fraction": 0.2, "every": 2}
    complete = dpo(run_config(model, tmp_path, **options))
    options["output"] = str(tmp_path / "again")
    with terminated_at(3):
        part = dpo(run_config(model, tmp_path, **options))
    assert (part.interrupted, part.steps, part.model) == (True, 3, None)
    with pytest.raises(ConfigError, match="already contains a run"):
        dpo(run_config(model, tmp_path, **options))
    resumed = dpo(run_config(model, tmp_path, **options, resume=True))
    name = "model.safetensors" if tuning == "full" else "adapter_model.safetensors"
    assert complete.model is not None
    assert resumed.model is not None
    assert (complete.model / name).read_bytes() == (resumed.model / name).read_bytes()
    rows = [row["step"] for row in read_metrics(resumed.output)]
    assert rows == list(range(7))
    assert resumed.validation == complete.validation

    # More steps than planned, on a full model that has changed since its reference was computed.
    more = dpo(run_config(model, tmp_path, **{**options, "steps": 8}, resume=True))
    assert more.steps == 8
    (tmp_path / "pairs.jsonl").write_text(json.dumps(PAIRS[0]) + "\n" + json.dumps(PAIRS[1]) + "\n")
    changed = run_config(model, tmp_path, **options, resume=True, preferences={"file": str(tmp_path / "pairs.jsonl")})
    with open(changed.preferences.file, "w") as file:  # type: ignore[arg-type]
        file.writelines(json.dumps(row) + "\n" for row in PAIRS)
    with pytest.raises(ConfigError, match="the pairs differ from those of the checkpoint"):
        dpo(changed)


def test_the_command(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--model.path",
        str(model),
        "--model.tuning",
        "full",
        "--preferences.file",
        write_pairs(tmp_path / "p.jsonl"),
        "--no-progress",
    ]
    assert commands.dpo([*words, "--steps", "1", "--output", str(tmp_path / "o"), "--loss", "ipo"]) == 0
    assert f"model    {tmp_path}/o/model" in capsys.readouterr().out
    with pytest.raises(commands.CommandError, match="already contains a run"):
        commands.dpo([*words, "--steps", "1", "--output", str(tmp_path / "o")])
    with pytest.raises(commands.CommandError, match="no_such"):
        commands.dpo(["--model.path", str(model), "--preferences.file", "no_such.jsonl"])


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"preferences": {"file": ""}}, r"preferences\.file is missing"),
    ({"label_smoothing": 0.5}, r"must be in \[0, 0.5\)"),
    ({"beta": 0.0}, "beta=0.0 must be above 0"),
    ({"length": {"too_long": "cut_left"}}, "cut_left would cut the prompt"),
    ({"validation": {"fraction": 0.0}}, "must be between 0 and 1"),
    ({"model": {"path": ""}}, r"model\.path is missing"),
]


def test_invalid_options_are_errors_that_name_them(model: Path, tmp_path: Path) -> None:
    assert not not_raised(IMPOSSIBLE, lambda options: validate_dpo(run_config(model, tmp_path, **options)), ConfigError)


def test_a_step_that_is_not_finite_is_skipped(model: Path, tmp_path: Path) -> None:
    from trainers.fine_tuning.dpo import dpo_step

    policy = Policy(ModelConfig(path=str(model), tuning="full"))
    pairs = token_pairs(policy, tmp_path, PAIRS)
    learner = Learner(policy, OptimizerConfig(), 5)
    before = [parameter.detach().clone() for _, parameter in policy.parameters]
    update, _ = dpo_step(learner, 0, pairs, torch.full((3, 2), math.inf), PreferenceLoss(loss_config()))
    assert update.skipped == 1
    assert all(torch.equal(old, new) for old, (_, new) in zip(before, policy.parameters, strict=True))
