"""The engine of workflows: episodes of any number of agents, written as plain Python, many at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import gymnasium
from gymnasium.envs.registration import EnvSpec

from rllm_gym.chat.renderer import ChatRenderer
from rllm_gym.engine.base import BaseEngine
from rllm_gym.engine.conversation import Conversation
from rllm_gym.engine.crew import AgentFailed, Seat
from rllm_gym.engine.game_host import resolve_game
from rllm_gym.engine.host import resolve
from rllm_gym.engine.performance import Performance
from rllm_gym.engine.play import Play
from rllm_gym.engine.rollout import greedy
from rllm_gym.engine.spec import Budget, Deadlines, EpisodeSpec
from rllm_gym.engine.stage import Stage
from rllm_gym.engine.voice import Voice
from rllm_gym.engine.workflow import Role, Workflow
from rllm_gym.samplers.protocol import Completion, Request, Sampler, SamplingParams
from rllm_gym.workers import Kind

# Turns of the event loop between waking a task and what it asks for next: a few for each gather or TaskGroup it is in.
_SETTLE = 50


class AgentWorkflowEngine(BaseEngine):
    """Runs workflows, ``n_parallel`` episodes at a time, with the face of
    :class:`~rllm_gym.engine.AgentExecutionEngine`: ``stream``, ``run``, ``run_sync``, ``stats``, ``async with``.

    >>> engine = AgentWorkflowEngine(SolverJudge, env="rllm/Math-v0", sampler=sampler)   # doctest: +SKIP
    >>> episodes = engine.run_sync(range(100))                                           # doctest: +SKIP

    An episode has one trajectory for each agent, with the tokens that agent sampled and no other's.

    **What goes wrong.** A world that breaks begins the episode again on fresh worlds, and past ``retries`` ends it as
    ``StopReason.FAULT``; an exception of the workflow's own code ends it as ``StopReason.AGENT_ERROR`` with the reason
    in ``Episode.fault``; a limit that lets an agent speak no more ends it with that reason, unless the workflow catches
    :class:`~rllm_gym.engine.Truncated`. None of them is a reward, and all are counted in ``stats``.

    Args:
        workflow: A :class:`~rllm_gym.engine.Workflow` class, something callable that makes one (for each attempt), or
            one object for all episodes, which must then keep nothing on itself.
        env: What ``play.env()`` and ``play.game()`` make where a workflow names nothing else: a Gymnasium id, the id
            of a PettingZoo game, an ``EnvSpec``, or something callable.
        sampler: What draws replies.
        workflow_kwargs: Keyword arguments of the workflow.
        env_kwargs: Keyword arguments of the environment.
        roles: How the agents of each role are played; a role left out is played by the policy and trained.
        renderer, tokenizer, sampling_params, n_parallel, workers, memory_mb, deadlines, retries, reuse_envs,
            on_sampler_error, seed, progress: As :class:`~rllm_gym.engine.AgentExecutionEngine`.
        max_turns: Replies in one episode, of all agents together.
        max_prompt_tokens, max_response_tokens, max_context_tokens: As :class:`Budget`, for each agent.
        max_episode_tokens: Tokens sampled in one episode, by all agents together. Of agents that ask at the same time
            the first to ask has the first pick.
        deterministic: Sample in rounds, each of which waits for every agent of every running episode; batches then
            depend on the episodes alone, as long as workflows wait for nothing but their play and their own tasks.
            Results come in the order of the specs.

    Raises:
        gymnasium.error.Error: There is no such id, neither an environment's nor a game's.
        ValueError: An argument is out of range, or could have no effect; a role is not one of the workflow's.
        TypeError: ``workflow`` is none, or ``deadlines`` no :class:`Deadlines`.
    """

    def __init__(
        self,
        workflow: type[Workflow] | Callable[..., Workflow] | Workflow,
        *,
        env: str | EnvSpec | Callable[..., Any] | None = None,
        sampler: Sampler,
        workflow_kwargs: Mapping[str, Any] | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        roles: Mapping[str, Role] | None = None,
        renderer: ChatRenderer | None = None,
        tokenizer: Any = None,
        sampling_params: SamplingParams | None = None,
        n_parallel: int = 64,
        workers: Kind = "thread",
        memory_mb: int | None = None,
        max_turns: int | None = None,
        max_prompt_tokens: int | None = None,
        max_response_tokens: int | None = None,
        max_context_tokens: int | None = None,
        max_episode_tokens: int | None = None,
        deadlines: Deadlines | None = None,
        retries: int = 2,
        reuse_envs: bool | None = None,
        on_sampler_error: Literal["raise", "drop"] = "raise",
        seed: int = 0,
        deterministic: bool = False,
        progress: bool = False,
    ) -> None:
        self.make_workflow = _maker(workflow, dict(workflow_kwargs or {}))
        self.env = env
        self.env_kwargs = dict(env_kwargs or {})
        if env is None and self.env_kwargs:
            raise ValueError(f"env_kwargs={self.env_kwargs!r} without env has no effect; give env, too")
        if max_episode_tokens is not None and (not isinstance(max_episode_tokens, int) or max_episode_tokens < 1):
            raise ValueError(f"max_episode_tokens={max_episode_tokens!r} must be a whole number, at least 1, or None")
        super().__init__(
            env_id=_check_world(env) if env is not None else _name(workflow),
            sampler=sampler,
            renderer=renderer,
            tokenizer=tokenizer,
            sampling_params=sampling_params,
            n_parallel=n_parallel,
            workers=workers,
            memory_mb=memory_mb,
            budget=Budget(max_turns, max_prompt_tokens, max_response_tokens, max_context_tokens),
            deadlines=deadlines,
            retries=retries,
            reuse_envs=reuse_envs,
            on_sampler_error=on_sampler_error,
            seed=seed,
            deterministic=deterministic,
            progress=progress,
            settle=_SETTLE,
        )
        self.max_episode_tokens = max_episode_tokens
        self.roles = _checked_roles(self.make_workflow(), roles or {})
        """How each role is played; may be changed between runs."""
        if self.renderer is None and (
            max_episode_tokens or any(role.max_response_tokens for role in self.roles.values())
        ):
            raise ValueError(
                "token limits need token ids, and this sampler takes messages only: give a tokenizer or a renderer, "
                "or leave max_episode_tokens and the roles' max_response_tokens out"
            )

    def new_place(self) -> Stage:
        return Stage(self)

    def attempt(self, spec: EpisodeSpec, place: Stage, name: str, seat: Seat) -> Performance:
        try:
            workflow = self.make_workflow()
        except Exception as error:
            raise AgentFailed(f"making the workflow raised {type(error).__name__}: {error}") from error
        play = Play(self, spec, roles=self.roles, stage=place, seat=seat, name=name)
        return Performance(workflow, play, spec, place)

    # For plays ----------------------------------------------------------------------------------------------

    def voice(self, play: Play, name: str, role: str) -> Voice:
        """What an agent of a role speaks with in this play."""
        played = play.roles[role]
        params = self.params if played.params is None else self.ending_turns(played.params)
        budget = self.budget
        if played.max_response_tokens is not None:
            budget = replace(budget, max_response_tokens=played.max_response_tokens)

        async def sample(request: Request) -> Completion:
            return await play.seat.sample(request, name)

        return Voice(
            Conversation(self.renderer, budget, self.sampler.context_length),
            sample,
            greedy(params) if play.greedy else params,
            f"{play.name}/{name}",
            f"{play.seed}/{name}/turn/",
            self.sampler.returns_tokens,
            played.weights_for(role, play.group_id or play.episode_id),
            seconds=play.seconds,
        )

    def count_lost_worker(self) -> None:
        """A worker was given up because of a call."""
        if self.workers == "thread":
            self.stats.abandoned_threads += 1
        else:
            self.stats.killed_processes += 1


def _maker(workflow: Any, kwargs: dict[str, Any]) -> Callable[[], Workflow]:
    if isinstance(workflow, Workflow):
        if kwargs:
            raise ValueError(f"workflow_kwargs={kwargs!r} come too late for an object; give the class")
        return lambda: workflow
    if not callable(workflow):
        raise TypeError(f"workflow is a Workflow class, an object or something that makes one; got {workflow!r}")
    if inspect.iscoroutinefunction(workflow):
        raise TypeError(f"{workflow!r} is a coroutine function; derive a class from Workflow and write run(task, play)")

    def make() -> Workflow:
        made = workflow(**kwargs)
        if not isinstance(made, Workflow):
            raise TypeError(f"workflow= gave a {type(made).__name__}, not a Workflow; derive it from Workflow")
        return made

    return make


def _checked_roles(workflow: Workflow, given: Mapping[str, Role]) -> dict[str, Role]:
    if not workflow.roles or any(not isinstance(role, str) or not role for role in workflow.roles):
        raise ValueError(f"{type(workflow).__name__}.roles={workflow.roles!r} must name at least one role")
    unknown = sorted(set(given) - set(workflow.roles))
    if unknown:
        raise ValueError(
            f"{type(workflow).__name__} has no role {', '.join(map(repr, unknown))}; its roles are {workflow.roles}"
        )
    for name, role in given.items():
        if not isinstance(role, Role):
            raise TypeError(f"roles[{name!r}] is a {type(role).__name__}, not a rllm_gym.engine.Role")
    return {name: given.get(name, Role()) for name in workflow.roles}


def _check_world(env: Any) -> str:
    """The name of an environment or game that exists."""
    try:
        return _name(resolve(env))
    except gymnasium.error.Error as unknown:
        try:
            resolve_game(env)
        except Exception:
            raise unknown from None
        return str(env)


def _name(source: Any) -> str:
    if isinstance(source, EnvSpec):
        return source.id
    return str(getattr(source, "__qualname__", None) or type(source).__name__)
