"""The group-relative length penalty of Kimi k1.5, section 2.3.3; a run with it, replay by difficulty and a reference
that follows the policy.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from echo_config import echo_config
from test_example_algorithms import branching_samples

from rllm_gym.engine import load_episodes
from trainers.loop import train
from trainers.run.metrics import read_metrics
from trainers.samples import Sample, samples_of, with_length_penalty


def shaped_by_hand(sample: Sample, group: list[Sample], weight: float) -> float:
    lengths = [sum(sum(sequence.mask) for sequence in other.sequences) for other in group]
    if max(lengths) == min(lengths):
        return sample.reward
    own = sum(sum(sequence.mask) for sequence in sample.sequences)
    share = 0.5 - (own - min(lengths)) / (max(lengths) - min(lengths))
    return sample.reward + weight * (share if sample.success else min(0.0, share))


def test_short_successes_are_rewarded_and_long_episodes_penalized() -> None:
    samples = [replace(sample, success=sample.reward == 1.0) for sample in branching_samples()]
    samples.append(replace(samples[0], greedy=True, episode_id="greedy"))
    samples.append(replace(samples[0], group_id="alone", episode_id="alone"))
    shaped = with_length_penalty(samples, 0.4)
    for before, after in zip(samples, shaped, strict=True):
        group = [other for other in samples if other.group_id == before.group_id and not other.greedy]
        expected = before.reward if before.greedy else shaped_by_hand(before, group, 0.4)
        assert after.reward == pytest.approx(expected), before.episode_id
        assert [sum(turns) for turns in after.turn_rewards] == pytest.approx([expected] * len(after.turn_rewards))
        assert replace(after, reward=before.reward, turn_rewards=before.turn_rewards) == before
    changes = [after.reward - before.reward for before, after in zip(samples, shaped, strict=True)]
    assert max(changes) > 0 > min(changes)
    assert with_length_penalty(samples, 0.0) == samples


def test_a_run_trains_on_the_shaped_rewards_and_repeats_tasks_by_difficulty(tmp_path: Path) -> None:
    config = echo_config(
        tmp_path,
        steps=4,
        save_episodes_every=1,
        curriculum={"replay_fraction": 0.5, "replay_by": "difficulty"},
        algorithm={"length_penalty": 0.4, "kl": 0.01, "reference_sync": [2, 0.5]},
        validation=None,
    )
    train(config)
    rows = read_metrics(tmp_path / "run")
    episodes = load_episodes(tmp_path / "run" / "episodes" / "train-000001.jsonl")
    samples = samples_of(episodes)
    assert rows[0]["reward/mean"] == pytest.approx(np.mean([sample.reward for sample in samples])), (
        "not the shaped ones"
    )
    adv: list[float] = []
    for group in {sample.group_id for sample in samples}:
        members = [sample for sample in samples if sample.group_id == group]
        shaped = [shaped_by_hand(sample, members, 0.4) for sample in members]
        if len(set(shaped)) > 1:
            for sample, reward in zip(members, shaped, strict=True):
                adv += [reward - float(np.mean(shaped))] * sample.num_sampled
    assert rows[0]["optim/trained_tokens"] == len(adv)
    assert rows[0]["advantages/std"] == pytest.approx(np.std(adv))
    for step in range(1, 4):
        earlier = {task for row in rows[:step] for task in row["tasks"]}
        assert len(earlier & set(rows[step]["tasks"])) == 2
