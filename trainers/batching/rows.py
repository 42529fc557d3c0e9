"""Conversion of samples to rows: each token sequence with the targets of its sampled tokens, split into minibatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rllm_gym.core import TokenSequence
from trainers.array_types import FloatArray
from trainers.samples import Sample


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence with the targets of its sampled tokens.

    Attributes:
        sequence: The tokens.
        targets: By name (``"adv"``, ``"return"``, ``"ref_logp"`` …), one value per sampled token.
        role: Role of the agent.
        sample: Index of its sample in the batch.
        start: Position of its first sampled token among those of the sample.
    """

    sequence: TokenSequence
    targets: Mapping[str, FloatArray]
    role: str = ""
    sample: int = 0
    start: int = 0

    @property
    def num_sampled(self) -> int:
        return sum(self.sequence.mask)


def rows_of(samples: Sequence[Sample], targets: Mapping[str, Sequence[FloatArray]]) -> list[Row]:
    """Create one row per sequence with sampled tokens; each target has a sample's values, its sequences in order."""
    rows = []
    for index, sample in enumerate(samples):
        start = 0
        for sequence in sample.sequences:
            end = start + sum(sequence.mask)
            if end > start:
                per_token = {name: values[index][start:end] for name, values in targets.items()}
                rows.append(Row(sequence, per_token, sample.role, index, start))
            start = end
    return rows


def final_rows(samples: Sequence[Sample]) -> list[Row]:
    """Create one row per agent for the state after each truncated sample: ``start`` is the agent, and a further token
    stands for the one that would be sampled there.
    """
    return [
        Row(_before_a_token(ids), {}, sample.role, index, agent)
        for index, sample in enumerate(samples)
        for agent, ids in enumerate(sample.final_ids)
        if ids and not sample.terminated
    ]


def _before_a_token(ids: tuple[int, ...]) -> TokenSequence:
    zeros, mask = (0,) * (len(ids) + 1), (*(0,) * len(ids), 1)
    return TokenSequence((*ids, ids[-1]), mask, tuple(map(float, zeros)), zeros, tuple(map(float, zeros)), zeros)


def split_for_minibatches(
    samples: Sequence[Sample], targets: Mapping[str, Sequence[FloatArray]], parts: int
) -> list[list[Row]]:
    """Split the rows of one pass into optimizer steps: whole groups, in order, as even as possible."""
    groups = list(dict.fromkeys(sample.group_id for sample in samples))
    part_of = {group: index * parts // len(groups) for index, group in enumerate(groups)}
    split: list[list[Row]] = []
    for part in range(parts):
        chosen = [index for index, sample in enumerate(samples) if part_of[sample.group_id] == part]
        rows = rows_of(
            [samples[index] for index in chosen],
            {name: [values[index] for index in chosen] for name, values in targets.items()},
        )
        if rows:
            split.append(rows)
    return split
