"""What training reads of an episode: its token sequences and its rewards. Nothing of environments or texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from rllm_gym.core import Episode, Step, StopReason, TokenSequence, Trajectory
from trainers.config import TrainConfig


class TokensMissing(ValueError):
    """Episodes came from a sampler that returns no token ids or log-probs: they can be evaluated, not trained on."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished episode, or what one agent did in it, as an algorithm sees it.

    Attributes:
        episode_id: Unique within a run.
        group_id: Those whose rewards are compared share it; it ends with the role where agents have roles.
        reward: The reward to learn from, shaping included.
        sequences: Its token sequences, one per branch of the conversation.
        greedy: Sampled at temperature 0: a baseline, never trained on.
        terminated: The task itself ended, solved or not. If not, a limit cut the episode off, and what would have
            come after it still has a value.
        overlong: A limit of tokens or of time cut it off.
        turn_rewards: For each agent the reward of each of its steps, shaping included; each sums to ``reward``. Left
            out, the rewards on the sequences' tokens are taken, and the last turn gets what ``reward`` has beyond.
        trajectory_S: Which agent each sequence belongs to; left out, one agent owns all.
        role: The role of the agent; ``""`` for a whole episode of an environment.
        adapter: Which weights it is to teach; see :class:`~trainers.model.Policy`.
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
            object.__setattr__(self, "turn_rewards", (_paid_to_tokens(self.sequences, self.reward),))

    @property
    def task_group(self) -> str:
        """The group of episodes, whatever the role."""
        return self.group_id.removesuffix(f"/{self.role}") if self.role else self.group_id

    @property
    def num_sampled(self) -> int:
        """Sampled tokens over all sequences: the length of the sample's advantages."""
        return sum(sum(sequence.mask) for sequence in self.sequences)


@dataclass(frozen=True, slots=True)
class Shaping:
    """What is taken from an episode's own reward before it is learnt from.

    Attributes:
        format_penalty: Times the share of turns that could not be parsed; each such turn pays its part.
        overlong_penalty: For an episode of ``max_tokens`` sampled tokens, paid at its end.
        overlong_buffer: Tokens before ``max_tokens`` over which that penalty grows from 0 (DAPO, Yu et al. 2025,
            equation 13).
        max_tokens: Most tokens an episode may sample.
    """

    format_penalty: float = 0.0
    overlong_penalty: float = 0.0
    overlong_buffer: int = 0
    max_tokens: int | None = None

    @classmethod
    def of(cls, config: TrainConfig) -> Shaping:
        algorithm = config.algorithm
        return cls(
            algorithm.format_penalty,
            algorithm.overlong_penalty,
            algorithm.overlong_buffer,
            config.sampling.max_response_tokens,
        )

    def length_penalty(self, tokens: int) -> float:
        """The penalty for that many sampled tokens.

        >>> shaping = Shaping(overlong_penalty=1.0, overlong_buffer=20, max_tokens=100)
        >>> [shaping.length_penalty(tokens) for tokens in (80, 85, 100)]
        [0.0, 0.25, 1.0]
        """
        if not self.overlong_penalty or self.max_tokens is None:
            return 0.0
        missing = self.max_tokens - tokens
        if missing <= 0:
            return self.overlong_penalty
        return self.overlong_penalty * max(0.0, 1.0 - missing / self.overlong_buffer) if self.overlong_buffer else 0.0


PLAIN = Shaping()
"""Nothing is taken."""


def samples_of(
    episodes: Iterable[Episode], shaping: Shaping = PLAIN, adapter_of: Callable[[str], str] | None = None
) -> list[Sample]:
    """The episodes that tell something about the model; faults, agent errors and cancelled ones are left out.

    Args:
        episodes: Finished ones.
        shaping: What is taken from their rewards.
        adapter_of: Of a role, the weights it teaches: each trainable trajectory is a sample then, with the reward of
            its own, compared with those of the same role in its group. ``None``: an episode is a sample.

    Raises:
        TokensMissing: An episode has no token ids.
    """
    told = [episode for episode in episodes if episode.trainable]
    if adapter_of is None:
        return [_sample(episode, episode.trajectories, float(episode.reward), shaping) for episode in told]
    return [
        replace(
            _sample(episode, [trajectory], float(trajectory.reward), shaping),
            episode_id=f"{episode.episode_id}/{trajectory.name}",
            group_id=f"{episode.group_id}/{trajectory.role}",
            role=trajectory.role,
            adapter=adapter_of(trajectory.role),
        )
        for episode in told
        for trajectory in episode.trajectories
        if trajectory.trainable
    ]


_TERMINATED = (StopReason.SUCCESS, StopReason.FAILURE, StopReason.INVALID_ACTION)
_OVERLONG = (StopReason.MAX_TOKENS, StopReason.CONTEXT_LENGTH, StopReason.TIMEOUT)


def _sample(episode: Episode, played: Sequence[Trajectory], reward: float, shaping: Shaping) -> Sample:
    try:
        branches = [trajectory.branches() for trajectory in played]
    except ValueError as error:
        raise TokensMissing(f"episode {episode.episode_id!r} cannot be trained on: {error}") from error
    sequences = tuple(branch for mine in branches for branch in mine)
    steps = [step for trajectory in played for step in trajectory.steps]
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
        # In an environment of one turn a reply that was cut ends the episode as any other does.
        overlong=episode.stop_reason in _OVERLONG or any(_cut(mine.steps) for mine in played),
        turn_rewards=tuple(
            _settled([step.reward - part * _invalid(step) for step in trajectory.steps], reward)
            for trajectory in played
        ),
        trajectory_S=tuple(index for index, mine in enumerate(branches) for _ in mine),
    )


def _settled(rewards: list[float], total: float) -> tuple[float, ...]:
    """The rewards of the turns, the last one with what the episode's reward has beyond them."""
    if rewards:
        rewards[-1] += total - sum(rewards)
    return tuple(rewards)


def _paid_to_tokens(sequences: tuple[TokenSequence, ...], total: float) -> tuple[float, ...]:
    rewards = [0.0] * (1 + max((turn for sequence in sequences for turn in sequence.turns), default=-1))
    for sequence in sequences:
        for turn, reward in zip(sequence.turns, sequence.rewards, strict=True):
            if turn >= 0:
                rewards[turn] += reward
    return _settled(rewards, total)


def _invalid(step: Step) -> bool:
    return bool(step.info.get("invalid_action", False))


def _cut(steps: list[Step]) -> bool:
    return bool(steps) and steps[-1].tokens is not None and steps[-1].tokens.finish_reason == "length"
