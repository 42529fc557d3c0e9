"""One attempt at one single-agent episode: the loop over environment, agent and sampler."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rllm_gym.agents import Action, BaseAgent
from rllm_gym.core import Episode, Step, StopReason, Trajectory
from rllm_gym.engine.attempt import AgentError, empty_episode
from rllm_gym.engine.conversation_sampler import ConversationSampler
from rllm_gym.engine.episode_env_worker import EpisodeEnvWorker
from rllm_gym.engine.spec import EpisodeSpec
from rllm_gym.engine.task_env_host import ActionTypeError
from rllm_gym.samplers.protocol import SamplingParams


@dataclass(slots=True)
class Rollout:
    """The data of one attempt so far. Can be read at any time, also after a deadline has interrupted it.

    Attributes:
        spec: The episode to run; its seed is set.
        agent: The agent of this attempt.
        worker: The worker with the environment.
        sampler: Requests the agent's replies from the sampler.
        max_turns: Maximum number of replies; ``None`` for the environment's own limit.
        stop_reason: Why it ended.
        error: The error after which it cannot continue.
    """

    spec: EpisodeSpec
    agent: BaseAgent
    worker: EpisodeEnvWorker
    sampler: ConversationSampler
    max_turns: int | None
    steps: list[Step] = field(default_factory=list)
    task: dict[str, Any] | None = None
    task_id: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    success: bool = False
    stop_reason: StopReason = StopReason.NONE
    error: Exception | None = None
    seconds: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        self.seconds = self.sampler.seconds
        self.seconds |= {"env": 0.0, "agent": 0.0}

    @property
    def prompt_tokens(self) -> int:
        return self.sampler.prompt_tokens

    @property
    def usage(self) -> dict[str, int]:
        return self.sampler.usage

    @property
    def sampled_tokens(self) -> int:
        return self.sampler.sampled_tokens

    @property
    def started(self) -> bool:
        return bool(self.steps)

    @property
    def conversations(self) -> tuple[str, ...]:
        return (self.sampler.name,)

    async def run(self) -> None:
        """Run to the end, then close the environment or keep it for reuse.

        Raises:
            EnvironmentFault: The environment failed.
            AgentError: The agent raised an exception.
            SamplerError: The sampler failed.
        """
        task = self.spec.task
        clock = time.perf_counter
        began = clock()
        observation, self.info, self.task = await self.worker.reset(
            self.spec.seed or 0, None if task is None else {"task": task}
        )
        self.seconds["env"] += clock() - began
        self.task_id = str(self.info.get("task_id", ""))
        tools = str(self.info.get("tools", "[]")) if self.agent.uses_tools else None
        self._call_agent("reset", self.agent.reset)
        self._call_agent("receive_task", self.agent.receive_task, self.task)
        reward, done = 0.0, False
        while True:
            self._call_agent("update_from_env", self.agent.update_from_env, observation, reward, done, self.info)
            if done:
                break
            request = self.sampler.request(lambda: self.agent.chat_completions, tools, len(self.steps))
            if isinstance(request, StopReason):
                self.stop_reason = request
                break
            completion = await self.sampler.reply(request)
            if completion.finish_reason == "context_length":
                # The endpoint reports what the engine could not count itself; handle it in the same way.
                self.stop_reason = StopReason.CONTEXT_LENGTH if self.steps else StopReason.PROMPT_TOO_LONG
                break
            action = self._action(completion.text)
            step = Step(observation, list(self.sampler.messages), completion.text, self._thought(), action)
            step.tokens = self.sampler.append(completion)
            began = clock()
            try:
                observation, reward, terminated, truncated, self.info = await self.worker.step(action)
            except ActionTypeError as error:
                raise AgentError(f"{type(self.agent).__name__}: {error}") from error
            self.seconds["env"] += clock() - began
            step.reward, step.info = reward, self.info
            # Only complete turns count: a reply that the environment did not process has no reward.
            self.steps.append(step)
            done = self._ended(terminated, truncated)
            step.done = done
        began = clock()
        await self.worker.end_episode()
        self.seconds["env"] += clock() - began

    def to_episode(
        self, stop_reason: StopReason, message: str | None, *, env_id: str, attempts: int, seconds: float
    ) -> Episode:
        """Return the record of the attempt. A dropped episode keeps its steps, for debugging."""
        episode = empty_episode(self.spec, stop_reason, message, env_id=env_id, attempts=attempts, seconds=seconds)
        if self.steps:
            self.steps[-1].done = True
        reward = float(sum(step.reward for step in self.steps))
        episode.task_id = self.task_id or episode.task_id
        final: tuple[int, ...] = ()
        if stop_reason.truncated:
            final = self.sampler.final_ids(lambda: self.agent.chat_completions, len(self.steps))
        episode.trajectories = [Trajectory(task=self.task, steps=self.steps, reward=reward, final_ids=final)]
        episode.info = self.info
        episode.seconds |= self.seconds
        if message is None:
            episode.reward, episode.success = reward, self.success
        return episode

    # Private methods

    def _action(self, text: str) -> Any:
        action = self._call_agent("update_from_model", self.agent.update_from_model, text)
        return action.action if isinstance(action, Action) else action

    def _thought(self) -> str:
        state = self._call_agent("get_current_state", self.agent.get_current_state)
        return state.thought if state is not None and isinstance(state.thought, str) else ""

    def _call_agent(self, what: str, method: Callable[..., Any], *args: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(*args)
        except Exception as error:
            raise AgentError(f"{type(self.agent).__name__}.{what} raised {type(error).__name__}: {error}") from error
        finally:
            self.seconds["agent"] += time.perf_counter() - began

    def _ended(self, terminated: bool, truncated: bool) -> bool:
        if not (terminated or truncated):
            if self.max_turns is None or len(self.steps) < self.max_turns:
                return False
            self.stop_reason = StopReason.MAX_TURNS
            return True
        self.success = terminated and succeeded(self.info, sum(step.reward for step in self.steps))
        self.stop_reason = environment_stop_reason(self.info.get("stop_reason"), terminated, self.success)
        return True


ENVIRONMENT_REASONS = {
    StopReason.SUCCESS.value,
    StopReason.FAILURE.value,
    StopReason.INVALID_ACTION.value,
    StopReason.SERVER_LOST.value,
    StopReason.USER_LOST.value,
    StopReason.MAX_TURNS.value,
}


def succeeded(info: Mapping[str, Any], reward: float) -> bool:
    """Return whether a terminated episode with this last info and total reward solved its task."""
    # If an environment has no "success" in its info, derive it from the reward.
    reported = info.get("success")
    return bool(reported) if reported is not None else reward > 0


def environment_stop_reason(reported: Any, terminated: bool, success: bool) -> StopReason:
    """Return why an environment ended an episode.

    Args:
        reported: ``info["stop_reason"]``, if there is one.
        terminated: Whether it was terminated, and not truncated.
        success: Whether the task was solved.
    """
    if isinstance(reported, str) and reported in ENVIRONMENT_REASONS:
        return StopReason(reported)
    if terminated:
        return StopReason.SUCCESS if success else StopReason.FAILURE
    return StopReason.MAX_TURNS


def greedy(params: SamplingParams) -> SamplingParams:
    """Return the parameters with temperature 0 and the same limits."""
    return replace(params, temperature=0.0, top_p=1.0, top_k=0)
