"""``TrainEnv``: the environment, agent or workflow, and tasks of a run, and how they are created from options."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import gymnasium

from rllm_gym.agents import BaseAgent, default_agent
from rllm_gym.core import TextEnv, stream_seed
from rllm_gym.data.taskset import EmptySplit
from rllm_gym.engine import EpisodeSpec, Workflow
from rllm_gym.engine.env_creation import is_environment, is_game, make_env, make_env_with_split
from rllm_gym.envs import DATASET_ID
from rllm_gym.envs.dataset import load_prompts
from trainers.config import ConfigError, EnvConfig
from trainers.option_checks import import_object


class TaskSequence(Protocol):
    """The interface of a task set: rows, ids or :class:`~rllm_gym.core.Task` by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class SeedTasks:
    """Tasks of an environment without a task set: the seed of its ``reset`` selects the task."""

    split: str

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> EpisodeSpec:
        return EpisodeSpec(seed=stream_seed("task", self.split, index) % 2**32)


@dataclass(frozen=True)
class TrainEnv:
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
        reply_tokens: Default length limit of a reply of a pretrained model, in tokens.
    """

    env: str | Callable[..., Any]
    agent: Callable[[], BaseAgent] | None
    train: TaskSequence
    validation: TaskSequence | None = None
    train_kwargs: Mapping[str, Any] = field(default_factory=dict)
    validation_kwargs: Mapping[str, Any] = field(default_factory=dict)
    workflow: Callable[[], Workflow] | None = None
    reply_tokens: int = TextEnv.reply_tokens

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the workflow; empty without a workflow."""
        return () if self.workflow is None else tuple(self.workflow().roles)

    def task_ids(self, tasks: Sequence[int]) -> list[str]:
        """Return the ids of training tasks; the index of a task that has none."""
        return [str(getattr(self.train[index], "task_id", index)) for index in tasks]

    def check_options(self, config: EnvConfig) -> None:
        """Check that these options describe this environment and no other.

        Raises:
            ConfigError: They have arguments that this environment does not have.
        """
        for name in ("kwargs", "train_kwargs", "validation_kwargs"):
            own = self.validation_kwargs if name == "validation_kwargs" else self.train_kwargs
            for key, value in getattr(config, name).items():
                if key not in own or own[key] != value:
                    raise ConfigError(
                        f"env.{name} has {key}={value!r}, which has no effect: the environment is given as a TrainEnv "
                        "without it; pass it where that one is created"
                    )

    def named(self, config: EnvConfig) -> EnvConfig:
        """Return options with a placeholder for the id.

        Raises:
            ConfigError: The options name an agent, too.
        """
        for name in ("agent", "agent_kwargs"):
            if getattr(config, name):
                raise ConfigError(
                    f"env.{name}={getattr(config, name)!r} has no effect on a TrainEnv; set TrainEnv.agent or "
                    "TrainEnv.workflow instead"
                )
        return replace(config, id=config.id or "given")


def open_train_env(config: EnvConfig, env: str | Callable[..., Any] | None = None) -> TrainEnv:
    """Create the environment, tasks and agent of a configuration; ``env`` replaces its id.

    Raises:
        ConfigError: The id or the agent cannot be found, or the environment has no task set.
    """
    env = config.id if env is None else env
    agent = make_agent(config)
    is_workflow = isinstance(agent(), Workflow)
    if not is_workflow and isinstance(env, str) and _is_only_game(env):
        raise ConfigError(
            f"env.id={env!r} is a PettingZoo environment of several agents, so env.agent must be a workflow, for "
            "example rllm_gym.engine.workflows:SelfPlay; see docs/multi-agent-training.md"
        )
    train, train_kwargs, reply_tokens = _open_split(env, config, "train", config.train_kwargs, is_workflow)
    validation, validation_kwargs = None, dict(config.kwargs)
    if "split" in train_kwargs or config.validation_kwargs or isinstance(train, SeedTasks):
        try:
            validation, validation_kwargs, _ = _open_split(
                env, config, "validation", config.validation_kwargs, is_workflow
            )
        except ConfigError as error:
            if config.validation_kwargs or not isinstance(error.__cause__, EmptySplit):
                raise
    return TrainEnv(
        env,
        None if is_workflow else agent,
        train,
        validation,
        train_kwargs,
        validation_kwargs,
        agent if is_workflow else None,
        reply_tokens,
    )


def _is_only_game(env_id: str) -> bool:
    try:
        return is_game(env_id) and not is_environment(env_id)
    except ImportError:  # creating it says what is wrong
        return False


def open_dataset(config: EnvConfig, dataset: Any, reward: Any) -> TrainEnv:
    """Create the environment ``rllm/Dataset-v0`` with a data set and reward functions as objects.

    Args:
        config: Options; ``kwargs`` can have the environment's other arguments.
        dataset: Prompts, as :class:`~rllm_gym.envs.dataset.DatasetEnv` takes them.
        reward: The reward function or functions.

    Raises:
        ConfigError: One of the two is missing or cannot be used, or another environment is configured.
    """
    if dataset is None or reward is None or config.id not in ("", DATASET_ID):
        raise ConfigError(
            f"dataset and reward are arguments of {DATASET_ID}: give both, and no other env.id={config.id!r}"
        )
    with _creation_errors(DATASET_ID, config.kwargs):
        tasks = load_prompts(dataset)  # once, and not for each environment
    return open_train_env(replace(config, id=DATASET_ID, kwargs={**config.kwargs, "dataset": tasks, "reward": reward}))


def make_agent(config: EnvConfig) -> Callable[[], Any]:
    """Return a factory of the configured agent or workflow.

    Raises:
        ConfigError: The class does not exist, does not accept the arguments, or is neither of the two.
    """
    agent = import_object(config.agent, "env.agent") if config.agent else default_agent(config.id)
    kwargs = dict(config.agent_kwargs)
    name = config.agent or f"{agent.__name__} (the default of {config.id})"
    try:
        instance = agent(**kwargs)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"env.agent={name} cannot be created with env.agent_kwargs={kwargs}: {error}") from error
    if not isinstance(instance, BaseAgent | Workflow):
        raise ConfigError(
            f"env.agent={name} creates a {type(instance).__name__}; name a subclass of rllm_gym.agents.BaseAgent or "
            "rllm_gym.engine.Workflow"
        )
    return lambda: agent(**kwargs)


def tasks_of(source: str | Callable[..., Any], kwargs: Mapping[str, Any]) -> TaskSequence:
    """Return the task set of an environment.

    Raises:
        ConfigError: The environment cannot be created, or has no task set.
    """
    with _creation_errors(source, kwargs):
        env = make_env(source, kwargs)
    return _tasks_in(env, source)


def sandbox_tier_of(train_env: TrainEnv) -> str:
    """Return the sandbox tier of programs run by the training environments; ``"none"`` if they run none."""
    with _creation_errors(train_env.env, train_env.train_kwargs):
        env = make_env(train_env.env, train_env.train_kwargs, game=train_env.workflow is not None)
    try:
        return str((getattr(env, "metadata", None) or {}).get("sandbox_tier", "none"))
    finally:
        env.close()


def _open_split(
    source: str | Callable[..., Any], config: EnvConfig, split: str, own: Mapping[str, Any], game: bool
) -> tuple[TaskSequence, dict[str, Any], int]:
    """Return the tasks of the environment for training or validation, the arguments that it is created with, and the
    length of a reply that it asks for.
    """
    wanted = {**config.kwargs, **own}
    with _creation_errors(source, wanted):
        env, created_with = make_env_with_split(source, wanted, own.get("split", split), game=game)
    limit = getattr(env.unwrapped, "max_turns", None)
    # A limit of the environment for one of the splits alone may be below, and that of the other above.
    wanted_turns = None if game or "max_turns" in own else config.max_turns
    if wanted_turns is not None and isinstance(limit, int) and wanted_turns > limit:
        env.close()
        raise ConfigError(
            f"env.max_turns={wanted_turns} has no effect: episodes of {source!r} end after {limit} turns; leave it "
            "out, or give the environment its own limit where it has such an argument: env.kwargs.max_turns"
        )
    reply_tokens = int(getattr(env.unwrapped, "reply_tokens", TextEnv.reply_tokens))
    return _tasks_in(env, source, split), created_with, reply_tokens


def _tasks_in(env: Any, source: str | Callable[..., Any], split: str = "train") -> TaskSequence:
    """Close the environment and return its task set; of a text environment without one, seeds."""
    try:
        tasks: TaskSequence | None = getattr(env.unwrapped, "tasks", None)
        for name in ("observation_space", "action_space") if tasks is None else ():
            if not isinstance(space := getattr(env, name, None), gymnasium.spaces.Text):
                raise ConfigError(
                    f"{source!r} has the {name} {space}; a model can be trained only where both are "
                    "gymnasium.spaces.Text: wrap it, or subclass rllm_gym.core.TextEnv"
                )
        return SeedTasks(split) if tasks is None else tasks
    finally:
        env.close()


@contextlib.contextmanager
def _creation_errors(source: str | Callable[..., Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError, ImportError, gymnasium.error.Error) as error:
        raise ConfigError(f"env.id={source!r} cannot be created with env.kwargs={dict(kwargs)}: {error}") from error
