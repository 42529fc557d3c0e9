"""The vector environment: many text environments behind Gymnasium's interface, and behind ``send`` and ``recv``."""

from __future__ import annotations

import copy
import operator
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rllm_gym.argument_checks import check_int
from rllm_gym.runtime.env_building import Env, EnvBuildSpec, resolve
from rllm_gym.runtime.env_host import EnvDescription, StepResult
from rllm_gym.runtime.env_worker import EnvDeadlines
from rllm_gym.vector.batching import (
    ResetOptions,
    Seeds,
    batch_infos,
    batch_observations,
    batch_results,
    checked_mask,
    common_space,
    empty_observation,
    format_indices,
    split_actions,
    split_options,
    split_seeds,
)
from rllm_gym.vector.bookkeeping import Bookkeeping, EnvSchedule, VectorStats
from rllm_gym.vector.env_commands import EnvCommand, EnvResult, checked_wrappers
from rllm_gym.vector.errors import VectorTimeout
from rllm_gym.vector.executors import open_executor

_INDEX = operator.attrgetter("index")


class RecvResult(NamedTuple):
    """Result of :meth:`TextVectorEnv.recv`: a step's five values, for the environments that have answered."""

    observations: Any
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray
    infos: dict[str, Any]

    @property
    def env_ids(self) -> np.ndarray:
        """Indices of these environments, in the order of all other fields; also ``infos["env_id"]``."""
        return self.infos["env_id"]  # type: ignore[no-any-return]


class TextVectorEnv(VectorEnv[Any, Any, np.ndarray]):
    """``num_envs`` environments of one id, stepped together or asynchronously.

    :meth:`step` steps all of them; :meth:`send` and :meth:`recv` step each at its own pace.
    ``gymnasium.make_vec("rllm/…", num_envs=…)`` creates one.

    Observations, rewards, flags and infos are batched as in Gymnasium's own vector environments; texts are a tuple of
    ``str``. The same seeds give the same episodes with any kind of ``workers``.

    **Faults.** When an environment fails (``EnvironmentFault``, any other exception, an exceeded deadline, a dead
    worker), its episode ends truncated with reward 0 and its last observation, ``infos["fault"]`` has the message and
    ``infos["fault_kind"]`` the kind (``""`` for the others; the keys are present only when there was a fault). A new
    environment replaces it at the next reset; the others are not affected. A reset is tried three times; an episode
    that cannot begin is reported the same way.

    **Ctrl-C** while :meth:`reset`, :meth:`step` or :meth:`recv` waits loses nothing: :meth:`reset_wait`,
    :meth:`step_wait` or :meth:`recv` returns the results. At any other instant, and in :meth:`call`, :meth:`render`,
    :meth:`get_attr` and :meth:`set_attr` also while they wait, it may lose some; then every later call but ``close``
    raises ``ClosedEnvironmentError``.

    Args:
        num_envs: Number of environments.
        env_id: A registered id (``"module:id"`` imports the module first), a spec, or a callable that creates one.
        workers: ``"thread"``; ``"process"``, one per environment, so that a crash affects only one environment;
            ``"asyncio"``, for environments with coroutines (:class:`~rllm_gym.core.AsyncTextEnv`), on one event loop;
            ``"ray"``, actors of a Ray cluster.
        autoreset_mode: Gymnasium's: after the end of an episode, the next ``step`` resets (``"NextStep"``), the same
            step does (``"SameStep"``), or the caller does (``"Disabled"``).
        env_wrappers: Wrappers of each environment, the first one innermost.
        max_episode_steps: Steps after which an episode is truncated, as in ``gymnasium.make``.
        deadlines: Seconds by name (``make``, ``reset``, ``step``, ``close``) after which the environment has failed.
        **env_kwargs: Keyword arguments of each environment.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range.
        RuntimeError: The environments do not have the same spaces.
        Exception: Raised by the constructor of the environment.
    """

    closed = True  # until there is something to close

    def __init__(
        self,
        num_envs: int = 1,
        *,
        env_id: Env,
        workers: str = "thread",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        env_wrappers: Sequence[Callable[[Any], Any]] = (),
        max_episode_steps: int | None = None,
        deadlines: Mapping[str, float] | EnvDeadlines | None = None,
        **env_kwargs: Any,
    ) -> None:
        wrappers = checked_wrappers(env_wrappers)
        build_spec = EnvBuildSpec(resolve(env_id), env_kwargs, wrappers, max_episode_steps)
        self._open(num_envs, {"": build_spec}, EnvSchedule(), workers, autoreset_mode, EnvDeadlines.of(deadlines))
        if isinstance(build_spec.source, EnvSpec):
            self.spec = copy.deepcopy(build_spec.source)
            arguments: dict[str, Any] = {
                "workers": workers,
                "autoreset_mode": self._mode.value,
                "env_wrappers": wrappers,
                "max_episode_steps": max_episode_steps,
                "deadlines": None if deadlines is None else asdict(self._deadlines),
                "num_envs": num_envs,
                "vectorization_mode": "vector_entry_point",
            }
            arguments = {name: value for name, value in arguments.items() if value not in (None, ())}
            self.spec.kwargs = {**self.spec.kwargs, **env_kwargs, **arguments}

    def _open(
        self,
        num_envs: int,
        build_specs: Mapping[str, EnvBuildSpec],
        schedule: EnvSchedule,
        workers: str,
        autoreset_mode: str | AutoresetMode,
        deadlines: EnvDeadlines,
    ) -> None:
        check_int("num_envs", num_envs)
        self._mode = AutoresetMode(autoreset_mode)
        self._disabled = self._mode is AutoresetMode.DISABLED
        self.num_envs = int(num_envs)
        self._all = range(self.num_envs)
        self._pid = os.getpid()
        self._deadlines = deadlines
        self._receiving = threading.Lock()
        self._unresolved: list[EnvResult] = []
        self._arrived: dict[int, Any] = {}  # results of steps, or exceptions to raise; in the order of arrival
        self._interrupted = ""  # the exception that ended a call between two consistent states
        self._pending = ""
        self._requested: Sequence[int] = ()
        self._executor = open_executor(workers, build_specs, self.num_envs, deadlines)
        self._bookkeeping = Bookkeeping(self.num_envs, self._mode, schedule, self._executor.submit)
        self._states = self._bookkeeping.states
        # A vector environment that is garbage-collected leaves no thread, process or browser behind.
        self._finalizer = weakref.finalize(self, self._executor.close)
        self.closed = False
        try:
            self._describe(self._make(list(build_specs)))
        except BaseException:
            self.close()
            raise

    @property
    def stats(self) -> VectorStats:
        """Counters so far: steps, episodes, faults by kind."""
        return self._bookkeeping.stats

    # Gymnasium's interface

    def reset(self, *, seed: Seeds = None, options: ResetOptions = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every environment, or in those of ``options["reset_mask"]``.

        Args:
            seed: An integer for ``seed + index`` each, or one (or ``None``) per environment.
            options: Passed to each; a list under a key has one value per environment (``{"task": [3, 1, 2]}``), and a
                list of dictionaries has one per environment. ``reset_mask``, an array of bools, selects those that are
                reset.

        Raises:
            TaskError: There is no such task.
            EnvironmentFault: None of the environments could be reset.
            AlreadyPendingCallError: A call is in progress.
        """
        self.reset_async(seed=seed, options=options)
        return self.reset_wait()

    def reset_async(self, seed: Seeds = None, options: ResetOptions = None) -> None:
        """Start :meth:`reset` without waiting; :meth:`reset_wait` returns the result."""
        self._assert_free("reset_async")
        indices: Sequence[int] = range(self.num_envs)
        if isinstance(options, Mapping) and "reset_mask" in options:
            indices = checked_mask(options["reset_mask"], self.num_envs)
            options = {key: value for key, value in options.items() if key != "reset_mask"}
            never = [index for index in set(range(self.num_envs)) - set(indices) if not self._states[index].started]
            if never:
                raise ResetNeeded(
                    f"not reset yet: {format_indices(never)}; the first reset() must not have a reset_mask"
                )
        seeds = split_seeds(seed, range(self.num_envs))
        listed = split_options(options, self.num_envs)
        arguments = [seeds[index] for index in indices], [listed[index] for index in indices]
        self._start(self._bookkeeping.reset_command, indices, *arguments, pending="reset")

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the result of :meth:`reset_async`.

        Raises:
            VectorTimeout: ``timeout`` seconds were not enough; call again.
        """
        self._assert_open()
        indices = self._requested
        results = dict(zip(indices, self._finish("reset", timeout)))
        faults = [self._states[index].fault for index in results]
        if faults[0] is not None and None not in faults:
            raise faults[0]
        infos = batch_infos([results[index][4] if index in results else {} for index in range(self.num_envs)])
        observations = [slot.observation for slot in self._states]
        return batch_observations(self.single_observation_space, observations), infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step every environment with one action each.

        Args:
            actions: A sequence or array of ``num_envs`` strings.

        Raises:
            TypeError: An action is not a string.
            ValueError: There are too many or too few.
            ResetNeeded: An episode has ended and was not reset, or none began.
            AlreadyPendingCallError: A call is in progress.
        """
        self.step_async(actions)
        return batch_results(self.single_observation_space, self._finish("step", None))

    def step_async(self, actions: Any) -> None:
        """Start :meth:`step` without waiting; :meth:`step_wait` returns the result."""
        self._assert_free("step_async")
        listed = split_actions(self.single_action_space, self.action_space, actions, self.num_envs)
        self._assert_steppable(self._all)
        self._start(self._bookkeeping.step_command, self._all, listed, pending="step")

    def step_wait(self, timeout: float | None = None) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Return the result of :meth:`step_async`.

        Raises:
            VectorTimeout: ``timeout`` seconds were not enough. The message names the environments still in progress;
                they continue, arrived results are kept, and another call returns all.
        """
        self._assert_open()
        return batch_results(self.single_observation_space, self._finish("step", timeout))

    def render(self) -> tuple[Any, ...]:
        """Return the rendering of each environment."""
        return self.call("render")

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return a method's result in each environment, or the value of an attribute."""
        self._assert_free("call")
        commands = [
            EnvCommand(index, "call", slot.env_name, arguments=(name, args, kwargs))
            for index, slot in enumerate(self._states)
        ]
        return tuple(outcome.value for outcome in self._run_commands(commands))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each environment, also of later replacements.

        Args:
            name: Name of the attribute.
            values: A list or tuple has one value per environment; anything else is used for all.

        Raises:
            ValueError: The list has another length.
        """
        self._assert_free("set_attr")
        listed = list(values) if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(listed) != self.num_envs:
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(listed)}` values for {self.num_envs} environments."
            )
        self._run_commands(
            [
                EnvCommand(index, "set", slot.env_name, arguments=(name, value))
                for (index, slot), value in zip(enumerate(self._states), listed)
            ]
        )

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The random number generator of each environment."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each environment."""
        return self.get_attr("np_random_seed")

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close every environment and end every worker. A call that waits in another thread raises at once.

        Args:
            timeout: Seconds that environments in progress get to finish; ``None`` for the deadline of ``close``.
            terminate: Do not wait for them.
        """
        self.closed = True  # from here on, calls in other threads are refused
        busy = [slot for slot in self._states if slot.busy]
        wait = busy and not terminate and not self._interrupted and self._finalizer.alive and os.getpid() == self._pid
        try:
            if wait and self._receiving.acquire(blocking=False):  # otherwise another thread waits for the results
                give_up = time.monotonic() + (self._deadlines.close if timeout is None else timeout)
                missing = len(busy) - len(self._arrived) - len(self._unresolved)
                try:
                    while missing > 0 and (left := give_up - time.monotonic()) > 0:
                        self._executor.wait(missing, left)
                        missing -= len(self._executor.take())
                finally:
                    self._receiving.release()
        finally:
            self._finalizer()

    # Asynchronous interface

    def async_reset(
        self, env_ids: Iterable[int] | None = None, *, seed: Seeds = None, options: ResetOptions = None
    ) -> None:
        """Begin an episode in these environments (``None`` for all) without waiting; :meth:`recv` returns the results.

        Args:
            env_ids: Indices of environments; none of them may be in progress.
            seed: An integer for ``seed + index`` each, or one (or ``None``) for each of ``env_ids``.
            options: As for :meth:`reset`, with one value for each of ``env_ids``.
        """
        indices = self._named(env_ids, "async_reset")
        seeds, listed = split_seeds(seed, indices), split_options(options, len(indices))
        self._start(self._bookkeeping.reset_command, indices, seeds, listed)

    def send(self, actions: Any, env_ids: Iterable[int] | None = None) -> None:
        """Start a step of these environments (``None`` for all) without waiting; :meth:`recv` returns the results.

        With ``"NextStep"``, an environment whose episode has ended is reset, and its action is ignored.

        Raises:
            ResetNeeded: An episode has ended with ``"Disabled"``, or never began.
            AlreadyPendingCallError: One of them is in progress, or was not received yet.
        """
        indices = self._named(env_ids, "send")
        space, batched = self.single_action_space, self.action_space
        if len(indices) != self.num_envs and not isinstance(space, gymnasium.spaces.Text):
            batched = batch_space(space, len(indices))
        listed = split_actions(space, batched, actions, len(indices))
        self._assert_steppable(indices)
        self._start(self._bookkeeping.step_command, indices, listed)

    def recv(self, min_envs: int = 1, timeout: float | None = None) -> RecvResult:
        """Return all arrived results, once at least ``min_envs`` environments have answered. A reset has reward 0.

        Args:
            min_envs: Minimum number of environments.
            timeout: Maximum seconds to wait.

        Raises:
            VectorTimeout: They did not answer in time. The message names those in progress; nothing is lost, call
                again.
            NoAsyncCallError: Fewer environments are in progress.
            AlreadyPendingCallError: Another thread is receiving.
            ValueError: ``min_envs`` is not an integer of at least 1, or ``timeout`` not a number of at least 0.
        """
        self._assert_open()
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout={timeout!r} must be a number of seconds of at least 0, or None")
        if self._pending:
            raise AlreadyPendingCallError(
                f"`recv` while `{self._pending}_async` waits for `{self._pending}_wait`", self._pending
            )
        check_int("min_envs", min_envs)
        self._assert_only_reader("recv")
        with self._receiving:
            in_progress = sum(1 for slot in self._states if slot.busy)
            if in_progress < min_envs:
                raise NoAsyncCallError(
                    f"recv(min_envs={min_envs}) would wait forever: {in_progress} of {self.num_envs} environments "
                    "are in progress; send() to more of them, or reduce min_envs",
                    "recv",
                )
            arrived = self._collect(min_envs, timeout)
        received = RecvResult(*batch_results(self.single_observation_space, list(arrived.values())))
        received.infos["env_id"] = np.array(list(arrived), dtype=np.int32)
        return received

    # Used by both interfaces

    def _make(self, env_names: list[str]) -> dict[str, EnvDescription]:
        """Create an environment in every slot, and each of the named ones in at least one."""
        found: dict[str, EnvDescription] = {}
        for first in range(0, max(self.num_envs, len(env_names)), self.num_envs):
            commands = [
                EnvCommand(index, "make", env_names[(first + index) % len(env_names)])
                for index in range(min(self.num_envs, max(len(env_names), self.num_envs) - first))
            ]
            for command, outcome in zip(commands, self._run_commands(commands)):
                self._states[command.index].env_name = command.env_name
                known = found.setdefault(command.env_name, outcome.value)
                if (outcome.value.observation_space, outcome.value.action_space) != (
                    known.observation_space,
                    known.action_space,
                ):
                    raise RuntimeError(
                        f"environment {command.index} has the spaces {outcome.value.observation_space} and "
                        f"{outcome.value.action_space}; environment 0 has {known.observation_space} and "
                        f"{known.action_space}. All must have the same"
                    )
        return found

    def _describe(self, found: Mapping[str, EnvDescription]) -> None:
        first = next(iter(found.values()))
        self.metadata = {**first.metadata, "autoreset_mode": self._mode}
        self.render_mode = first.render_mode
        self.single_observation_space = common_space(
            "observation", {key: item.observation_space for key, item in found.items()}
        )
        self.single_action_space = common_space("action", {key: item.action_space for key, item in found.items()})
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._bookkeeping.empty_observation = empty_observation(self.single_observation_space)

    # Ctrl-C and errors can end a call at any instant. While it waits, the state is consistent and the call can be
    # repeated; anywhere else, ``_interrupted`` is set and later calls refuse, as some results may be lost.

    def _start(
        self, prepare: Callable[..., EnvCommand | EnvResult], indices: Sequence[int], *arguments: Any, pending: str = ""
    ) -> None:
        """Submit what ``prepare`` returns for each environment; ``pending`` names the call that fetches the results."""
        try:
            commands: list[EnvCommand] = []
            known: list[EnvResult] = []
            for request in map(prepare, indices, *arguments):
                if isinstance(request, EnvCommand):
                    commands.append(request)
                else:
                    known.append(request)
            if commands:
                self._executor.submit(commands)
            for result in known:
                self._executor.put(result)
            self._pending, self._requested = pending, indices
        except BaseException as error:
            self._interrupted = type(error).__name__
            raise

    def _finish(self, what: str, timeout: float | None) -> list[StepResult]:
        """Wait for the requested results, and return them in the requested order."""
        self._assert_only_reader(f"{what}_wait")
        with self._receiving:
            if self._pending != what:
                raise NoAsyncCallError(f"Calling `{what}_wait` without any prior call to `{what}_async`.", what)
            arrived = self._collect(len(self._requested), timeout)
        return list(map(arrived.__getitem__, self._requested))

    def _collect(self, count: int, timeout: float | None) -> dict[int, StepResult]:
        """Wait until ``count`` results have arrived, and return all that have, in the order of arrival.

        Raises:
            VectorTimeout: They did not arrive in time.
            Exception: A result is a mistake of the caller.
        """
        give_up = None if timeout is None else time.monotonic() + timeout
        changing = False
        try:
            while (missing := count - len(self._arrived)) > 0:
                left = None if give_up is None else max(0.0, give_up - time.monotonic())
                self._executor.wait(missing - len(self._unresolved), left)
                changing = True
                self._unresolved += self._executor.take()
                if not self._pending or len(self._unresolved) >= missing:
                    self._resolve()
                changing = False
                if give_up is not None and len(self._arrived) < count and time.monotonic() >= give_up:
                    raise self._timeout(timeout)
            changing = True
            failed = None
            for index, result in self._arrived.items():
                if isinstance(result, Exception):
                    failed = index
                    break
            if failed is None or self._pending:
                arrived, self._arrived = self._arrived, {}
            else:  # the others are for the next call
                arrived = {failed: self._arrived.pop(failed)}
            for index in arrived:
                self._states[index].busy = ""
            self._pending = ""
        except BaseException as error:
            if changing:
                self._interrupted = type(error).__name__
            raise
        if failed is not None:
            raise arrived[failed]
        return arrived

    def _resolve(self) -> None:
        ready, self._unresolved = self._unresolved, []
        if self._pending:  # in order, so that nothing depends on the order of arrival
            ready.sort(key=_INDEX)
        reported = self._pending != "reset"
        for outcome in ready:
            result = self._bookkeeping.resolve(outcome, reported=reported)
            if result is not None:
                self._arrived[outcome.index] = result

    def _timeout(self, timeout: float | None) -> VectorTimeout:
        here = set(self._arrived) | {outcome.index for outcome in self._unresolved}
        late = [index for index, slot in enumerate(self._states) if slot.busy and index not in here]
        what = {self._states[index].busy for index in late}
        return VectorTimeout(
            f"{format_indices(late)} did not finish {' and '.join(sorted(what))} within {timeout:g} s; no result is "
            "lost: call again to keep waiting, or pass a shorter deadline (deadlines={'step': …}) to replace them"
        )

    def _run_commands(self, commands: Sequence[EnvCommand]) -> list[EnvResult]:
        """Execute commands other than reset and step, and wait for them."""
        outcomes: list[EnvResult] = []
        try:
            for command in commands:
                self._states[command.index].busy = command.op
            self._executor.submit(commands)
            with self._receiving:
                while len(outcomes) < len(commands):
                    self._executor.wait(len(commands) - len(outcomes), None)
                    outcomes += self._executor.take()
            for outcome in outcomes:
                slot = self._states[outcome.index]
                slot.busy = ""
                if outcome.fault is not None:
                    slot.fault = outcome.fault
        except BaseException as error:
            self._interrupted = type(error).__name__
            raise
        for outcome in outcomes:
            failure = outcome.fault or outcome.error
            if failure is not None:
                raise failure
        return sorted(outcomes, key=_INDEX)

    def _named(self, env_ids: Iterable[int] | None, what: str) -> list[int]:
        self._assert_open()
        if self._pending:
            raise AlreadyPendingCallError(
                f"`{what}` was called while a `{self._pending}_async` is in progress", self._pending
            )
        indices = list(range(self.num_envs)) if env_ids is None else self._numbers(env_ids)
        busy = [index for index in indices if self._states[index].busy]
        if busy:
            raise AlreadyPendingCallError(f"in progress: {format_indices(busy)}; call recv() before `{what}`", what)
        return indices

    def _numbers(self, env_ids: Iterable[int]) -> list[int]:
        wanted = f"must be different numbers from 0 to {self.num_envs - 1}"
        try:
            listed = list(env_ids)
            if any(isinstance(index, bool | np.bool_) for index in listed):
                raise TypeError  # a mask, whose 0 and 1 would be read as indices
            indices = [operator.index(index) for index in listed]
        except TypeError:
            raise TypeError(f"env_ids={env_ids!r:.200} {wanted}; for a mask pass np.flatnonzero(mask)") from None
        outside = [index for index in indices if not 0 <= index < self.num_envs]
        if outside or len(set(indices)) < len(indices):
            raise ValueError(f"env_ids={indices} {wanted}")
        return indices

    def _assert_steppable(self, indices: Sequence[int]) -> None:
        states = self._states
        for index in indices:
            state = states[index]
            if not state.started or (state.done and self._disabled):
                break
        else:
            return
        never = [index for index in indices if not states[index].started]
        if never:
            raise ResetNeeded(f"not reset yet: {format_indices(never)}; call reset() first")
        over = [index for index in indices if states[index].done]
        raise ResetNeeded(
            f"the episode of {format_indices(over)} is over; with autoreset_mode='Disabled' call "
            "reset(options={'reset_mask': terminations | truncations})"
        )

    def _assert_free(self, what: str) -> None:
        self._assert_open()
        if self._pending:
            raise AlreadyPendingCallError(
                f"Calling `{what}` while waiting for a pending call to `{self._pending}` to complete.", self._pending
            )
        for slot in self._states:
            if slot.busy:
                busy = [index for index, slot in enumerate(self._states) if slot.busy]
                raise AlreadyPendingCallError(f"in progress: {format_indices(busy)}; call recv() before `{what}`", what)

    def _assert_only_reader(self, what: str) -> None:
        if self._receiving.locked():
            self._assert_open()  # the other thread may be closing
            raise AlreadyPendingCallError(
                f"`{what}` while another thread waits for results; call it from one thread at a time", what
            )

    def _assert_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"Trying to operate on `{type(self).__name__}`, after a call to `close()`.")
        if self._interrupted:
            raise ClosedEnvironmentError(
                f"{self._interrupted} ended a call before all of its environments were dealt with, so this "
                f"{type(self).__name__} cannot be used any more: close() it and create a new one"
            )
        if os.getpid() != self._pid:
            raise ClosedEnvironmentError(
                f"this {type(self).__name__} and its workers belong to process {self._pid}, not to this forked "
                "process: create a new one here"
            )
