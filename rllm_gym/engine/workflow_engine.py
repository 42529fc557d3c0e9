"""The engine for workflows: runs episodes of any number of agents, written as plain Python, concurrently."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from rllm_gym.engine.attempt import AgentError
from rllm_gym.engine.attempt_state import AttemptState
from rllm_gym.engine.base import BaseEngine
from rllm_gym.engine.conversation import ConversationTokens
from rllm_gym.engine.conversation_sampler import ConversationSampler
from rllm_gym.engine.env_set import EnvSet
from rllm_gym.engine.game_host import resolve_game
from rllm_gym.engine.options import engine_options
from rllm_gym.engine.roles import Role
from rllm_gym.engine.rollout import greedy
from rllm_gym.engine.sampler_client import SamplerClient
from rllm_gym.engine.spec import EpisodeSpec
from rllm_gym.engine.token_budget import TokenBudget
from rllm_gym.engine.workflow import Workflow
from rllm_gym.engine.workflow_attempt import WorkflowAttempt
from rllm_gym.engine.workflow_context import WorkflowContext
from rllm_gym.runtime.env_building import resolve
from rllm_gym.samplers.protocol import Completion, Sampler, SamplingRequest

# Event loop iterations between resuming a task and its next request: a few per enclosing gather or TaskGroup.
_SETTLE_TURNS = 50


class AgentWorkflowEngine(BaseEngine):
    """Runs workflows, up to ``n_parallel`` episodes concurrently. Same interface as
    :class:`~rllm_gym.engine.AgentExecutionEngine`: ``stream``, ``run``, ``run_sync``, ``stats``, ``async with``.

    >>> engine = AgentWorkflowEngine(SolverJudge, env="rllm/Math-v0", sampler=sampler)   # doctest: +SKIP
    >>> episodes = engine.run_sync(range(100))                                           # doctest: +SKIP

    An episode has one trajectory per agent, with the tokens that this agent sampled and no others.

    **Error handling.** If an environment fails, the episode restarts with fresh environments, and after ``retries``
    restarts it ends as ``StopReason.FAULT``. An exception of the workflow's own code ends the episode as
    ``StopReason.AGENT_ERROR``, with the message in ``Episode.fault``. A limit that prevents an agent from replying ends
    it with that stop reason, unless the workflow catches :class:`~rllm_gym.engine.Truncated`. None of these is a
    reward, and all are counted in ``stats``.

    Args:
        workflow: A :class:`~rllm_gym.engine.Workflow` class, a factory that creates one per attempt, or one object for
            all episodes, which must not store anything on itself.
        env: The default of ``context.env()`` and ``context.game()``: a Gymnasium id, the id of a PettingZoo game, an
            ``EnvSpec``, or a callable.
        sampler: Samples the replies.
        workflow_kwargs: Keyword arguments of the workflow.
        env_kwargs: Keyword arguments of the environment.
        roles: Configuration by role. A role that is left out uses the policy's weights and is trained.
        max_episode_tokens: Tokens sampled per episode, by all agents together. If agents request at the same time,
            the first request reserves its tokens first.
        **options: See :class:`~rllm_gym.engine.EngineOptions`.

    Raises:
        gymnasium.error.Error: There is no such id, neither of an environment nor of a game.
        ValueError: An argument is out of range or would have no effect, or the workflow does not have a given role.
        TypeError: ``workflow`` is not a workflow, or ``deadlines`` is not a :class:`Deadlines`.
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
        max_episode_tokens: int | None = None,
        **options: Any,
    ) -> None:
        self.make_workflow = _factory(workflow, dict(workflow_kwargs or {}))
        self.env = env
        self.env_kwargs = dict(env_kwargs or {})
        if env is None and self.env_kwargs:
            raise ValueError(f"env_kwargs={self.env_kwargs!r} has no effect without env; pass env as well")
        if max_episode_tokens is not None and (not isinstance(max_episode_tokens, int) or max_episode_tokens < 1):
            raise ValueError(f"max_episode_tokens={max_episode_tokens!r} must be a whole number, at least 1, or None")
        super().__init__(
            env_id=_check_env(env) if env is not None else _name(workflow),
            sampler=sampler,
            options=engine_options(type(self).__name__, options),
            settle_turns=_SETTLE_TURNS,
        )
        self.max_episode_tokens = max_episode_tokens
        self.roles = _checked_roles(self.make_workflow(), roles or {})
        """Configuration by role. May be changed between runs."""
        if self.renderer is None and (
            max_episode_tokens or any(role.max_response_tokens for role in self.roles.values())
        ):
            raise ValueError(
                "token limits need token ids, but this sampler takes only messages: pass tokenizer= or "
                "renderer=, or remove max_episode_tokens and the roles' max_response_tokens"
            )

    def new_lease(self) -> EnvSet:
        return EnvSet(self.env_pool)

    def attempt(self, spec: EpisodeSpec, envs: EnvSet, name: str, sampler_client: SamplerClient) -> WorkflowAttempt:
        try:
            workflow = self.make_workflow()
        except Exception as error:
            raise AgentError(f"creating the workflow raised {type(error).__name__}: {error}") from error
        state = AttemptState(
            spec,
            sampler_client=sampler_client,
            token_budget=TokenBudget(self.max_episode_tokens, self.budget.max_turns),
            env_made=self.env_pool.env_made,
            close_timeout=self.options.deadlines.close,
        )
        roles = dict(self.roles)

        def new_sampler(agent: str, role: str) -> ConversationSampler:
            return self._new_conversation_sampler(state, f"{name}/{agent}", agent, role, roles[role])

        context = WorkflowContext(
            state,
            roles=roles,
            env=self.env,
            env_kwargs=self.env_kwargs,
            envs=envs,
            env_pool=self.env_pool,
            call_timeout=self.options.deadlines.call,
            new_sampler=new_sampler,
        )
        return WorkflowAttempt(workflow, context, state, envs)

    def _new_conversation_sampler(
        self, state: AttemptState, conversation: str, agent: str, role: str, settings: Role
    ) -> ConversationSampler:
        """Connect an agent of this role to the sampler."""
        params = self.params if settings.params is None else self.with_turn_end(settings.params)
        budget = self.budget
        if settings.max_response_tokens is not None:
            budget = replace(budget, max_response_tokens=settings.max_response_tokens)

        async def sample(request: SamplingRequest) -> Completion:
            return await state.sampler_client.sample(request, agent)

        return ConversationSampler(
            ConversationTokens(self.renderer, budget, self.sampler.context_length),
            sample,
            greedy(params) if state.spec.greedy else params,
            conversation,
            f"{state.seed}/{agent}/turn/",
            self.sampler.returns_tokens,
            settings.weights_for(role, state.spec.group_id or state.spec.episode_id),
            seconds=state.seconds,
        )


def _factory(workflow: Any, kwargs: dict[str, Any]) -> Callable[[], Workflow]:
    if isinstance(workflow, Workflow):
        if kwargs:
            raise ValueError(
                f"workflow_kwargs={kwargs!r} cannot be passed to an existing workflow object; pass the class"
            )
        return lambda: workflow
    if not callable(workflow):
        raise TypeError(
            f"workflow must be a Workflow class, a Workflow object or a function that returns one; got {workflow!r}"
        )
    if inspect.iscoroutinefunction(workflow):
        raise TypeError(f"{workflow!r} is a coroutine function; subclass Workflow and implement run(task, context)")

    def make() -> Workflow:
        instance = workflow(**kwargs)
        if not isinstance(instance, Workflow):
            raise TypeError(f"workflow= returned a {type(instance).__name__}, not a Workflow; subclass Workflow")
        return instance

    return make


def _checked_roles(workflow: Workflow, overrides: Mapping[str, Role]) -> dict[str, Role]:
    if not workflow.roles or any(not isinstance(role, str) or not role for role in workflow.roles):
        raise ValueError(f"{type(workflow).__name__}.roles={workflow.roles!r} must name at least one role")
    unknown = sorted(set(overrides) - set(workflow.roles))
    if unknown:
        raise ValueError(
            f"{type(workflow).__name__} has no role {', '.join(map(repr, unknown))}; its roles are {workflow.roles}"
        )
    for name, role in overrides.items():
        if not isinstance(role, Role):
            raise TypeError(f"roles[{name!r}] is a {type(role).__name__}, not a rllm_gym.engine.Role")
    return {name: overrides.get(name, Role()) for name in workflow.roles}


def _check_env(env: Any) -> str:
    """Return the name of an environment or game. Raise if it does not exist."""
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
