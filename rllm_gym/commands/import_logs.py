"""``rllm-gym import-logs``: logs of a served agent, with rewards, as episodes, chats or preference pairs."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rllm_gym.commands.errors import CommandError
from rllm_gym.commands.terminal import visible
from rllm_gym.core import EnvironmentFault, Episode, StopReason
from rllm_gym.core.importing import import_function
from rllm_gym.engine import save_episodes
from rllm_gym.envs.dataset import RewardFunctions
from rllm_gym.serving import (
    Conversation,
    Conversations,
    LogRowError,
    calls_of_row,
    episode_of,
    json_lines,
    preference_rows,
    replay_rows,
    sft_rows,
)
from rllm_gym.serving.export import stop_reason_of
from rllm_gym.serving.rewards import attach_feedback, reward_by_function

_SHOWN = 10
_NAMES = {"episodes": "episodes", "sft": "chats", "preferences": "pairs", "replay": "prompts"}
_NEED_REWARDS = ("preferences", "replay")
_EXAMPLES = """examples:
  rllm-gym import-logs calls.jsonl --feedback thumbs.jsonl --output episodes.jsonl
  rllm-gym import-logs calls.jsonl --reward my_rewards:correct --scrub my_privacy:scrub --output episodes.jsonl
  rllm-gym sft --model.path MODEL --demonstrations.file episodes.jsonl --demonstrations.min-reward 1
  rllm-gym dpo --model.path MODEL --preferences.file episodes.jsonl
  rllm-gym import-logs others.jsonl --as sft --output chats.jsonl   # messages with tool calls, for any model

A line of feedback: {"conversation_id": "conv-…", "reward": 1}; "up", "down", true and false are rewards as well.
"""


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    sources = [*options.logs, *([options.feedback] if options.feedback else [])]
    if any(source.resolve() == options.output.resolve() for source in sources):
        raise CommandError(f"--output {options.output} is one of the files to read; choose another file")
    try:
        scrub = import_function(options.scrub, "--scrub") if options.scrub else None
        functions = RewardFunctions(options.reward, options.reward_weights) if options.reward else None
    except (ValueError, TypeError) as error:
        raise CommandError(str(error)) from error
    is_rated = functions is not None or options.feedback is not None
    if options.reward_weights is not None and functions is None:
        raise CommandError("--reward-weights has no effect without --reward")
    chosen = (options.min_reward, options.max_reward, options.stop_reason)
    if not is_rated and (options.form in _NEED_REWARDS or chosen != (None, None, None)):
        raise CommandError(
            f"--as {', --as '.join(_NEED_REWARDS)}, --min-reward, --max-reward and --stop-reason need rewards: give "
            "--feedback or --reward"
        )

    conversations = _read(options.logs)
    columns = _read_feedback(options.feedback, conversations) if options.feedback is not None else {}
    found = list(conversations.by_id.values())
    if not found:
        raise CommandError(f"there is no call in {', '.join(map(str, options.logs))}")
    dropped: Counter[str] = Counter()
    if scrub is not None:
        _scrub(found, scrub)
    if functions is not None:
        _score(found, functions, columns)
    if is_rated:
        found = _counted(found, [item.reward is not None for item in found], "without a reward", dropped)
    if options.form != "replay":  # equal replies of the model count each in the baseline of their group
        found = _distinct(found, dropped)
    found = _counted(found, [_fits(item, options) for item in found], "filtered", dropped)
    return _write(found, options, dropped)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rllm-gym import-logs",
        description="Turn logs of `rllm-gym serve-agent`, or of other chat completions in OpenAI's format, into data\n"
        "to train on: one episode per conversation, with a branch where a client rewrote its history, with the tokens\n"
        "and log-probs that were sampled where the log has them, and with rewards that are added here. Conversations\n"
        "with the same content count once, with the mean of their rewards, except in replays.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("logs", metavar="LOG", nargs="+", type=Path, help="log, a JSON object per line")
    parser.add_argument("--output", "-o", metavar="FILE", type=Path, required=True, help="the file to write")
    parser.add_argument(
        "--as",
        dest="form",
        choices=tuple(_NAMES),
        default="episodes",
        help="episodes, for rllm-gym sft and dpo; sft: chats, with tools and tool calls as messages; preferences: the "
        "best and the worst conversation of each prompt; replay: for off-policy training with rllm-gym train (default: "
        "episodes)",
    )
    rewards = parser.add_argument_group("reward options; with one of the first two, unrated conversations are left out")
    rewards.add_argument(
        "--feedback",
        metavar="FILE",
        type=Path,
        help="JSON lines with the reward of a conversation; the last one counts",
    )
    rewards.add_argument(
        "--reward",
        metavar="MODULE:FUNCTION",
        nargs="+",
        help="reward functions as for `rllm-gym train --dataset`; other fields of the feedback are their columns",
    )
    rewards.add_argument("--reward-weights", type=float, nargs="+", metavar="N", help="a weight per function")
    rewards.add_argument(
        "--success-at", type=float, default=1.0, metavar="N", help="reward from which on it is a success (default: 1)"
    )
    selection = parser.add_argument_group("selection options")
    selection.add_argument("--min-reward", type=float, metavar="N", help="leave out conversations with a lower reward")
    selection.add_argument("--max-reward", type=float, metavar="N", help="leave out conversations with a higher reward")
    selection.add_argument(
        "--stop-reason",
        nargs="+",
        choices=[reason.value for reason in (StopReason.SUCCESS, StopReason.FAILURE, StopReason.MAX_TOKENS)],
        help="keep only these: by the reward, or max_tokens if it is no success and its last reply is cut",
    )
    selection.add_argument(
        "--scrub",
        metavar="MODULE:FUNCTION",
        help="function of a text that returns the text without private data; called for every text before anything "
        "else reads it. Where it changes one, the conversation loses its token ids and log-probs",
    )
    return parser


class _Problems:
    """Lines of a file that cannot be used: the first ones with their reasons, and how many."""

    def __init__(self, path: Path) -> None:
        self._path, self._count = path, 0

    def add(self, number: int, error: LogRowError) -> None:
        self._count += 1
        if self._count <= _SHOWN:
            _note(f"{self._path}, line {number}: left out: {str(error)[:300]}")

    def report(self) -> None:
        if self._count > _SHOWN:
            _note(f"{self._path}: {self._count} lines were left out; the first {_SHOWN} are above")


def _read(paths: Iterable[Path]) -> Conversations:
    """Read all logs; lines that cannot be used are reported and left out."""
    conversations = Conversations()
    for path in paths:
        problems = _Problems(path)
        for number, row in json_lines(path):
            try:
                for index, call in enumerate(calls_of_row(_row(row))):
                    conversations.add(call, name=f"{path}:{number}" + f"#{index}" * bool(index))
            except LogRowError as error:
                problems.add(number, error)
        problems.report()
    return conversations


def _read_feedback(path: Path, conversations: Conversations) -> dict[str, Mapping[str, Any]]:
    """Set the rewards of conversations; return the last row about each of them, by its name."""
    columns: dict[str, Mapping[str, Any]] = {}
    problems, unknown = _Problems(path), 0
    for number, row in json_lines(path):
        try:
            conversation = attach_feedback(conversations, _row(row))
        except LogRowError as error:
            problems.add(number, error)
            continue
        if conversation is None:
            unknown += 1
        else:
            columns[conversation.name] = _row(row)
    problems.report()
    if unknown:
        _note(f"{path}: {unknown} lines are about conversations that are in no log")
    return columns


def _row(row: dict[str, Any] | LogRowError) -> dict[str, Any]:
    if isinstance(row, LogRowError):
        raise row
    return row


def _scrub(conversations: Sequence[Conversation], function: Any) -> None:
    @functools.lru_cache(1 << 16)
    def change(text: str) -> str:
        scrubbed = function(text)
        if not isinstance(scrubbed, str):
            raise TypeError(f"it returned a {type(scrubbed).__name__}, not a text")
        return scrubbed

    for conversation in conversations:
        try:
            conversation.scrub(change)
        except Exception as error:
            raise CommandError(
                f"--scrub failed for a text of {conversation.id}: {type(error).__name__}: {error}; nothing was written"
            ) from error


def _score(
    conversations: Sequence[Conversation], functions: RewardFunctions, columns: Mapping[str, Mapping[str, Any]]
) -> None:
    """Set the rewards by functions. Where one fails there is no reward, which is reported."""
    faults = []
    for conversation in conversations:
        try:
            conversation.reward = reward_by_function(functions, conversation, columns.get(conversation.name, {}))
        except EnvironmentFault as fault:
            conversation.reward = None
            faults.append(str(fault))
    for reason in faults[:_SHOWN]:
        _note(f"no reward: {reason}")
    if len(faults) > _SHOWN:
        _note(f"{len(faults)} conversations have no reward for such reasons")


def _distinct(conversations: Sequence[Conversation], dropped: Counter[str]) -> list[Conversation]:
    """Return the first conversation with each content, with the mean of the rewards."""
    groups: dict[bytes, list[Conversation]] = {}
    for conversation in conversations:
        groups.setdefault(conversation.content(), []).append(conversation)
    for same in groups.values():
        rewards = [item.reward for item in same if item.reward is not None]
        same[0].reward = sum(rewards) / len(rewards) if rewards else None
        dropped["copies of others"] += len(same) - 1
    return [same[0] for same in groups.values()]


def _fits(conversation: Conversation, options: argparse.Namespace) -> bool:
    reward = conversation.reward
    low = options.min_reward is not None and (reward is None or reward < options.min_reward)
    high = options.max_reward is not None and (reward is None or reward > options.max_reward)
    wanted = options.stop_reason is None or stop_reason_of(conversation, options.success_at) in options.stop_reason
    return wanted and not low and not high


def _counted(
    conversations: Sequence[Conversation], keep: Sequence[bool], reason: str, dropped: Counter[str]
) -> list[Conversation]:
    kept = [item for item, is_kept in zip(conversations, keep, strict=True) if is_kept]
    dropped[reason] += len(conversations) - len(kept)
    return kept


def _write(conversations: Sequence[Conversation], options: argparse.Namespace, dropped: Counter[str]) -> int:
    if options.form == "episodes":
        episodes = [episode_of(item, options.success_at) for item in conversations]
        usable: list[Episode] = [episode for episode in episodes if episode is not None]
        dropped["with tool calls of which only messages are known (use --as sft)"] += len(episodes) - len(usable)
        written = _checked(usable, options, dropped) and save_episodes(options.output, usable)
        tokens = sum(all(step.tokens for step in episode.trajectories[0].steps) for episode in usable)
        more = f", {tokens} of them with tokens and log-probs"
    else:
        rows: list[dict[str, Any]] = []
        if options.form == "preferences":
            rows += preference_rows(conversations)
        elif options.form == "replay":
            rows += replay_rows(conversations, options.success_at)
            replayed = sum(len(row["logged"]) for row in rows)
            dropped["without the tokens of every reply"] += len(conversations) - replayed
        else:
            rows += [row for item in conversations for row in sft_rows(item)]
        written = _checked(rows, options, dropped) and _save_rows(options.output, rows)
        more = ""
    print(f"{written} {_NAMES[options.form]} in {options.output}{more}")
    if left_out := _left_out(dropped):
        print(f"left out: {left_out}")
    return 0


def _checked(rows: Sequence[Any], options: argparse.Namespace, dropped: Counter[str]) -> int:
    """Return the number of rows.

    Raises:
        CommandError: There are none.
    """
    if not rows:
        pairs = " (no two conversations with the same prompt have different rewards)"
        why = _left_out(dropped) or "nothing was left out"
        raise CommandError(f"no {_NAMES[options.form]} remain{pairs * (options.form == 'preferences')}: {why}")
    return len(rows)


def _left_out(dropped: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in dropped.items() if count)


def _save_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> int:
    """Write rows as JSON lines; an existing file is replaced when they are complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return len(rows)


def _note(text: str) -> None:
    print(visible(text), file=sys.stderr)
