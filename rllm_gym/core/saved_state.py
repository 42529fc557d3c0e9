"""Saving, restoring and copying the state of an environment or a game, as JSON."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Self

import numpy as np

from rllm_gym.core.task import Task

_SCHEMA = 2


class SavedState:
    """``get_state``, ``set_state`` and ``fork``, for classes with ``task``, ``_task`` and ``np_random``."""

    _state_key: ClassVar[str]
    """Key of the class name in a saved state."""

    _task: Task | None
    _constructor: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Stored so that fork() can construct a copy of any subclass.
        self = super().__new__(cls)
        self._constructor = (args, kwargs)
        return self

    # Methods for subclasses

    def _env_state(self) -> dict[str, Any]:
        """Return the state as JSON types, for :meth:`get_state`. Not implemented if the state cannot be copied."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot copy its state, so get_state, set_state and fork are not supported"
        )

    def _restore_env_state(self, state: dict[str, Any]) -> None:
        """Restore a state returned by :meth:`_env_state`. ``self.task`` is already set."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot copy its state, so get_state, set_state and fork are not supported"
        )

    def _episode_state(self) -> dict[str, Any]:
        """Return the bookkeeping of the episode as JSON types."""
        raise NotImplementedError

    def _restore_episode(self, saved: dict[str, Any]) -> None:
        """Restore what :meth:`_episode_state` returned."""
        raise NotImplementedError

    def _end_episode(self) -> None:
        """Make the next ``step`` raise ``ResetNeeded``, since the state is unknown."""
        raise NotImplementedError

    # Public methods

    def get_state(self: Any) -> bytes:
        """Return the whole state, including the random generator, as JSON bytes (never pickle).

        Raises:
            NotImplementedError: The state of this environment cannot be copied; the message gives the reason.
            gymnasium.error.ResetNeeded: No episode has been started.
        """
        saved = {
            "schema": _SCHEMA,
            self._state_key: type(self).__name__,
            "task": self.task.to_json(),
            "np_random": self.np_random.bit_generator.state,
            "env_state": self._env_state(),
        }
        return json.dumps(saved | self._episode_state()).encode()

    def set_state(self: Any, state: bytes) -> None:
        """Restore a state that :meth:`get_state` of the same environment class returned.

        Raises:
            ValueError: The bytes are not such a state.
        """
        try:
            saved = json.loads(state)
            schema, name = saved["schema"], saved[self._state_key]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"not a saved environment state ({error}); use the bytes get_state() returned") from error
        if (schema, name) != (_SCHEMA, type(self).__name__):
            raise ValueError(
                f"this state was saved by {name!r} (schema {schema}); this environment is {type(self).__name__!r} "
                f"(schema {_SCHEMA})"
            )
        try:
            generator = np.random.Generator(np.random.PCG64())
            generator.bit_generator.state = saved["np_random"]
            self._task = Task.from_json(saved["task"])
            self._restore_episode(saved)
            self._restore_env_state(saved["env_state"])
            self.np_random = generator
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            self._end_episode()
            raise ValueError(f"the saved state of {name!r} is corrupt ({type(error).__name__}: {error})") from error

    def fork(self) -> Self:
        """Return an independent copy of this environment in the same state."""
        args, kwargs = self._constructor
        copy = type(self)(*args, **kwargs)
        copy.set_state(self.get_state())
        return copy
