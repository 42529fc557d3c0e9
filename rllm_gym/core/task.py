"""Tasks: immutable data with a content hash. The environments in ``rllm_gym.envs`` define how a task is run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from rllm_gym.core.errors import TaskError

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Task:
    """One problem for an environment.

    Two tasks with equal :attr:`content` are the same problem, whatever their ids. Splits are made by
    :attr:`content_hash`, so that no problem is both trained on and tested on.

    Attributes:
        task_id: Unique and stable within a task set, such as ``"frozen_lake/train/0/17"``.
        content: The text that identifies the problem, such as a question, a map or a prompt.
        data: Other values that the environment needs (the reference answer, tests, limits). JSON types only. They
            cannot be changed; compared with ``==``, lists and objects equal those that were passed.
    """

    task_id: str
    content: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", MappingProxyType({key: _freeze(item) for key, item in self.data.items()}))

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of the content as 64 hexadecimal digits."""
        return hashlib.sha256(self.content.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def split(self) -> str:
        """The split of this task, from :func:`split_of`."""
        return split_of(self.content)

    def to_json(self) -> dict[str, Any]:
        """Return the task as JSON types. :meth:`from_json` is the inverse."""
        return {"task_id": self.task_id, "content": self.content, "data": _thaw(self.data)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Task:
        return cls(task_id=row["task_id"], content=row["content"], data=row["data"])

    def __hash__(self) -> int:
        return hash((self.task_id, self.content))

    def __reduce__(self) -> tuple[object, ...]:
        # Mapping proxies cannot be pickled, and tasks are sent to worker processes.
        return Task, (self.task_id, self.content, _thaw(self.data))


@runtime_checkable
class TaskSource(Protocol):
    """The task set interface that :class:`~rllm_gym.core.TextEnv` uses. ``rllm_gym.data.Taskset`` implements it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Task: ...

    def __iter__(self) -> Iterator[Task]: ...

    def find(self, task_id: str, /) -> Task:
        """Return the task with this id. Raise :class:`~rllm_gym.core.TaskError` if there is none."""
        ...


def select_task(tasks: TaskSource, chosen: Any, rng: np.random.Generator) -> Task:
    """Return the task of an episode: by index, id or as a :class:`Task`; drawn with ``rng`` if ``chosen`` is ``None``.

    Raises:
        TaskError: There is no such task.
    """
    if chosen is None:
        return tasks[int(rng.integers(len(tasks)))]
    if isinstance(chosen, Task):
        return chosen
    if isinstance(chosen, str):
        return tasks.find(chosen)
    if isinstance(chosen, int | np.integer) and not isinstance(chosen, bool):
        if not 0 <= chosen < len(tasks):
            raise TaskError(f"task index {chosen} is outside 0..{len(tasks) - 1}")
        return tasks[int(chosen)]
    raise TaskError(f"options['task'] must be an index, a task id or a Task; got {type(chosen).__name__}")


def split_of(content: str) -> str:
    """Return the split of a content: ``"train"``, ``"validation"`` (one tenth) or ``"test"`` (one tenth).

    The bucket is the SHA-256 of the content (its first 8 bytes, big-endian) modulo 10: 0 is test, 1 is validation, the
    others are train.
    """
    digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()
    bucket = int.from_bytes(digest[:8], "big") % 10
    return "test" if bucket == 0 else "validation" if bucket == 1 else "train"


def stream_seed(*parts: str | int) -> int:
    """Return a 128-bit seed, the SHA-256 of the parts. Different parts give independent streams.

    >>> stream_seed("train", 0, 1) != stream_seed("train", 1, 0)
    True
    """
    message = json.dumps(parts, ensure_ascii=True).encode()
    return int.from_bytes(hashlib.sha256(message).digest()[:16], "big")


class _FrozenList(tuple[Any, ...]):
    """A tuple that equals a list of the same items: the one in a task's row, or in an answer."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, tuple(other) if isinstance(other, list) else other)

    def __ne__(self, other: object) -> bool:
        found = self.__eq__(other)
        return found if found is NotImplemented else not found

    def __getitem__(self, index: Any) -> Any:
        found = tuple.__getitem__(self, index)
        return _FrozenList(found) if isinstance(index, slice) else found

    __hash__ = tuple.__hash__


# Tested first, for speed: nearly every value has one of these types, and isinstance(value, Mapping) is slow.
_SCALARS = frozenset({str, int, float, bool, type(None)})


def _freeze(value: Any) -> Any:
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Mapping):
        return MappingProxyType({key: _freeze(item) for key, item in value.items()})
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return _FrozenList(map(_freeze, value))
    return value


def _thaw(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _thaw(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_thaw(item) for item in value]
    return value
