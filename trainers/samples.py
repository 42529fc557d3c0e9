"""``Sample``: the token sequences and rewards of an episode, all that training needs of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from rllm_gym.core import Episode, Step, StopReason, TokenSequence, Trajectory
from trainers.config import TrainConfig


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

    def __post_init__(self) -> None:
        if not self.trajectory_S:
            object.__setattr__(self, "trajectory_S", (0,) * len(self.sequences))
        if not self.turn_rewards:
            object.__setattr__(self, "turn_rewards", (_rewards_by_turn(self.sequences, self.reward),))

    @property
    def task_group(self) -> str:
        """The group of episodes, independent of the role."""
        return self.group_id.removesuffix(f"/{self.role}") if self.role else self.group_id

    @property
    def num_sampled(self) -> int:
        """Number of sampled tokens over all sequences: the length of the sample's advantages."""
        return sum(sum(sequence.mask) for sequence in self.sequences)


@dataclass(frozen=True, slots=True)
class RewardShaping:
    """Penalties subtracted from an episode's own reward before training.

    Attributes:
        format_penalty: Multiplied by the fraction of turns that could not be parsed; divided equally among these
            turns.
        overlong_penalty: Penalty of an episode with ``max_tokens`` sampled tokens, subtracted at its end.
        overlong_buffer: Number of tokens before ``max_tokens`` over which that penalty grows from 0 (DAPO, Yu et al.
            2025, equation 13).
        max_tokens: Maximum number of sampled tokens per episode.
    """

    format_penalty: float = 0.0
    overlong_penalty: float = 0.0
    overlong_buffer: int = 0
    max_tokens: int | None = None

    @classmethod
    def of(cls, config: TrainConfig) -> RewardShaping:
        algorithm = config.algorithm
        return cls(
            algorithm.format_penalty,
            algorithm.overlong_penalty,
            algorithm.overlong_buffer,
            config.sampling.max_response_tokens,
        )

    def length_penalty(self, tokens: int) -> float:
        """Return the penalty for a number of sampled tokens.

        >>> shaping = RewardShaping(overlong_penalty=1.0, overlong_buffer=20, max_tokens=100)
        >>> [shaping.length_penalty(tokens) for tokens in (80, 85, 100)]
        [0.0, 0.25, 1.0]
        """
        if not self.overlong_penalty or self.max_tokens is None:
            return 0.0
        missing = self.max_tokens - tokens
        if missing <= 0:
            return self.overlong_penalty
        return self.overlong_penalty * max(0.0, 1.0 - missing / self.overlong_buffer) if self.overlong_buffer else 0.0


NO_SHAPING = RewardShaping()
"""No penalties."""


def samples_of(
    episodes: Iterable[Episode], shaping: RewardShaping = NO_SHAPING, adapter_of: Callable[[str], str] | None = None
) -> list[Sample]:
    """Convert episodes to samples. Environment faults, agent errors and cancelled episodes are excluded.

    Args:
        episodes: Completed episodes.
        shaping: Penalties subtracted from their rewards.
        adapter_of: Maps a role to the weights trained on it. Each trainable trajectory becomes a sample with its own
            reward, compared with those of the same role in its group. ``None``: each episode becomes one sample.

    Raises:
        TokensMissing: An episode has no token ids.
    """
    trainable = [episode for episode in episodes if episode.trainable]
    if adapter_of is None:
        return [_sample(episode, episode.trajectories, float(episode.reward), shaping) for episode in trainable]
    return [
        replace(
            _sample(episode, [trajectory], float(trajectory.reward), shaping),
            episode_id=f"{episode.episode_id}/{trajectory.name}",
            group_id=f"{episode.group_id}/{trajectory.role}",
            role=trajectory.role,
            adapter=adapter_of(trajectory.role),
        )
        for episode in trainable
        for trajectory in episode.trajectories
        if trajectory.trainable
    ]


_TERMINATED = (StopReason.SUCCESS, StopReason.FAILURE, StopReason.INVALID_ACTION)
_OVERLONG = (StopReason.MAX_TOKENS, StopReason.CONTEXT_LENGTH, StopReason.TIMEOUT)


def _sample(episode: Episode, trajectories: Sequence[Trajectory], reward: float, shaping: RewardShaping) -> Sample:
    try:
        branches = [trajectory.branches() for trajectory in trajectories]
    except ValueError as error:
        raise TokensMissing(f"episode {episode.episode_id!r} cannot be trained on: {error}") from error
    sequences = tuple(branch for own in branches for branch in own)
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    part = shaping.format_penalty / len(steps) if steps else 0.0
    reward -= part * sum(map(_invalid, steps))
    reward -= shaping.length_penalty(sum(sum(sequence.mask) for sequence in sequences))
    return Sample(
        episode.episode_id,
        episode.group_id,
        reward,
        sequences,
        episode.greedy,
        terminated=episode.stop_reason in _TERMINATED,
        # In a single-turn environment, a truncated reply ends the episode with an ordinary stop reason.
        overlong=episode.stop_reason in _OVERLONG or any(_cut(trajectory.steps) for trajectory in trajectories),
        turn_rewards=tuple(
            _final_turn_rewards([step.reward - part * _invalid(step) for step in trajectory.steps], reward)
            for trajectory in trajectories
        ),
        trajectory_S=tuple(index for index, own in enumerate(branches) for _ in own),
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
