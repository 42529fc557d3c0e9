"""Algorithms, losses and callbacks written outside the package: two algorithms trained from the command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from echo_config import echo_config
from test_losses import micro_batch
from token_sequences import token_sequence

from examples.algorithms.icepop import ICEPOP, ICEPOP_LOSS
from examples.algorithms.maxrl import MAXRL, MaxRLOptions
from rllm_gym.core import Episode
from rllm_gym.engine import load_episodes
from trainers.algorithms import (
    ALGORITHMS,
    LOSSES,
    Algorithm,
    AlgorithmOptions,
    GroupOptions,
    Loss,
    LossOptions,
    RolloutRequest,
    algorithm_options,
    make_algorithm,
    ratio_bound,
)
from trainers.algorithms.registry import options_of
from trainers.callbacks import Callback
from trainers.config import ConfigError, TrainConfig
from trainers.config_loading import load_yaml, write_yaml
from trainers.loop import train
from trainers.run.metrics import read_metrics
from trainers.samples import Sample

HERE = Path(__file__).parent


def two_steps(folder: Path, **changes: Any) -> TrainConfig:
    return echo_config(folder, steps=2, save_episodes_every=1, **changes)


def train_from_the_command_line(folder: Path, *words: str) -> dict[str, Any]:
    """Train two steps in a process of its own and return the first row of metrics."""
    write_yaml(folder / "echo.yaml", two_steps(folder))
    command = [sys.executable, "-m", "rllm_gym", "train", "--config", str(folder / "echo.yaml"), *words]
    done = subprocess.run(
        command,
        cwd=HERE.parents[1] / "examples" / "algorithms",  # modules in the working directory are found
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return first_row(folder)


def first_row(folder: Path) -> dict[str, Any]:
    rows = read_metrics(folder / "run")
    assert [row["step"] for row in rows] == [0, 1, 2]
    row: dict[str, Any] = rows[1]
    return row


def advantages_by_hand(folder: Path, advantage: Callable[[float, float], float]) -> np.ndarray:
    """Return the advantage of every token that is trained on in the first step, from the saved episodes."""
    groups: dict[str, list[Episode]] = defaultdict(list)
    for episode in load_episodes(folder / "run" / "episodes" / "train-000001.jsonl"):
        groups[episode.group_id].append(episode)
    found: list[float] = []
    for members in groups.values():
        rewards = [float(episode.reward) for episode in members]
        if len(set(rewards)) > 1:
            for episode, reward in zip(members, rewards, strict=True):
                steps = [step for trajectory in episode.trajectories for step in trajectory.steps]
                tokens = sum(len(step.tokens.ids) for step in steps if step.tokens is not None)
                found += [advantage(reward, sum(rewards) / len(rewards))] * tokens
    assert found, "no group with a learning signal"
    return np.array(found)


def test_an_outside_algorithm_is_trained_from_the_command_line(tmp_path: Path) -> None:
    row = train_from_the_command_line(tmp_path, "--algorithm.name", "maxrl:MAXRL", "--algorithm.min-mean", "0.2")
    adv_N = advantages_by_hand(tmp_path, lambda reward, mean: (reward - mean) / mean if mean > 0.2 else 0.0)
    assert row["optim/trained_tokens"] == len(adv_N)
    assert row["advantages/mean"] == pytest.approx(adv_N.mean())
    assert row["advantages/std"] == pytest.approx(adv_N.std())
    assert row["advantages/max"] == pytest.approx(np.abs(adv_N).max())


@pytest.mark.long
def test_an_outside_loss_is_trained_from_the_command_line(tmp_path: Path) -> None:
    # The sampler's probabilities are the trainer's, so that every ratio is 1: above a bound of 0.99, within one of 5.
    row = train_from_the_command_line(tmp_path, "--algorithm.name=icepop:ICEPOP", "--entropy.bonus", "0")
    adv_N = advantages_by_hand(tmp_path, lambda reward, mean: reward - mean)
    assert row["loss"] == pytest.approx(-adv_N.mean(), abs=1e-5)
    assert row["policy/clip_fraction/low"] == row["policy/clip_fraction/high"] == 0.0
    masked = tmp_path / "masked"
    masked.mkdir()
    train(two_steps(masked, algorithm={"loss": "examples.algorithms.icepop:ICEPOP_LOSS", "max_ratio": 0.99}))
    row = first_row(masked)
    assert row["policy/clip_fraction/high"] == 1.0
    assert row["loss"] == 0.0
    assert row["optim/grad_norm"] == 0.0


class Log(Callback):
    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def on_episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        self.calls.append(("episodes", (step, len(episodes))))

    def on_validation(self, step: int, metrics: Mapping[str, float], episodes: Sequence[Episode]) -> None:
        assert metrics["validation/reward/mean"] == pytest.approx(np.mean([float(one.reward) for one in episodes]))
        self.calls.append(("validation", step))

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.calls.append(("step", (step, metrics["loss"])))

    def on_checkpoint(self, step: int, folder: Path) -> None:
        assert (folder / "state.pt").is_file()
        self.calls.append(("checkpoint", step))

    def on_end(self, output: Path, *, interrupted: bool) -> None:
        self.calls.append(("end", (output, interrupted)))


def test_train_takes_an_algorithm_and_callbacks(tmp_path: Path) -> None:
    log = Log()
    config = echo_config(tmp_path, steps=2, algorithm={"group_size": 3})
    train(config, algorithm=MAXRL, callbacks=[log])
    losses = {row["step"]: row["loss"] for row in read_metrics(tmp_path / "run") if row["step"]}
    assert log.calls == [
        ("validation", 0),
        ("episodes", (1, 12)),
        ("step", (1, losses[1])),
        ("checkpoint", 1),
        ("episodes", (2, 12)),
        ("validation", 2),
        ("step", (2, losses[2])),
        ("checkpoint", 2),
        ("end", (tmp_path / "run", False)),
    ]
    stored = load_yaml(TrainConfig, tmp_path / "run" / "config.yaml").algorithm  # what --resume would read
    assert stored == algorithm_options("examples.algorithms.maxrl:MAXRL", group_size=3, groups_per_step=4)
    assert algorithm_options(ICEPOP).name == "examples.algorithms.icepop:ICEPOP", "found by its loss"
    assert algorithm_options(replace(MAXRL)).name == "maxrl", "not a global name of its module"
    with pytest.raises(ConfigError, match="maxrl with loss clip has no option 'normalize_std'"):
        train(replace(config, algorithm=algorithm_options(normalize_std=True)), algorithm=MAXRL)


def test_the_memory_of_an_update_is_estimated_for_the_algorithm_that_is_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy episodes, the reference model and the value head depend on it."""
    seen = []

    def stop(config: TrainConfig, env: Any) -> TrainConfig:
        seen.append(config.algorithm)
        raise ConfigError("enough")

    monkeypatch.setattr("trainers.loop.fit_to_memory", stop)
    with pytest.raises(ConfigError, match="enough"):
        train(echo_config(tmp_path, algorithm={"group_size": 3, "groups_per_step": 4}), algorithm=MAXRL)
    assert seen == [algorithm_options(MAXRL, group_size=3, groups_per_step=4)]


def test_options_of_another_algorithm_are_taken_over_if_they_exist_there() -> None:
    taken = options_of(MAXRL, algorithm_options(group_size=3, clip_low=0.1))
    assert isinstance(taken, MaxRLOptions)
    assert taken == algorithm_options(MAXRL, group_size=3, clip_low=0.1)
    assert options_of(MAXRL, taken) is taken


def test_groups_without_differences_are_dropped_by_what_the_options_say() -> None:
    same = Algorithm("same", GroupOptions, MAXRL.advantages)
    with pytest.raises(TypeError, match=r"loss='gspo' of algorithm 'x' is not a Loss; use trainers.algorithms.LOSSES"):
        Algorithm("x", GroupOptions, MAXRL.advantages, loss="gspo")  # type: ignore[arg-type]
    assert make_algorithm(algorithm_options(same, dynamic_sampling=3)).dynamic_sampling == 3
    with pytest.raises(ConfigError, match="no option 'dynamic_sampling'"):
        algorithm_options("reinforce", dynamic_sampling=3)


@dataclass(frozen=True)
class GroupSizeOptions(LossOptions):
    group_size: int = 1


def test_an_option_that_both_algorithm_and_loss_have_is_an_error() -> None:
    loss = Loss("both", GroupSizeOptions, LOSSES["clip"].function)
    with pytest.raises(ConfigError, match="'both' both have an option group_size; rename one of them"):
        algorithm_options(replace(MAXRL, loss=loss))


@dataclass(frozen=True)
class WidthOptions(LossOptions):
    width: float = ratio_bound(0.1)


def test_bounds_of_an_outside_loss_exist_only_where_they_limit_something() -> None:
    """As those of the package: with one optimizer step the ratio to the trainer's own log-probs is 1."""
    algorithm = replace(MAXRL, loss=Loss("width", WidthOptions, LOSSES["clip"].function))
    for options in ({}, {"old_logprobs": "trainer", "epochs": 2}):
        assert vars(algorithm_options(algorithm, width=0.3, **options))["width"] == 0.3
    with pytest.raises(ConfigError, match="has no option 'width'"):
        algorithm_options(algorithm, width=0.3, old_logprobs="trainer")


def test_mistakes_in_the_options_of_an_outside_algorithm_are_errors() -> None:
    class Undecorated(GroupOptions):
        own: float = 1.0

    @dataclass(frozen=True, kw_only=True)
    class NoDefault(GroupOptions):
        own: float

    with pytest.raises(ConfigError, match="Undecorated, the options of 'maxrl', is not a dataclass: decorate it"):
        algorithm_options(replace(MAXRL, options=Undecorated))

    @dataclass(frozen=True)
    class NoBase:
        own: float = 1.0

    with pytest.raises(ConfigError, match=r"NoDefault.own has no default"):
        algorithm_options(replace(MAXRL, options=NoDefault))
    with pytest.raises(ConfigError, match=r"NoBase, the options of 'maxrl', must be derived from .*AlgorithmOptions"):
        algorithm_options(replace(MAXRL, options=NoBase))
    with pytest.raises(ConfigError, match=r"GroupOptions, the options of 'clip', must be derived from .*LossOptions"):
        algorithm_options(replace(MAXRL, loss=replace(LOSSES["clip"], options=GroupOptions)))


def test_mistakes_in_the_parts_of_an_outside_algorithm_are_errors() -> None:
    """An unknown aggregation was taken for another one; requests that are classes were all greedy."""
    for part, value, expected in (
        ("aggregation", "tokenmean", "aggregation='tokenmean' of algorithm 'maxrl' is not one of 'token-mean', "),
        ("advantages", 3, "advantages=3 of algorithm 'maxrl' is not a function"),
        ("rollouts_per_prompt", 8, "rollouts_per_prompt=8 of algorithm 'maxrl' is not a function"),
    ):
        with pytest.raises((TypeError, ValueError), match=expected):
            replace(MAXRL, **{part: value})
    with pytest.raises(ValueError, match="aggregation='mean' of loss 'clip'"):
        replace(LOSSES["clip"], aggregation="mean")
    for plan, problem in (
        ([RolloutRequest] * 2, "something else than a list of RolloutRequest objects"),
        (8, "something else"),
        ([], "no stochastic episode"),
        ([RolloutRequest(greedy=True)], "no stochastic episode"),
    ):
        broken = replace(MAXRL, rollouts_per_prompt=lambda options, plan=plan: plan)
        with pytest.raises(ValueError, match=f"rollouts_per_prompt of algorithm 'maxrl' returned {problem}"):
            make_algorithm(algorithm_options(broken))


def test_an_error_in_a_module_of_the_user_is_shown_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "with_an_error.py").write_text("import math\n\nA = math.no_such_function\n")
    (tmp_path / "with_an_absent_import.py").write_text("import no_such_package\n")
    with pytest.raises(ConfigError, match=r"AttributeError: module 'math' .*with_an_error.py:3\)"):
        algorithm_options("with_an_error:A")
    with pytest.raises(ConfigError, match=r"No module named 'no_such_package' .*with_an_absent_import.py:1\)"):
        algorithm_options("with_an_absent_import:A")
    with pytest.raises(ConfigError, match=r"module examples\.algorithms\.maxrl has no 'MINE'; write module:name"):
        algorithm_options("examples.algorithms.maxrl:MINE")


def test_icepop_can_be_the_loss_of_another_algorithm() -> None:
    options = algorithm_options("rloo", loss="examples.algorithms.icepop:ICEPOP_LOSS", max_ratio=3.0)
    assert options.loss == "examples.algorithms.icepop:ICEPOP_LOSS"
    assert isinstance(options, ICEPOP_LOSS.options)


def test_what_an_outside_algorithm_returns_is_checked() -> None:
    """A wrong shape must not be broadcast, and a nan must not be skipped silently, step after step."""
    sequence = token_sequence((1, 2, 3), (0, 1, 1), (0.0, -1.0, -1.0))
    samples = [Sample(name, "g", reward, (sequence,)) for name, reward in (("e0", 0.0), ("e1", 1.0))]

    def targets(returned: Any) -> list[list[float]]:
        mine = Algorithm("mine", GroupOptions, lambda batch, options: returned)
        run = make_algorithm(algorithm_options(mine))
        return [value_N.tolist() for value_N in run.targets(samples, {})["adv"]]

    assert targets({"adv": [[1, True], np.float32([0.5, -1])]}) == [[1.0, 1.0], [0.5, -1.0]]
    for returned, expected in (
        (None, "algorithm 'mine' must be a mapping with the keys adv, not a NoneType"),
        ({"advantages": []}, r"not the keys \['advantages'\]"),
        ({"adv": 1.0}, "have a float under 'adv'"),
        ({"adv": [np.zeros(2)]}, r"1 entries under 'adv'; expected one array per sample \(2\)"),
        ({"adv": [np.zeros(2), 0.5]}, r"'adv' of episode 'e1' is an array of float64 with shape \(\)"),
        ({"adv": [np.zeros(3), np.zeros(2)]}, r"'e0' is an array of float64 with shape \(3,\); expected .* \(2,\)"),
        ({"adv": [np.zeros(2), ["a", "b"]]}, "'e1' is an array of <U1"),
        ({"adv": [[[0.0], [0.0, 1.0]], np.zeros(2)]}, "'e0' cannot be converted to an array"),
        ({"adv": [torch.zeros(2, requires_grad=True), np.zeros(2)]}, "'e0' cannot be converted to an array"),
        ({"adv": [np.zeros(2), [0.0, np.nan]]}, "'e1' is nan, although all rewards are finite"),
        ({"adv": [np.zeros(2)] * 2, "weight": [np.zeros(1)] * 2}, "'weight' of episode 'e0'"),
    ):
        with pytest.raises(ValueError, match=expected):
            targets(returned)


def test_what_an_outside_loss_returns_is_checked() -> None:
    old_N, adv_N = np.array([-1.0, -2.0]), np.ones(2)
    batch = micro_batch(old_N, adv_N, np.zeros(2, dtype=int))

    def loss(function: Callable[[torch.Tensor], Any]) -> list[float]:
        mine = Loss("mine", LossOptions, lambda logp_N, batch, options: function(logp_N))
        run = make_algorithm(algorithm_options(replace(MAXRL, loss=mine)))
        return run.loss(torch.tensor(old_N, requires_grad=True), batch)[0].tolist()

    assert loss(lambda logp_N: (-logp_N, logp_N > 0)) == [1.0, 2.0]
    for function, expected in (
        (lambda logp_N: -logp_N, r"loss 'mine' returned a Tensor; expected \(loss_N, bound_N\), two .* shape \(2,\)"),
        (lambda logp_N: (-logp_N,), "returned a tuple of 1;"),
        (lambda logp_N: (-logp_N.mean(), logp_N * 0), r"a tensor with shape \(\) as loss_N"),
        (lambda logp_N: (-logp_N, logp_N[:1]), r"a tensor with shape \(1,\) as bound_N"),
        (lambda logp_N: (-logp_N, 0.0), "a float as bound_N"),
        (lambda logp_N: (-logp_N.detach(), logp_N * 0), "loss_N without gradient; compute it from logp_N"),
    ):
        with pytest.raises(ValueError, match=expected):
            loss(function)


def test_maxrl_does_not_divide_by_a_mean_near_0() -> None:
    sequence = token_sequence((1, 2), (0, 1), (0.0, -1.0))

    def advantages(*rewards: float) -> list[float]:
        samples = [Sample(f"e{index}", "g", reward, (sequence,)) for index, reward in enumerate(rewards)]
        return [float(adv_N[0]) for adv_N in make_algorithm(algorithm_options(MAXRL)).targets(samples, {})["adv"]]

    assert advantages(-0.3, -0.15, -0.1, 0.0) == advantages(0.0, 0.0, 0.0, 1e-3) == [0.0] * 4
    assert advantages(0.0, 0.0, 0.0, 1.0) == [-1.0, -1.0, -1.0, 3.0]


def test_options_of_no_algorithm_are_an_error_that_says_how_to_create_them() -> None:
    with pytest.raises(ConfigError, match=r"AlgorithmOptions\(...\).*algorithm_options\(name"):
        make_algorithm(AlgorithmOptions(group_size=4))
    with pytest.raises(ConfigError, match="algorithm_options"):
        options_of(MAXRL, AlgorithmOptions())


def test_the_help_describes_every_algorithm_and_loss() -> None:
    hints = get_type_hints(type(algorithm_options()), include_extras=True)
    for option, table in (("name", ALGORITHMS), ("loss", LOSSES)):
        (argument,) = hints[option].__metadata__
        found = re.findall(r"(\S+): [A-Z][^.]+\.", argument.help)
        assert found == list(table), argument.help
