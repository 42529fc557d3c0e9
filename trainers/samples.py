"""What training reads of an episode: its token sequences and one reward. Nothing of environments or texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rllm_gym.core import Episode, TokenSequence


class TokensMissing(ValueError):
    """Episodes came from a sampler that returns no token ids or log-probs: they can be evaluated, not trained on."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished episode, as an algorithm sees it.

    Attributes:
        episode_id: Unique within a run.
        group_id: Episodes whose rewards are compared share it.
        reward: The reward to learn from, shaping included.
        sequences: Its token sequences, one per branch of the conversation.
        greedy: Sampled at temperature 0: a baseline, never trained on.
    """

    episode_id: str
    group_id: str
    reward: float
    sequences: tuple[TokenSequence, ...]
    greedy: bool = False

    @property
    def num_sampled(self) -> int:
        """Sampled tokens over all sequences: the length of the sample's advantages."""
        return sum(sum(sequence.mask) for sequence in self.sequences)


def samples_of(episodes: Iterable[Episode], *, format_penalty: float = 0.0) -> list[Sample]:
    """The episodes that tell something about the model; faults, agent errors and cancelled ones are left out.

    The reward is the episode's own minus ``format_penalty`` times the share of turns that could not be parsed.

    Raises:
        TokensMissing: An episode has no token ids.
    """
    samples = []
    for episode in episodes:
        if not episode.trainable:
            continue
        steps = [step for trajectory in episode.trajectories for step in trajectory.steps]
        invalid = sum(bool(step.info.get("invalid_action", False)) for step in steps)
        penalty = format_penalty * invalid / len(steps) if steps else 0.0
        try:
            sequences = tuple(branch for trajectory in episode.trajectories for branch in trajectory.branches())
        except ValueError as error:
            raise TokensMissing(f"episode {episode.episode_id!r} cannot be trained on: {error}") from error
        samples.append(
            Sample(episode.episode_id, episode.group_id, float(episode.reward) - penalty, sequences, episode.greedy)
        )
    return samples
