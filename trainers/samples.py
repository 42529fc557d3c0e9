"""``Sample``: the token sequences and rewards of an episode, all that training needs of it."""

from __future__ import annotations

import contextlib
import itertools
import math
import numbers
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rllm_gym.core import Episode, Step, StopReason, TokenSequence, Trajectory
from trainers.array_types import FloatArray


class TokensMissing(ValueError):
    """Episodes have no token ids or log-probs, because the sampler does not return them. They can only be evaluated."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One completed episode, or one agent's part of it, as input of an algorithm.

    Attributes:
        episode_id: Unique within a run.
        group_id: Group within which rewards are compared. It ends with the role if agents have roles.
        reward: The reward to train on, including shaping.
        sequences: Its token sequences, one per branch of the conversation.
        greedy: Sampled at temperature 0: a baseline, never trained on.
        terminated: Whether the task itself ended, solved or not. Otherwise a limit truncated the episode, and its
            last state still has a value.
        success: Whether the episode solved its task.
        components: Sum of each component of the reward over the steps (``info["reward_components"]``), without shaping.
        final_ids: For each agent the prompt of its next reply, if the episode was truncated; empty if there is none.
        overlong: Whether a token or time limit truncated it.
        turn_rewards: For each agent the reward of each of its steps, including shaping; each list sums to
            ``reward``. By default, the rewards of the sequences' tokens are used, and the last turn gets the rest of
            ``reward``.
        trajectory_S: Index of the agent of each sequence; by default all belong to one agent.
        role: The role of the agent; ``""`` for a whole episode of an environment.
        adapter: Which weights are trained on it; see :class:`~trainers.model.Policy`.
    """

    episode_id: str
    group_id: str
    reward: float
    sequences: tuple[TokenSequence, ...]
    greedy: bool = False
    terminated: bool = True
    overlong: bool = False
    turn_rewards: tuple[tuple[float, ...], ...] = ()
    trajectory_S: tuple[int, ...] = ()
    role: str = ""
    adapter: str = ""
    final_ids: tuple[tuple[int, ...], ...] = ()
    components: Mapping[str, float] = field(default_factory=dict)
    success: bool = False

    def __post_init__(self) -> None:
        if not self.trajectory_S:
            object.__setattr__(self, "trajectory_S", (0,) * len(self.sequences))
        if not self.turn_rewards:
            object.__setattr__(self, "turn_rewards", (_rewards_by_turn(self.sequences, self.reward),))
        if not self.final_ids:
            object.__setattr__(self, "final_ids", ((),) * len(self.turn_rewards))

    @property
    def task_group(self) -> str:
        """The group of episodes, independent of the role."""
        return self.group_id.removesuffix(f"/{self.role}") if self.role else self.group_id

    @property
    def num_sampled(self) -> int:
        """Number of sampled tokens over all sequences: the length of the sample's advantages."""
        return sum(sum(sequence.mask) for sequence in self.sequences)


def samples_of(
    episodes: Iterable[Episode], format_penalty: float = 0.0, adapter_of: Callable[[str], str] | None = None
) -> list[Sample]:
    """Convert episodes to samples. Environment faults, agent errors and cancelled episodes are excluded.

    Args:
        episodes: Completed episodes.
        format_penalty: Subtracted from the reward, multiplied by the fraction of turns that could not be parsed;
            divided equally among these turns.
        adapter_of: Maps a role to the weights trained on it. Each trainable trajectory becomes a sample with its own
            reward, compared with those of the same role in its group. ``None``: each episode becomes one sample.

    Raises:
        TokensMissing: An episode has no token ids.
    """
    trainable = [episode for episode in episodes if episode.trainable]
    if adapter_of is None:
        return [_sample(episode, episode.trajectories, float(episode.reward), format_penalty) for episode in trainable]
    return [
        replace(
            _sample(episode, [trajectory], float(trajectory.reward), format_penalty),
            episode_id=f"{episode.episode_id}/{trajectory.name}",
            group_id=f"{episode.group_id}/{trajectory.role}",
            role=trajectory.role,
            adapter=adapter_of(trajectory.role),
        )
        for episode in trainable
        for trajectory in episode.trajectories
        if trajectory.trainable
    ]


def record_advantages(episodes: Iterable[Episode], samples: Iterable[Sample], adv: Iterable[FloatArray]) -> None:
    """Set the advantages of the episodes' tokens, to be saved with them.

    Args:
        episodes: Those that the samples were made of.
        samples: The samples.
        adv: For each sample one value per sampled token.
    """
    parts = {episode.episode_id: episode.trajectories for episode in episodes}
    parts |= {f"{name}/{one.name}": [one] for name, agents in list(parts.items()) for one in agents}
    for sample, adv_N in zip(samples, adv, strict=True):
        rest = iter(adv_N)
        agents = parts[sample.episode_id]
        for sequence, agent in zip(sample.sequences, sample.trajectory_S, strict=True):
            for turn in sorted({turn for turn in sequence.turns if turn >= 0}):
                step = agents[agent].steps[turn]
                assert step.tokens is not None
                own = tuple(float(value) for value in itertools.islice(rest, len(step.tokens.ids)))
                step.tokens = replace(step.tokens, advantages=own)


def with_length_penalty(samples: Sequence[Sample], weight: float) -> list[Sample]:
    """Add to the rewards a bonus for short and a penalty for long episodes within each group: Kimi k1.5 (2025), section
    2.3.3, multiplied by ``weight``.

    It falls from 1/2 for the group's shortest episode to -1/2 for its longest; episodes that did not succeed get only
    the negative part. Greedy episodes are a baseline and stay as they are.
    """
    if not weight:
        return list(samples)
    lengths: dict[str, list[int]] = {}
    for sample in samples:
        if not sample.greedy:
            lengths.setdefault(sample.group_id, []).append(sample.num_sampled)
    shaped = []
    for sample in samples:
        own = lengths.get(sample.group_id, [0])
        if not sample.greedy and max(own) > min(own):
            share = 0.5 - (sample.num_sampled - min(own)) / (max(own) - min(own))
            reward = sample.reward + weight * (share if sample.success else min(0.0, share))
            turns = tuple(_final_turn_rewards(list(rewards), reward) for rewards in sample.turn_rewards)
            sample = replace(sample, reward=reward, turn_rewards=turns)
        shaped.append(sample)
    return shaped


_OVERLONG = (StopReason.MAX_TOKENS, StopReason.CONTEXT_LENGTH, StopReason.TIMEOUT)


def _sample(episode: Episode, trajectories: Sequence[Trajectory], reward: float, format_penalty: float) -> Sample:
    try:
        branches = [trajectory.branches() for trajectory in trajectories]
    except ValueError as error:
        raise TokensMissing(f"episode {episode.episode_id!r} cannot be trained on: {error}") from error
    sequences = tuple(branch for own in branches for branch in own)
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    part = format_penalty / len(steps) if steps else 0.0
    reward -= part * sum(map(_invalid, steps))
    return Sample(
        episode.episode_id,
        episode.group_id,
        reward,
        sequences,
        episode.greedy,
        terminated=not episode.stop_reason.truncated,
        # In a single-turn environment, a truncated reply ends the episode with an ordinary stop reason.
        overlong=episode.stop_reason in _OVERLONG or any(_cut(trajectory.steps) for trajectory in trajectories),
        turn_rewards=tuple(
            _final_turn_rewards([step.reward - part * _invalid(step) for step in trajectory.steps], reward)
            for trajectory in trajectories
        ),
        trajectory_S=tuple(index for index, own in enumerate(branches) for _ in own),
        final_ids=tuple(trajectory.final_ids for trajectory in trajectories),
        components=component_sums(steps),
        success=episode.success,
    )


def _final_turn_rewards(rewards: list[float], total: float) -> tuple[float, ...]:
    """Return the rewards of the turns, with the rest of the episode's reward added to the last one."""
    if rewards:
        rewards[-1] += total - sum(rewards)
    return tuple(rewards)


def _rewards_by_turn(sequences: tuple[TokenSequence, ...], total: float) -> tuple[float, ...]:
    rewards = [0.0] * (1 + max((turn for sequence in sequences for turn in sequence.turns), default=-1))
    for sequence in sequences:
        for turn, reward in zip(sequence.turns, sequence.rewards, strict=True):
            if turn >= 0:
                rewards[turn] += reward
    return _final_turn_rewards(rewards, total)


def _invalid(step: Step) -> bool:
    return bool(step.info.get("invalid_action", False))


def _cut(steps: list[Step]) -> bool:
    return bool(steps) and steps[-1].tokens is not None and steps[-1].tokens.finish_reason == "length"


def component_sums(steps: Iterable[Step]) -> dict[str, float]:
    """Return the sum of each component of the reward over the steps."""
    totals: defaultdict[str, float] = defaultdict(float)
    for step in steps:
        components = step.info.get("reward_components")
        # An environment that is not ours may use the key for something else.
        for name, value in components.items() if isinstance(components, Mapping) else ():
            if (number := finite_number(value)) is not None:
                totals[str(name)] += number
    return dict(totals)


def finite_number(value: object) -> float | None:
    """Return a value as a number; ``None`` if it is none, or not finite."""
    if isinstance(value, numbers.Real | np.bool_):
        with contextlib.suppress(OverflowError):  # an integer above the largest float
            if math.isfinite(number := float(value)):
                return number
    return None
