"""``rllm/Dataset-v0``: prompts of a data set, with rewards from a user's own functions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rllm_gym.argument_checks import check_number
from rllm_gym.core import SPLITS, Outcome, Task, TaskError, TaskSource
from rllm_gym.data import load_tasks
from rllm_gym.data.taskset import EmptySplit, check_split
from rllm_gym.envs.dataset.rewards import RewardFunction, RewardFunctions
from rllm_gym.envs.dataset.rows import prompt_of, prompt_text, row_to_prompt
from rllm_gym.envs.question import QuestionEnv

Rows = str | os.PathLike[str] | Iterable[Mapping[str, Any] | Task] | TaskSource


def load_prompts(dataset: Rows | Mapping[str, Rows]) -> TaskSource | dict[str, TaskSource]:
    """Return the task set of a data set of prompts, or a task set per split. Task sets are returned unchanged.

    Raises:
        TaskError: A row has no prompt.
    """
    if not isinstance(dataset, Mapping):
        name = None if isinstance(dataset, str | os.PathLike) else "dataset"
        return load_tasks(dataset, name=name, convert=row_to_prompt)
    if not dataset or not set(dataset) <= set(SPLITS):
        raise TaskError(f"dataset has the splits {', '.join(map(repr, dataset))}; they can be {', '.join(SPLITS)}")
    return {split: load_tasks(rows, name=f"dataset/{split}", convert=row_to_prompt) for split, rows in dataset.items()}


def select_split(tasks: TaskSource | dict[str, TaskSource], split: str | None) -> TaskSource:
    """Return the tasks of a split, which by default is all tasks, or ``"train"`` of several splits.

    Raises:
        TaskError: There is none.
    """
    if not isinstance(tasks, dict):
        return load_tasks(tasks, split=split)
    if check_split(split or "train") not in tasks:
        raise EmptySplit(f"dataset has no split {split or 'train'!r}, only {', '.join(map(repr, tasks))}; add it")
    return tasks[split or "train"]


class DatasetEnv(QuestionEnv):
    """Reply to a prompt of a data set; your own function computes the reward.

    ## Description
    One task per row of the data set, in the format of TRL: ``prompt`` is a text or a list of messages (``role`` and
    ``content``), and any other column, such as ``solution`` or ``answer``, is passed to the reward function. Without
    ``prompt``, the text in ``question`` or ``problem`` is the prompt.

    A reward function has the signature of TRL's, ``def reward(prompts, completions, **columns)``, and returns a list
    with one number per completion, or ``None`` where it does not apply. It is called for one completion at a time, so
    every argument is a list with one element; it may be called in several threads at once. Completions are texts if the
    prompt is a text, else lists with one message. A parameter is a column's name; columns that the function does not
    take are not passed. It may be a coroutine function (``async def``); an
    :class:`~rllm_gym.llm_judge.LLMJudge` is one that asks a model.

    The functions are trusted code and run in the process of the environment.

    ## Action space
    Any text: the completion.

    ## Observation space
    Text: the prompt; of a prompt with several messages, all of them with their roles. The default agent passes the
    messages themselves to the model. Then the reward.

    ## Starting state
    One task, chosen by ``options={"task": index | task_id | Task}``, else drawn with the seed.

    ## Rewards
    One component per reward function, under its name: its result times its weight. An exception, a result that is not
    a finite number, or a wrong number of results is an :class:`~rllm_gym.core.EnvironmentFault` that names the function
    and the row, as is a row to which no function applies. It is never a reward.

    ## Episode end
    Terminates after the single reply: ``success`` if the reward is at least ``success_at``, else ``failure``.

    ## Information
    The keys of :class:`~rllm_gym.core.TextEnv`.

    ## Arguments

    >>> import gymnasium as gym, rllm_gym
    >>> def short(prompts, completions, limit, **columns):
    ...     return [float(len(text) <= most) for text, most in zip(completions, limit)]
    >>> rows = [{"prompt": "Name a colour.", "limit": 10}]
    >>> env = gym.make("rllm/Dataset-v0", dataset=rows, reward=short)
    >>> observation, info = env.reset(seed=0)
    >>> env.step("red")[1]
    1.0

    Args:
        dataset: ``"path.jsonl"``, ``"path.parquet"``, ``"hf:repo[:config][@split]"``, a list of rows, a data set of
            ``datasets``, or a :class:`~rllm_gym.data.Taskset`; or a mapping with one of these for each of ``"train"``,
            ``"validation"`` and ``"test"``, not all of which have to be there.
        reward: A function, its name as ``"module:name"``, or a list of them.
        reward_weights: One weight per function; ``None`` for 1 each.
        split: ``"train"``, ``"validation"`` or ``"test"``. Without a mapping, the split of a row is decided by its
            prompt (8:1:1). ``None`` for every row, or those of ``"train"``.
        success_at: Reward from which on an episode is a success.
        max_observation_chars: Bound of the observation space; no prompt may be longer.
        max_action_chars: Longest accepted reply. Of a longer one, no component of the reward is above 0: a function may
            still give it less.
        render_mode: ``"ansi"`` (the prompt, the reply and its reward) or ``None``.

    Raises:
        TaskError: The data set is unusable; the message names the file, the row and a solution.
        TypeError: A reward function cannot be called.
        ValueError: A reward function cannot be imported or has a parameter that is no column, or another argument is
            out of range.

    ## Version history
    v0: first release.
    """

    def __init__(
        self,
        dataset: Rows | Mapping[str, Rows],
        reward: str | RewardFunction | Sequence[str | RewardFunction],
        *,
        reward_weights: Sequence[float] | float | None = None,
        split: str | None = None,
        success_at: float = 1.0,
        max_observation_chars: int = 100_000,
        max_action_chars: int = 1_000_000,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(
            tasks=select_split(load_prompts(dataset), split),
            max_turns=1,
            max_observation_chars=max_observation_chars,
            max_action_chars=max_action_chars,
            render_mode=render_mode,
        )
        self._rewards = RewardFunctions(reward, reward_weights)
        self._rewards.check(self.tasks[0])
        self._success_at = check_number("success_at", success_at)

    def _question(self, task: Task) -> str:
        return prompt_text(prompt_of(task.data))

    def _check_length(self, action: str) -> None:
        """Let a reply that is too long be graded: the reward 0 is more than a function may give it."""

    def _act(self, action: str) -> Outcome:
        rewards = self._rewards.score(self.task, action)
        longest = self.action_space.max_length  # type: ignore[attr-defined]
        too_long = len(action) > longest
        if too_long:
            rewards = {name: min(reward, 0.0) for name, reward in rewards.items()}
        total = sum(rewards.values())
        why = f" The reply has {len(action)} characters; at most {longest} are accepted." if too_long else ""
        return Outcome(
            f"Reward: {total:g}.{why}",
            rewards,
            terminated=True,
            success=total >= self._success_at and not too_long,
            info={"invalid_action": too_long},
        )
