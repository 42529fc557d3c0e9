"""The value and gradient of each loss equal a numpy oracle written token by token from its paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chat.for_every import for_every
from trainers.algorithms import algorithm_options, make_algorithm
from trainers.algorithms.losses import clipped_value_loss
from trainers.batching import MicroBatch

Oracle = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], tuple[list[float], list[float]]]


def micro_batch(old: np.ndarray, adv: np.ndarray, sequence: np.ndarray, **targets: np.ndarray) -> MicroBatch:
    empty, tensors = torch.zeros(0), {"adv": adv, **targets}
    return MicroBatch(
        ids_BT=empty,
        row_N=empty,
        column_N=empty,
        source_N=empty,
        sampler_logp_N=torch.tensor(old),
        weight_N=empty,
        sequence_N=torch.tensor(sequence),
        last_S=empty,
        sequence_S=empty,
        targets={name: torch.tensor(values) for name, values in tensors.items()},
    )


def sequence_ratios(new: np.ndarray, old: np.ndarray, sequence: np.ndarray) -> np.ndarray:
    """GSPO, equation 7: the likelihood ratio to the power of one over the length."""
    return np.array(
        [np.prod(np.exp(new - old)[sequence == s]) ** (1 / np.sum(sequence == s)) for s in sequence.tolist()]
    )


def by_token(value: Callable[[float, float, float], tuple[float, float]]) -> Oracle:
    """An oracle from (ratio, log-prob, advantage) to the loss and its derivative by the log-prob."""

    def oracle(new: np.ndarray, old: np.ndarray, adv: np.ndarray, _: np.ndarray) -> tuple[list[float], list[float]]:
        pairs = [value(np.exp(n - o), n, a) for n, o, a in zip(new, old, adv, strict=True)]
        return [loss for loss, _ in pairs], [slope for _, slope in pairs]

    return oracle


def clip(low: float, high: float) -> Callable[[float, float, float], tuple[float, float]]:
    def value(ratio: float, logp: float, a: float) -> tuple[float, float]:
        objective, slope = ratio * a, ratio * a
        clipped = min(max(ratio, 1 - low), 1 + high) * a
        if clipped < objective:
            objective, slope = clipped, 0.0
        return -objective, -slope

    return value


def gspo(low: float, high: float) -> Oracle:
    def oracle(
        new: np.ndarray, old: np.ndarray, adv: np.ndarray, sequence: np.ndarray
    ) -> tuple[list[float], list[float]]:
        pairs = [
            clip(low, high)(ratio, 0.0, a) for ratio, a in zip(sequence_ratios(new, old, sequence), adv, strict=True)
        ]
        return [loss for loss, _ in pairs], [slope for _, slope in pairs]

    return oracle


def cispo(low: float, high: float) -> Callable[[float, float, float], tuple[float, float]]:
    def value(ratio: float, logp: float, a: float) -> tuple[float, float]:
        weight = min(max(ratio, 1 - low), 1 + high)
        return -weight * a * logp, -weight * a

    return value


def reinforce(cap: float) -> Callable[[float, float, float], tuple[float, float]]:
    return lambda ratio, logp, a: (-min(ratio, cap) * a * logp, -min(ratio, cap) * a)


def dppo(low: float, high: float) -> Callable[[float, float, float], tuple[float, float]]:
    def value(ratio: float, logp: float, a: float) -> tuple[float, float]:
        moved = np.exp(logp) - np.exp(logp) / ratio
        dropped = (a > 0 and moved > high) or (a < 0 and moved < -low)
        return (0.0, 0.0) if dropped else (-ratio * a, -ratio * a)

    return value


LOSSES: list[tuple[dict[str, Any], Oracle]] = [
    ({}, by_token(clip(0.2, 0.28))),
    ({"clip_low": 0.1, "clip_high": 0.5}, by_token(clip(0.1, 0.5))),
    ({"loss": "gspo"}, gspo(3e-4, 4e-4)),
    ({"loss": "gspo", "clip_low": 0.2, "clip_high": 0.3}, gspo(0.2, 0.3)),
    ({"loss": "cispo"}, by_token(cispo(1.0, 4.0))),
    ({"loss": "cispo", "clip_low": 0.3, "clip_high": 0.4}, by_token(cispo(0.3, 0.4))),
    ({"loss": "dppo"}, by_token(dppo(0.2, 0.2))),
    ({"loss": "dppo", "clip_low": 0.05, "clip_high": 0.1}, by_token(dppo(0.05, 0.1))),
    ({"loss": "reinforce"}, by_token(reinforce(2.0))),
    ({"loss": "reinforce", "importance_cap": 1.2}, by_token(reinforce(1.2))),
]


def evaluate(options: dict[str, Any], new: np.ndarray, batch: MicroBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the loss, its derivative with respect to each log-prob, and the reported clip fractions."""
    logp_N = torch.tensor(new).requires_grad_()
    loss_N, clipped_N = make_algorithm(algorithm_options(**options)).loss(logp_N, batch)
    loss_N.sum().backward()  # type: ignore[no-untyped-call]
    assert logp_N.grad is not None
    return loss_N.detach().numpy(), logp_N.grad.numpy(), clipped_N.numpy()


def draw(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    number = int(rng.integers(1, 12))
    old = -rng.exponential(size=number)
    return np.minimum(old + rng.normal(scale=0.6, size=number), -1e-3), old, rng.normal(size=number), np.sort(
        rng.integers(0, 4, size=number)
    )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
@for_every("loss_and_oracle", LOSSES)
def test_losses_and_gradients(loss_and_oracle: tuple[dict[str, Any], Oracle], seed: int) -> None:
    options, oracle = loss_and_oracle
    new, old, adv, sequence = draw(seed)
    if options.get("loss") == "gspo":  # one advantage a sequence: equation 5; the token form has the same gradient
        adv = np.random.default_rng(seed).normal(size=4)[sequence]
    loss, slope, clipped = evaluate(options, new, micro_batch(old, adv, sequence))
    expected, expected_slope = oracle(new, old, adv, sequence)
    assert loss == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert slope == pytest.approx(expected_slope, rel=1e-9, abs=1e-12)
    if options.get("loss") not in ("cispo", "reinforce"):  # these keep a gradient where they clip
        assert np.array_equal(clipped != 0, np.array(expected_slope) == 0)


def test_gspo_has_the_gradient_of_its_objective() -> None:
    """Equation 5 differentiated by finite differences: the mean over sequences of min(s A, clip(s) A)."""
    old, sequence = np.log(np.array([0.2, 0.5, 0.3, 0.9, 0.4])), np.array([0, 0, 0, 1, 1])
    new, adv = old + np.array([1e-4, -2e-4, 3e-4, 1e-4, 1e-4]), np.array([1.0, 1.0, 1.0, -0.5, -0.5])

    def objective(logp: np.ndarray) -> float:
        ratios = sequence_ratios(logp, old, sequence)
        kept = [min(s * a, np.clip(s, 1 - 3e-4, 1 + 4e-4) * a) for s, a in zip(ratios, adv, strict=True)]
        return (kept[0] + kept[3]) / 2

    _, slope, _ = evaluate({"loss": "gspo"}, new, micro_batch(old, adv, sequence))
    weight = np.array([1 / 6] * 3 + [1 / 4] * 2)  # sequence-mean
    step = 1e-6
    numeric = [(objective(new + step * e) - objective(new - step * e)) / (2 * step) for e in np.eye(5)]
    assert -slope * weight == pytest.approx(numeric, rel=1e-5)


MODES = ("token-truncate", "token-mask", "sequence-truncate", "sequence-mask")


def importance_weights(
    log_ratio: np.ndarray, sequence: np.ndarray, mode: str, low: float, high: float
) -> tuple[list[float], list[float], list[int]]:
    """For each token: the ratio, the weight that takes its place, and the bound that it exceeds."""
    ratios, weights, bounds = [], [], []
    for index, own in enumerate(sequence.tolist()):
        chosen = log_ratio[sequence == own] if mode.startswith("sequence") else log_ratio[index : index + 1]
        ratio = float(np.prod(np.exp(chosen)))
        inside = low <= ratio <= high
        ratios.append(ratio)
        bounds.append(0 if inside else 1 if ratio > high else -1)
        weights.append(min(max(ratio, low), high) if inside or mode.endswith("truncate") else 0.0)
    return ratios, weights, bounds


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
@for_every("mode", MODES)
@for_every("cap", [1.3, (0.7, 1.3)])
@for_every("loss", ["clip", "dppo", "reinforce"])
def test_importance_weights_to_the_sampler_are_limited(loss: str, cap: Any, mode: str, seed: int) -> None:
    """With the sampler's log-probs the loss's own ratio is limited; with the trainer's, theirs to the sampler's is."""
    new, old, adv, sequence = draw(seed)
    low, high = cap if isinstance(cap, tuple) else (0.0, cap)
    bare: dict[str, Any] = {"loss": loss, **({"importance_cap": 1e9} if loss == "reinforce" else {})}
    limited = {"loss": loss, "importance_cap": cap, "importance_mode": mode}
    sampler = old + np.random.default_rng(seed).normal(scale=0.4, size=len(old))

    plain, plain_slope, plain_bound = evaluate(bare, new, micro_batch(old, adv, sequence))
    ratio, weight, bound = importance_weights(new - old, sequence, mode, low, high)
    found, slope, found_bound = evaluate(limited, new, micro_batch(old, adv, sequence))
    factor = np.array(weight) / np.array(ratio)
    assert found == pytest.approx(plain * factor, abs=1e-9)
    assert slope == pytest.approx(plain_slope * factor, abs=1e-9)
    if mode == "token-truncate":
        assert found_bound.tolist() == np.where(plain_bound != 0, plain_bound, bound).tolist()

    _, weight, bound = importance_weights(old - sampler, sequence, mode, low, high)
    found, slope, _ = evaluate(limited, new, micro_batch(sampler, adv, sequence, old_logp=old))
    if loss == "reinforce":  # it has no other bound of the ratio to the trainer's
        weight = list(np.array(weight) * np.minimum(1.0, high / np.exp(new - old)))
    assert found == pytest.approx(plain * weight, abs=1e-9)
    assert slope == pytest.approx(plain_slope * weight, abs=1e-9)


def test_an_infinite_ratio_that_is_masked_leaves_a_finite_gradient() -> None:
    new, old = np.array([-0.1, -0.1, -900.0]), np.array([-2000.0, -0.2, -0.1])
    for mode in ("token-mask", "sequence-mask"):
        options = {"importance_cap": (0.5, 5.0), "importance_mode": mode}
        loss, slope, bound = evaluate(options, new, micro_batch(old, -np.ones(3), np.arange(3)))
        assert bound.tolist() == [1, 0, -1]
        assert (loss != 0).tolist() == (slope != 0).tolist() == [False, True, False]
        assert np.isfinite(loss).all()
        assert np.isfinite(slope).all()


def test_a_ratio_that_overflows_and_is_dropped_leaves_a_finite_gradient() -> None:
    new, old = np.array([-0.1, -0.1]), np.array([-2000.0, -0.2])
    loss, slope, dropped = evaluate({"loss": "dppo"}, new, micro_batch(old, np.ones(2), np.arange(2)))
    assert dropped.tolist() == [1, 0]
    assert np.isfinite(loss).all()
    assert np.isfinite(slope).all()


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), limit=st.sampled_from([0.0, 0.2, 1.0]))
def test_value_loss(seed: int, limit: float) -> None:
    rng = np.random.default_rng(seed)
    value, old, goal = rng.normal(size=(3, 6))
    expected = []
    for v, before, r in zip(value, old, goal, strict=True):
        near = min(max(v, before - limit), before + limit)
        expected.append(0.5 * max((v - r) ** 2, (near - r) ** 2) if limit else 0.5 * (v - r) ** 2)
    found = clipped_value_loss(*map(torch.tensor, (value, old, goal)), clip=limit)
    assert found.numpy() == pytest.approx(expected)


def test_only_decisions_count_in_the_value_loss() -> None:
    decision = np.array([1.0, 0.0, 1.0])
    batch = micro_batch(np.zeros(3), np.zeros(3), np.zeros(3, int), value=np.zeros(3), decision=decision,
                        **{"return": np.ones(3)})  # fmt: skip
    algorithm = make_algorithm(algorithm_options("ppo"))
    value_N = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    # The last value has moved by 1 to its return: clipped to 0.2.
    assert algorithm.value_loss(value_N, batch).tolist() == pytest.approx([0.5, 0.0, 0.5 * 0.8**2])
