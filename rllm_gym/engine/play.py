"""One attempt at one episode of a workflow, as its code sees it: who speaks, in which worlds, and how it ends."""

from __future__ import annotations

import asyncio
import re
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rllm_gym.agents import BaseAgent, ChatAgent
from rllm_gym.core import EnvironmentFault, Episode, StopReason, Task, Trajectory
from rllm_gym.engine.crew import AgentFailed, Seat
from rllm_gym.engine.ending import end_tasks
from rllm_gym.engine.game_host import GameHost, resolve_game
from rllm_gym.engine.handles import EnvironmentHandle, GameHandle, Handle
from rllm_gym.engine.host import EnvironmentHost, resolve
from rllm_gym.engine.speaker import Speaker, TokensLeft, Truncated, finite
from rllm_gym.engine.spec import EpisodeSpec
from rllm_gym.engine.stage import Stage
from rllm_gym.engine.workflow import Role
from rllm_gym.workers import DeadlineExceeded, MemoryExceeded, WorkerDied, WorkerError

if TYPE_CHECKING:
    from rllm_gym.engine.workflow_engine import AgentWorkflowEngine

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PATIENCE = 1_000  # times that code which catches everything is told the same
# How an episode may end by the word of a workflow; the other reasons are the engine's to find.
_BY_WORKFLOW = frozenset(StopReason) - {
    StopReason.NONE,
    StopReason.FAULT,
    StopReason.AGENT_ERROR,
    StopReason.CANCELLED,
}


class Play:
    """One attempt at one episode. The engine makes it; a workflow's ``run`` receives it.

    Everything that takes time goes through it: replies, worlds, calls. In a deterministic run the workflow waits for
    nothing else, its own tasks apart.

    Attributes:
        seed: Seed of the episode's dynamics.
        greedy: Replies are drawn at temperature 0.
        group_id: Names the group of episodes whose rewards are compared.
        episode_id: Unique within the run.
        task: As the spec names it.
        roles: How the agents of each role are played.
        metrics: Numbers of the whole episode, for whoever reports it; a workflow writes into it.
    """

    def __init__(
        self,
        engine: AgentWorkflowEngine,
        spec: EpisodeSpec,
        *,
        roles: Mapping[str, Role],
        stage: Stage,
        seat: Seat,
        name: str,
    ) -> None:
        self.seed = spec.seed or 0
        self.greedy = spec.greedy
        self.group_id = spec.group_id
        self.episode_id = spec.episode_id
        self.task = spec.task
        self.roles = dict(roles)
        self.metrics: dict[str, float] = {}
        self.worlds: list[Handle] = []
        self.task_row = _row(spec.task)
        self.task_id = str((self.task_row or {}).get("task_id", ""))
        self.seat = seat
        self.name = name
        self.speakers: dict[str, Speaker] = {}
        self.seconds = {"env": 0.0, "sample": 0.0, "render": 0.0, "agent": 0.0}
        self.tokens = TokensLeft(engine.max_episode_tokens, engine.budget.max_turns)
        self.broken: Exception | None = None
        self.broken_off: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.seconds_to_end = engine.deadlines.close
        self._refused = 0
        self._engine = engine
        self._stage = stage
        self._closed = False
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()

    # Who speaks ---------------------------------------------------------------------------------------------

    def agent(
        self,
        name: str,
        role: str | None = None,
        *,
        system: str | None = None,
        agent: BaseAgent | None = None,
        tools: Sequence[Mapping[str, Any]] | str | None = None,
    ) -> Speaker:
        """An agent of this episode; the same name gives the same one again.

        Args:
            name: Unique in the episode and the same in each, such as ``"solver_0"``.
            role: One of the workflow's roles; ``None``: the name without its number.
            system: Its system prompt.
            agent: What keeps its messages; ``None`` makes a :class:`~rllm_gym.agents.ChatAgent`.
            tools: OpenAI tool schemas, or their JSON.

        Raises:
            ValueError: The name is taken by an agent of another role, has other characters than letters, digits,
                ``_``, ``.`` and ``-``, or the workflow has no such role.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"an agent's name is 1 to 64 letters, digits, '_', '.' or '-'; got {name!r}")
        role = re.sub(r"_\d+$", "", name) if role is None else role
        known = self.speakers.get(name)
        if known is not None:
            if known.role != role:
                raise ValueError(f"{name!r} is a {known.role!r} already; give the {role!r} another name")
            if system is not None or agent is not None or tools is not None:
                raise ValueError(f"{name!r} exists already, so system, agent and tools come too late; leave them out")
            return known
        if role not in self.roles:
            raise ValueError(
                f"{name!r} has the role {role!r}, and the workflow's roles are {sorted(self.roles)}: name it in "
                "Workflow.roles, or give role="
            )
        if agent is not None and system is not None:
            raise ValueError(f"{name!r}: an agent has its own system prompt; give system or agent, not both")
        if agent is None:
            agent = ChatAgent(system or "")
        if not isinstance(agent, BaseAgent):
            raise TypeError(f"{name!r}: agent= is a {type(agent).__name__}, not a BaseAgent")
        speaker = Speaker(self, name, role, agent, tools, self._engine.voice(self, name, role))
        self.speakers[name] = speaker
        return speaker

    # Where --------------------------------------------------------------------------------------------------

    async def env(self, env_id: Any = None, **kwargs: Any) -> EnvironmentHandle:
        """An environment in a worker of its own, ready to be reset.

        Args:
            env_id: A Gymnasium id, or something callable that returns an environment; ``None``: the engine's.
            **kwargs: Arguments of the environment; with ``None`` they add to the engine's.

        Raises:
            gymnasium.error.Error: There is no such id.
            ValueError: The engine has no environment.
        """
        env_id, kwargs = self._world(env_id, kwargs)
        slot = self._stage.take(resolve(env_id), kwargs, name=_name(env_id), host=EnvironmentHost)
        return EnvironmentHandle(self, slot, _name(env_id))

    async def game(self, env_id: Any = None, **kwargs: Any) -> GameHandle:
        """A PettingZoo game in turns, in a worker of its own, ready to be reset.

        Args:
            env_id: Id of an AEC environment, or something callable that returns one; ``None``: the engine's.
            **kwargs: Arguments of the game; with ``None`` they add to the engine's.

        Raises:
            KeyError, ValueError: There is no such id, or the engine has no environment.
        """
        env_id, kwargs = self._world(env_id, kwargs)
        slot = self._stage.take(resolve_game(env_id), kwargs, name=_name(env_id), host=GameHost)
        return GameHandle(self, slot, _name(env_id))

    async def call(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """``function(*args)`` in a worker: whatever blocks or may hang.

        Args:
            function: For process workers anything ``cloudpickle`` takes.
            *args: Its arguments.
            timeout: Seconds; ``None``: ``deadlines.call``.

        Raises:
            EnvironmentFault: It was late (``call_deadline``), its worker died (``worker_died``) or ran out of memory
                (``memory``). Whoever knows that the model is to blame catches this one; else the episode begins again.
            Exception: What the function raised.
        """
        seconds = self._engine.deadlines.call if timeout is None else timeout
        self._engine.made.set()  # what goes wrong here is no environment that could not be made
        began = time.perf_counter()
        await self.enter()
        with self.seat.at_work():
            try:
                return await self._engine.pool().arun(function, *args, timeout=seconds)
            except DeadlineExceeded:
                self._engine.count_lost_worker()
                raise EnvironmentFault(
                    f"{_name(function)} was not done within {seconds:g} s", kind="call_deadline"
                ) from None
            except MemoryExceeded as error:
                self._engine.count_lost_worker()
                raise EnvironmentFault(f"{_name(function)} needed too much memory: {error}", kind="memory") from error
            except WorkerDied as error:
                self._engine.count_lost_worker()
                raise EnvironmentFault(f"the worker died in {_name(function)}: {error}", kind="worker_died") from error
            except WorkerError as error:
                raise RuntimeError(f"{_name(function)}: {error}") from error
            finally:
                self.seconds["env"] += time.perf_counter() - began

    # How it ends --------------------------------------------------------------------------------------------

    def finish(
        self,
        *,
        reward: float | None = None,
        success: bool | None = None,
        stop_reason: StopReason | str | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> Episode:
        """The episode as it stands, one trajectory for each agent that was made.

        Args:
            reward: Of the episode. ``None``: the sum over all agents. Where no agent was given a reward of its own,
                each of them gets this one, on its last step.
            success: Whether the task was solved. ``None``: as the stop reason says, and without one, whether the
                reward is above 0.
            stop_reason: ``None``: ``SUCCESS`` or ``FAILURE``.
            info: The episode's; ``None``: the latest of the world that was made first.

        Raises:
            ValueError: A reward or metric is no finite number, or the stop reason is not a workflow's to give.
        """
        speakers = self._in_order()
        if reward is not None:
            reward = finite("reward", reward)
            if not any(speaker.rewarded for speaker in speakers):
                for speaker in speakers:
                    if speaker.steps:
                        speaker.reward(reward)
        reason = None if stop_reason is None else StopReason(stop_reason)
        if reason is not None:
            check_reason(reason)
        metrics = {str(key): finite(f"metrics[{key!r}]", value) for key, value in self.metrics.items()}
        trajectories = [speaker.trajectory() for speaker in speakers]
        if reward is None:
            reward = float(sum(trajectory.reward for trajectory in trajectories))
        if success is None:
            success = reason is StopReason.SUCCESS if reason is not None else reward > 0
        success = bool(success)
        return Episode(
            episode_id=self.episode_id,
            task_id=self.task_id,
            trajectories=trajectories,
            reward=reward,
            success=success,
            stop_reason=reason or (StopReason.SUCCESS if success else StopReason.FAILURE),
            info=self.told() if info is None else {**self.told(), **info},
            metrics=metrics,
        )

    def cut_off(self, reason: StopReason) -> Episode:
        """The episode where a limit ended it. Who was never told what its last words were worth is not trained on."""
        episode = self.finish(success=False, stop_reason=reason)
        for trajectory, speaker in zip(episode.trajectories, self._in_order(), strict=True):
            trajectory.trainable = trajectory.trainable and speaker.rewarded_last
        return episode

    def so_far(self) -> list[Trajectory]:
        """What was said, for the record of an episode that came to nothing."""
        return [speaker.trajectory() for speaker in self._in_order()]

    # For the engine -----------------------------------------------------------------------------------------

    async def enter(self) -> None:
        """Before everything that waits: remembers the task that does, and refuses it when nothing may go on.

        Raises:
            RuntimeError: The episode is over.
            EnvironmentFault, SamplerError, AgentFailed: What broke it before.
        """
        if self._closed or self.broken is not None:
            await self._refuse()
        if self._closed:
            raise RuntimeError(f"episode {self.episode_id!r} is over: nothing more can be said or done in it")
        if self.broken is not None:
            raise self.broken
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)

    async def cut(self, cut: Truncated) -> None:
        """An agent that a limit silenced was asked to speak: code that asks without end has to be ended."""
        if self._refused == _PATIENCE:
            self.fail(
                AgentFailed(f"{cut}, and was asked {_PATIENCE} times: leave the loop, or let Truncated end the episode")
            )
        await self._refuse()

    async def _refuse(self) -> None:
        """Let all others have their turn before the next refusal; whoever never hears it waits until it is ended."""
        self._refused += 1
        if self._refused > 2 * _PATIENCE:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)

    def break_off(self, error: Exception) -> None:
        """The attempt cannot go on; the first reason counts."""
        self.broken = self.broken or error
        if not self.broken_off.done():
            self.broken_off.set_result(None)

    def fail(self, error: Exception) -> None:
        """:meth:`break_off` for what the workflow raised itself: no environment that could not be made."""
        self._engine.made.set()
        self.break_off(error)

    def met(self, task_id: str, row: dict[str, Any] | None) -> None:
        """A world told of its task. The first one is the episode's, where the spec does not name one in full."""
        self.task_id = self.task_id or task_id
        self.task_row = self.task_row or row

    async def aclose(self, work: asyncio.Task[Any]) -> None:
        """End the workflow, and every task of its own that still asks for something. Nothing goes on afterwards."""
        self._closed = True
        await end_tasks({work, *self._tasks} - {asyncio.current_task()}, self.seconds_to_end)

    def told(self) -> dict[str, Any]:
        """The info of the first world, and by which weights agents were played if not by the policy's."""
        info = dict(self.worlds[0].info) if self.worlds else {}
        weights = {speaker.name: speaker.weights for speaker in self._in_order() if speaker.weights}
        return {**info, "weights": weights} if weights else info

    def _in_order(self) -> list[Speaker]:
        """By role and number: in which order tasks of the workflow's own came to speak is nobody's concern."""
        roles = list(self.roles)
        return sorted(
            self.speakers.values(),
            key=lambda speaker: (roles.index(speaker.role), *_natural(speaker.name)),
        )

    def _world(self, env_id: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if env_id is not None:
            return env_id, kwargs
        if self._engine.env is None:
            raise ValueError("which environment? give its id, or env= to the engine")
        return self._engine.env, {**self._engine.env_kwargs, **kwargs}


def check_reason(reason: StopReason) -> None:
    """
    Raises:
        ValueError: No workflow may end an episode for this reason.
    """
    if reason not in _BY_WORKFLOW:
        raise ValueError(
            f"stop_reason={reason.value!r} is the engine's to give: raise EnvironmentFault for a broken world, or let "
            "the exception of a bug through"
        )


def _row(task: Any) -> dict[str, Any] | None:
    if isinstance(task, Task):
        return task.to_json()
    return dict(task) if isinstance(task, Mapping) else None


def _natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """``solver_2`` comes before ``solver_10``."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isascii() and part.isdigit() else (-1, part) for part in parts], name


def _name(source: Any) -> str:
    if isinstance(source, str):
        return source
    return str(getattr(source, "id", None) or getattr(source, "__qualname__", None) or type(source).__name__)
