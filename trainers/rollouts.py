"""Collection of episodes during training: the environments, engines and sampler of a run, and their shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import gymnasium
from gymnasium.envs.registration import load_env_creator

from rllm_gym.agents import BaseAgent, default_agent
from rllm_gym.chat import ChatRenderer
from rllm_gym.core import Episode, Task, stream_seed
from rllm_gym.engine import (
    AgentExecutionEngine,
    AgentWorkflowEngine,
    Deadlines,
    EngineStats,
    EpisodeSpec,
    Role,
    Workflow,
)
from rllm_gym.engine.game_host import is_game
from rllm_gym.samplers.protocol import Sampler, SamplingParams, WeightUpdate
from rllm_gym.workers import BackgroundLoop
from trainers.algorithms import Draw
from trainers.config import Cast, ConfigError, EnvConfig, SamplingConfig
from trainers.samples import TokensMissing

_log = logging.getLogger(__name__)


class Tasks(Protocol):
    """The interface of a task set: rows, ids or :class:`~rllm_gym.core.Task` by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class World:
    """The environment of a run as objects.

    Attributes:
        env: Id, class or function that creates the environment, or the game of a workflow.
        agent: Creates an agent; ``None`` for the environment's default agent, and with a workflow, which creates its
            own agents.
        train: Training tasks.
        validation: Validation tasks, or ``None`` if there are none.
        train_kwargs: Keyword arguments of the environment for training.
        validation_kwargs: Keyword arguments of the environment for validation.
        workflow: Creates the workflow that runs the episodes; ``None`` for a single agent in the environment.
    """

    env: str | Callable[..., Any]
    agent: Callable[[], BaseAgent] | None
    train: Tasks
    validation: Tasks | None = None
    train_kwargs: Mapping[str, Any] = field(default_factory=dict)
    validation_kwargs: Mapping[str, Any] = field(default_factory=dict)
    workflow: Callable[[], Workflow] | None = None

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the workflow; empty without a workflow."""
        return () if self.workflow is None else tuple(self.workflow().roles)

    def named(self, config: EnvConfig) -> EnvConfig:
        """Return options with placeholder names for the parts given as objects.

        Raises:
            ConfigError: The options name a workflow, but this object has none.
        """
        if config.workflow and self.workflow is None:
            raise ConfigError(
                f"env.workflow={config.workflow!r} does nothing with a world that is given; give it the workflow, too "
                "(World.workflow), or leave it out"
            )
        workflow = config.workflow or ("" if self.workflow is None else "given:workflow")
        return replace(config, id=config.id or "given", workflow=workflow)


def open_world(config: EnvConfig, env: str | Callable[..., Any] | None = None) -> World:
    """Create the environment, tasks and agent of a configuration; ``env`` replaces its id.

    Raises:
        ConfigError: The id or the agent cannot be found, or the environment has no task set.
    """
    train_kwargs, validation_kwargs = dict(config.kwargs), dict(config.kwargs)
    env = config.id if env is None else env
    takes_split = "split" in _parameters(env)
    if takes_split:
        train_kwargs["split"], validation_kwargs["split"] = "train", "validation"
    train_kwargs |= config.train_kwargs
    validation_kwargs |= config.validation_kwargs
    validated = takes_split or bool(config.validation_kwargs)
    return World(
        env,
        None if config.workflow else make_agent(config),
        tasks_of(env, train_kwargs),
        tasks_of(env, validation_kwargs) if validated else None,
        train_kwargs,
        validation_kwargs,
        make_workflow(config) if config.workflow else None,
    )


def make_agent(config: EnvConfig) -> Callable[[], BaseAgent]:
    """Return a factory of the configured agent.

    Raises:
        ConfigError: The class does not exist.
    """
    if not config.agent:
        return default_agent(config.id)
    agent = load_object(config.agent, "env.agent")
    kwargs = dict(config.agent_kwargs)
    return lambda: agent(**kwargs)


def make_workflow(config: EnvConfig) -> Callable[[], Workflow]:
    """Return a factory of the configured workflow.

    Raises:
        ConfigError: The class does not exist, or does not accept the arguments.
    """
    workflow = load_object(config.workflow, "env.workflow")
    kwargs = dict(config.workflow_kwargs)
    try:
        made = workflow(**kwargs)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"env.workflow={config.workflow!r} cannot be made with {kwargs}: {error}") from error
    if not isinstance(made, Workflow):
        raise ConfigError(
            f"env.workflow={config.workflow!r} makes a {type(made).__name__}, not a rllm_gym.engine.Workflow"
        )
    return lambda: workflow(**kwargs)


def load_object(path: str, option: str) -> Any:
    """Import the object named ``module:name``.

    Raises:
        ConfigError: It cannot be imported.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{option}={path!r} cannot be imported ({error}); write module:name") from error


def tasks_of(source: str | Callable[..., Any], kwargs: Mapping[str, Any]) -> Tasks:
    """Return the task set of an environment.

    Raises:
        ConfigError: The environment cannot be created, or has no task set.
    """
    env = _make(source, kwargs)
    try:
        tasks: Tasks | None = getattr(env.unwrapped, "tasks", None)
        if tasks is None:
            raise ConfigError(
                f"{source!r} has no `tasks`, so nothing says what to train on; subclass rllm_gym.core.TextEnv, or "
                "give task rows to trainers.AgentTrainer"
            )
        return tasks
    finally:
        env.close()


def sandbox_tier_of(world: World) -> str:
    """Return the sandbox tier of programs run by the training environments; ``"none"`` if they run none."""
    env = _make(world.env, world.train_kwargs)
    try:
        return str((getattr(env, "metadata", None) or {}).get("sandbox_tier", "none"))
    finally:
        env.close()


def _make(source: str | Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        if not isinstance(source, str):
            return source(**kwargs)
        if is_game(source):
            return importlib.import_module("pettingzoo").make("aec", source.rpartition(":")[2], **kwargs)
        return gymnasium.make(source, **kwargs)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"env.id={source!r} cannot be made with {dict(kwargs)}: {error}") from error


Engine = AgentExecutionEngine | AgentWorkflowEngine


class RolloutAbandoned(RuntimeError):
    """The run is shutting down, and episodes in progress are discarded."""


@dataclass(frozen=True, slots=True)
class Played:
    """Result of a rollout.

    Attributes:
        episodes: Episodes in the order in which they were requested.
        stats: Engine statistics of this rollout.
        pushes: For each episode, the number of the weight sync (from 1) of the oldest weights that sampled its
            tokens; 0 for weights before the first sync.
    """

    episodes: list[Episode]
    stats: EngineStats
    pushes: list[int]


class Rollouts:
    """Collects episodes and serves the newest weights. Owns the engines and the sampler; call :meth:`close`.

    Episodes run in a background thread: :meth:`begin` returns immediately.

    Args:
        world: Environment, agent and tasks.
        sampler: Generates the replies.
        tokenizer: The model's tokenizer.
        env: Limits and workers.
        sampling: Sampling options.
        cast: Options of a workflow's roles.
        seed: Seed of the environments' dynamics and the sampled tokens.
        deterministic: Whether to sample in rounds, in the order of the episodes.

    Attributes:
        sampler: The current sampler.
        pushes: Number of weight syncs.

    Raises:
        TokensMissing: The sampler does not return token ids and log-probs.
    """

    def __init__(
        self,
        world: World,
        sampler: Sampler,
        tokenizer: Any,
        *,
        env: EnvConfig,
        sampling: SamplingConfig,
        cast: Cast | None = None,
        seed: int,
        deterministic: bool,
    ) -> None:
        if not sampler.returns_tokens:
            raise TokensMissing(
                f"{type(sampler).__name__} returns no token ids and log-probs, so its episodes can be evaluated but "
                "not trained on; use the torch or vLLM sampler"
            )
        self.world = world
        self.sampler = sampler
        self._seed = seed
        self._loop = BackgroundLoop("rollouts")
        self.pushes = 0
        self._pushed: dict[int, int] = {}  # weight version to number of its weight sync
        self._playing: set[asyncio.Task[Any]] = set()
        self._abandoned = False
        self._closed = False

        self._sampling = sampling
        self._cast = cast
        options: dict[str, Any] = {
            "env": world.env,
            "sampler": sampler,
            "renderer": ChatRenderer(tokenizer),
            "sampling_params": self._params(sampling.max_tokens),
            "n_parallel": env.parallel,
            "workers": env.workers,
            "max_turns": env.max_turns,
            "max_response_tokens": sampling.max_response_tokens,
            "max_context_tokens": sampling.context_length,
            "deadlines": Deadlines(
                reset=env.step_timeout, step=env.step_timeout, close=env.step_timeout, episode=env.episode_timeout
            ),
            "retries": env.retries,
            "seed": seed,
            "deterministic": deterministic,
        }

        def engine(kwargs: Mapping[str, Any]) -> Engine:
            if world.workflow is None:
                return AgentExecutionEngine(env_kwargs=kwargs, agent=world.agent, **options)
            return AgentWorkflowEngine(world.workflow, env_kwargs=kwargs, roles=self._roles(()), **options)

        self._train = engine(world.train_kwargs)
        self._validation = engine(world.validation_kwargs)
        for each in (self._train, self._validation):
            self._loop.run(each.__aenter__())

    def _params(self, max_tokens: int) -> SamplingParams:
        return SamplingParams(temperature=self._sampling.temperature, max_tokens=max_tokens)

    def _roles(self, pool: Sequence[str]) -> dict[str, Role]:
        """Return the weights and sampling parameters of each role; opponents use those in the pool."""
        cast = self._cast
        assert cast is not None
        roles = {}
        for name in self.world.roles:
            most = cast.role(name).max_tokens
            weights = tuple(pool) if pool and name == cast.opponents.role else cast.weights(name)
            params = None if most is None else self._params(most)
            roles[name] = Role(weights=weights, trainable=cast.trainable(name), params=params)
        return roles

    def group_id(self, step: int, position: int, index: int) -> str:
        """Return the group id of a training task at a position of a step."""
        task = self.world.train[index]
        return f"{task.task_id if isinstance(task, Task) else index}@{step}.{position}"

    def begin(
        self, step: int, indices: Sequence[int], plans: Sequence[Sequence[Draw]], *, first: int = 0
    ) -> Future[Played]:
        """Start the episodes of a step: for each task those of its plan, as one group.

        The group at position ``p`` of the step has the id ``{task}@{step}.{p}``. Seeds are derived only from step
        and position, so that the same episodes are collected regardless of process and time.

        Args:
            step: The step.
            indices: Training tasks.
            plans: The episodes of each task.
            first: Position of the first task in the step.
        """
        specs = []
        for position, (index, plan) in enumerate(zip(indices, plans, strict=True), first):
            task = self.world.train[index]
            name = self.group_id(step, position, index)
            for member, draw in enumerate(plan):
                seed = stream_seed("episode", self._seed, step, position, member) % 2**32
                specs.append(EpisodeSpec(task, seed, name, draw.greedy, f"{name}#{member}"))
        return self._loop.start(self._play(self._train, specs))

    def validate(
        self, step: int, tasks: int, samples: int, *, greedy: bool, span: range | None = None
    ) -> tuple[list[Episode], EngineStats]:
        """Run the first ``tasks`` validation tasks, always with the same seeds; greedy episodes are marked.

        Args:
            step: The step, for the names of the episodes.
            tasks: Number of tasks, at most those available.
            samples: Stochastic episodes per task.
            greedy: Add one episode per task at temperature 0.
            span: Run only these of the tasks.
        """
        assert self.world.validation is not None
        specs = []
        for index in range(min(tasks, len(self.world.validation))) if span is None else span:
            task = self.world.validation[index]
            name = f"{task.task_id if isinstance(task, Task) else index}@validation{step}"
            for member in range(samples + greedy):
                seed = stream_seed("validation", self._seed, index, member) % 2**32
                specs.append(EpisodeSpec(task, seed, name, member == samples, f"{name}#{member}"))
        played = self._loop.run(self._play(self._validation, specs))
        return played.episodes, played.stats

    def replace_sampler(self, make: Callable[[], Sampler]) -> None:
        """Close the sampler, even if it is dead, and continue with a new one, which needs a weight sync.

        Raises:
            SamplerError: The new sampler did not start.
        """
        self._pushed.clear()
        try:
            self._loop.run(self.sampler.close())
        except Exception as error:  # it is replaced because it is broken
            _log.warning("closing the sampler that died: %s: %s", type(error).__name__, error)
        self.sampler = self._train.sampler = self._validation.sampler = make()

    def push(self, updates: Sequence[WeightUpdate]) -> None:
        """Serve new weights, each under its name. All of them count as one weight sync."""
        self.pushes += 1
        for update in updates:
            self._pushed[self._loop.run(self.sampler.push(update))] = self.pushes

    def serve_beside(self, update: WeightUpdate) -> None:
        """Serve frozen weights under a name; the tokens they sample are not trained on."""
        self._loop.run(self.sampler.push(update))

    def drop(self, name: str) -> None:
        """Stop serving frozen weights."""
        self._loop.run(self.sampler.drop(name))

    def meet(self, pool: Sequence[str]) -> None:
        """Set the names of the opponents for later episodes. No episode may be in progress."""
        for engine in (self._train, self._validation):
            assert isinstance(engine, AgentWorkflowEngine)
            engine.roles = self._roles(pool)

    def close(self) -> None:
        """Stop all workers and free the sampler. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        with contextlib.ExitStack() as closing:  # each callback runs even if others fail
            closing.callback(self._loop.close)
            closing.callback(lambda: self._loop.run(self.sampler.close()))
            closing.callback(lambda: self._loop.run(self._validation.aclose()))
            closing.callback(lambda: self._loop.run(self._train.aclose()))
            self.abandon()
            closing.callback(lambda: self._loop.run(self._played_out()))

    def abandon(self) -> None:
        """End all current and future episodes with :class:`RolloutAbandoned`. Safe to call in a signal handler."""
        self._abandoned = True
        self._loop.call_soon(self._cancel_playing)

    def _cancel_playing(self) -> None:
        for task in self._playing:
            task.cancel()

    def _drawn_by(self, episode: Episode) -> int:
        versions = {
            step.tokens.weight_version
            for trajectory in episode.trajectories
            for step in trajectory.steps
            if trajectory.trainable and step.tokens is not None
        }
        return min((self._pushed.get(version, 0) for version in versions), default=self.pushes)

    async def _played_out(self) -> None:
        await asyncio.gather(*self._playing, return_exceptions=True)

    async def _play(self, engine: Engine, specs: list[EpisodeSpec]) -> Played:
        task = asyncio.current_task()
        assert task is not None
        self._playing.add(task)
        try:
            if self._abandoned:
                raise RolloutAbandoned("the run is to stop")
            before = engine.stats.copy()
            episodes = await engine.run(specs)
            return Played(episodes, engine.stats.since(before), [self._drawn_by(episode) for episode in episodes])
        except asyncio.CancelledError:
            if not self._abandoned:
                raise
            raise RolloutAbandoned("the run is to stop") from None
        finally:
            self._playing.discard(task)


def _parameters(env_id: str | Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the constructor parameters of an environment.

    Raises:
        ConfigError: The environment does not exist.
    """
    if not isinstance(env_id, str):
        return inspect.signature(env_id).parameters
    module, colon, name = env_id.partition(":")
    try:
        if colon:
            importlib.import_module(module)
        name = name if colon else env_id
        spec = importlib.import_module("pettingzoo").spec("aec", name) if is_game(name) else gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        raise ConfigError(f"env.id={env_id!r}: {error}") from error
    entry_point = spec.entry_point
    if entry_point is None:
        raise ConfigError(f"env.id={env_id!r} is registered without an entry point: it can only be made as a vector")
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    return inspect.signature(creator).parameters
