"""Pairs of a better and a worse answer: from preference data, or from episodes of a group whose rewards differ."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllm_gym.chat import ChatRenderer
from rllm_gym.data.conversion import known_format
from trainers.config import ConfigError, FilePaths, PreferenceConfig
from trainers.fine_tuning.demonstrations import (
    Demonstration,
    completion_turns,
    demonstrations_of_episode,
    prompt_of,
    tokenize,
    tools_of,
)
from trainers.fine_tuning.row_files import rows_of_files
from trainers.fine_tuning.tokenized import LengthLimit, TokenizedSequence


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to the same prompt.

    Attributes:
        chosen: The better one.
        rejected: The worse one.
    """

    chosen: Demonstration
    rejected: Demonstration


@dataclass(frozen=True, slots=True)
class TokenPair:
    """A tokenized pair; an answer has several sequences if its agent rewrote the conversation."""

    chosen: tuple[TokenizedSequence, ...]
    rejected: tuple[TokenizedSequence, ...]

    @property
    def num_trained(self) -> tuple[int, int]:
        """Number of tokens of the chosen and of the rejected answer, without prompts."""
        return sum(tokens.num_trained for tokens in self.chosen), sum(tokens.num_trained for tokens in self.rejected)

    @property
    def num_tokens(self) -> int:
        return sum(map(len, (*self.chosen, *self.rejected)))

    @property
    def longest(self) -> int:
        return max(map(len, (*self.chosen, *self.rejected)))

    def content(self) -> bytes:
        """Return bytes that are equal for pairs of the same answers."""
        return b"||".join(b"|".join(tokens.content() for tokens in side) for side in (self.chosen, self.rejected))


@dataclass(frozen=True, slots=True)
class Preferences:
    """The pairs of files.

    Attributes:
        pairs: Pairs in the order of the files, followed by those of episodes.
        skipped: Number of pairs that could not be built, by reason.
    """

    pairs: list[Pair]
    skipped: Counter[str]

    def note(self) -> str:
        """Return one line about skipped pairs; empty if there are none."""
        if not self.skipped:
            return ""
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.skipped.items())
        return f"{len(self.pairs)} pairs; skipped: {reasons}"


def read_preferences(files: FilePaths, options: PreferenceConfig, *, option: str = "preferences.file") -> Preferences:
    """Read pairs from rows: ``chosen`` and ``rejected`` with their ``prompt``, or saved episodes.

    An answer is a string or a list of messages. Without ``prompt``, the prompt is the common prefix of the messages.
    Episodes are paired within their group if their rewards differ and their prompts are the same.

    Args:
        files: See :func:`~trainers.fine_tuning.row_files.rows_of_files`.
        options: How pairs are built.
        option: The option with the files, for error messages.

    Raises:
        ConfigError: A row has neither format (the message names the line), or there is no pair.
    """
    pairs: list[Pair] = []
    episodes: list[Demonstration] = []
    skipped: Counter[str] = Counter()
    for where, row in rows_of_files(files, option):
        try:
            if "trajectories" in row:
                episodes += demonstrations_of_episode(row, where)
                continue
            pair = _pair_of_row(row, where, options)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            other = known_format(row)
            raise ConfigError(
                f"{where}: neither a pair (prompt, chosen, rejected) nor an episode ({type(error).__name__}: {error})"
                + (f"; a row of {other} has one answer, so it can be used by `rllm-gym sft`" if other else "")
            ) from error
        if pair is None:
            skipped["pairs of identical answers"] += 1
        else:
            pairs.append(pair)
    _check_used(options, pairs, episodes)
    pairs += _pairs_of_episodes(episodes, options, skipped)
    found = Preferences(pairs, skipped)
    if not pairs:
        raise ConfigError(f"{option}={files!r} contains no pair of a better and a worse answer. {found.note()}")
    return found


def _check_used(options: PreferenceConfig, pairs: Sequence[Pair], episodes: Sequence[Demonstration]) -> None:
    if not episodes and options.pairs != PreferenceConfig().pairs:
        raise ConfigError("preferences.pairs has no effect: the files contain no episodes")
    if options.strings == "raw" and all(turn.raw_prompt is None for pair in pairs for turn in pair.chosen.turns):
        raise ConfigError("preferences.strings=raw has no effect: no row has a prompt and answers that are strings")


def _pair_of_row(row: Mapping[str, Any], where: str, options: PreferenceConfig) -> Pair | None:
    chosen, rejected, prompt = row["chosen"], row["rejected"], row.get("prompt")
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise ValueError("one answer is a string and the other a list of messages")
    if isinstance(chosen, str):
        if prompt is None:
            raise ValueError("answers that are strings need a prompt")
    elif prompt is None or chosen[0]["role"] != "assistant":
        # Even if the prompt is repeated as a string: the messages have the roles.
        prompt, chosen, rejected = _split(chosen, rejected)
    if chosen == rejected:
        return None
    tools = tools_of(row)
    sides = [completion_turns(prompt, answer, tools, options.strings) for answer in (chosen, rejected)]
    if not all(sides):
        raise ValueError("an answer has no assistant message")
    task = prompt_of(sides[0][0])
    return Pair(*(Demonstration(turns, task=task, where=where) for turns in sides))


def _split(chosen: Sequence[Any], rejected: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Split two conversations into their common prefix, which ends before a reply, and their remainders."""
    common = next(
        (index for index, (one, other) in enumerate(zip(chosen, rejected, strict=False)) if one != other),
        min(len(chosen), len(rejected)),
    )
    while common and (common == len(chosen) or common == len(rejected) or chosen[common - 1]["role"] == "assistant"):
        common -= 1
    if not common:
        raise ValueError("the answers begin with different messages, so they have no common prompt")
    return list(chosen[:common]), list(chosen[common:]), list(rejected[common:])


def _pairs_of_episodes(
    episodes: Sequence[Demonstration], options: PreferenceConfig, skipped: Counter[str]
) -> list[Pair]:
    groups: defaultdict[tuple[str, str, str], list[Demonstration]] = defaultdict(list)
    for episode in episodes:
        groups[episode.task, episode.group, prompt_of(episode.turns[0])].append(episode)
    return [pair for group in groups.values() for pair in _pairs_of_group(group, options, skipped)]


def _pairs_of_group(episodes: Sequence[Demonstration], options: PreferenceConfig, skipped: Counter[str]) -> list[Pair]:
    if len(episodes) == 1:
        skipped["episodes without another episode of their group to compare with"] += 1
        return []
    ranked = sorted(episodes, key=lambda episode: -_reward(episode))
    if options.pairs == "best_worst":
        worst = min(episodes, key=_reward)
        candidates = [(ranked[0], worst)]
    else:
        candidates = list(itertools.combinations(ranked, 2))
    pairs = []
    for better, worse in candidates:
        if _reward(better) <= _reward(worse):
            skipped["ties"] += 1
        elif [turn.reply for turn in better.turns] == [turn.reply for turn in worse.turns]:
            skipped["pairs of identical answers"] += 1
        else:
            pairs.append(Pair(better, worse))
    return pairs


def _reward(episode: Demonstration) -> float:
    assert episode.reward is not None
    return episode.reward


def tokenize_pair(pair: Pair, renderer: ChatRenderer, limit: LengthLimit) -> TokenPair | None:
    """Tokenize a pair; ``None`` if it is too long.

    Raises:
        ConfigError: It cannot be rendered, or it is too long and ``length.too_long=error``.
    """
    try:
        chosen, rejected = tokenize(pair.chosen, renderer), tokenize(pair.rejected, renderer)
    except ValueError as error:
        raise ConfigError(f"{pair.chosen.where} cannot be rendered: {error}") from error
    fitting = limit.fit([*chosen, *rejected], pair.chosen.where)
    if fitting is None:
        return None
    sides = []
    for demonstration, sequences in ((pair.chosen, fitting[: len(chosen)]), (pair.rejected, fitting[len(chosen) :])):
        weights = [turn.weight for turn in demonstration.turns]
        sides.append(tuple(TokenizedSequence.of(sequence, weights) for sequence in sequences if any(sequence.mask)))
    return TokenPair(*sides) if all(sides) else None
