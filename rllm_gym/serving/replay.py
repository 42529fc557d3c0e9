"""``LoggedEpisodes``: episodes of a log in place of new ones, for off-policy training with their recorded log-probs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from rllm_gym.core import Episode, Step, StopReason, Task, TurnTokens
from rllm_gym.engine import Workflow, WorkflowContext
from rllm_gym.engine.call_recorder import PassedMessages
from rllm_gym.engine.conversation_sampler import ConversationSampler
from rllm_gym.engine.episodes_file import episode_from_json
from rllm_gym.engine.workflow import WorkflowTask
from rllm_gym.samplers.protocol import Completion, SamplingRequest


class LoggedEpisodes(Workflow):
    """Replays conversations of ``rllm-gym import-logs --as replay``: nothing is sampled and no environment is used.

    A task is a prompt, and the episodes of a group are some of its logged conversations: in each step others, drawn at
    random, and each once unless the group is larger than their number. Their tokens, log-probs and rewards are those of
    the log, so that the loss limits the ratio of the policy to the model that was served.

    A conversation that the model's tokenizer or chat template would begin with other tokens, or that was sampled at
    another temperature than ``sampling.temperature`` or from a part of the distribution (``top_p``, ``top_k``), is an
    error of the agent, which is not trained on.
    """

    async def run(self, task: WorkflowTask, context: WorkflowContext) -> Episode:
        rows = task.to_json()["data"].get("logged") if isinstance(task, Task) else None
        if not isinstance(rows, list) or not rows:
            raise ValueError("there are no logged episodes: use rows of `rllm-gym import-logs --as replay`")
        number = context.episode_id.rpartition("#")[2]
        episode = episode_from_json(rows[drawn(len(rows), context.group_id, int(number) if number.isdecimal() else 0)])
        (trajectory,) = episode.trajectories
        session = context.agent("agent_0", agent=PassedMessages(), tools=_tools(trajectory.steps[0]))
        _check(trajectory.steps, session.sampler)
        session.sampler = _Recording(session.sampler, trajectory.steps)
        for step in trajectory.steps:
            await session.generate(step.chat_completions)
            session.steps[-1].observation = step.observation  # not the whole conversation once more
        session.add_reward(episode.reward)
        return context.finish(success=episode.success, stop_reason=episode.stop_reason)


def drawn(most: int, group_id: str, number: int) -> int:
    """Return which of the logged conversations the episode of a group is. The name of a group has its step."""
    order = list(range(most))
    Random(group_id).shuffle(order)
    return order[number % most]


def logged_reward(completions: Sequence[Any], **columns: Any) -> list[float]:
    """The reward function of a data set of logged episodes, which have their rewards.

    Raises:
        RuntimeError: Always: it is called if something else than :class:`LoggedEpisodes` replies to the prompts.
    """
    raise RuntimeError(
        "rows of a log have their rewards: use env.agent=rllm_gym.serving:LoggedEpisodes, without validation"
    )


class _Recording(ConversationSampler):
    """Has the interface of the sampler of a conversation, and returns recorded replies."""

    def __init__(self, sampler: ConversationSampler, steps: Sequence[Step]) -> None:
        super().__init__(
            sampler.conversation, sampler.sample, sampler.params, sampler.name, sampler.seed, sampler.returns_tokens
        )
        self._steps = steps
        self._turn = 0

    def request(
        self, messages: Callable[[], Sequence[Mapping[str, Any]]], tools: str | None, turn: int
    ) -> SamplingRequest | StopReason:
        self._turn, self.messages = turn, tuple(map(dict, messages()))
        tokens = _tokens(self._steps[turn])
        self.prompt_tokens += len(tokens.context_ids)
        return SamplingRequest(tokens.context_ids, self.params)

    def final_ids(self, messages: Callable[[], Sequence[Mapping[str, Any]]], turn: int) -> tuple[int, ...]:
        return ()

    async def reply(self, request: SamplingRequest) -> Completion:
        step = self._steps[self._turn]
        tokens = _tokens(step)
        self.sampled_tokens += len(tokens.ids)
        return Completion(tokens.ids, tokens.logprobs, step.model_response, tokens.finish_reason)

    def append(self, completion: Completion) -> TurnTokens:
        # Its version is that of a server; here, weights from before the first update.
        return replace(_tokens(self._steps[self._turn]), weight_version=0)


def _check(steps: Sequence[Step], sampler: ConversationSampler) -> None:
    first = steps[0]
    asked = sampler.request(lambda: first.chat_completions, _tools(first), 0)
    if not isinstance(asked, SamplingRequest) or asked.ids != _tokens(first).context_ids:
        raise ValueError(
            "the tokens of the logged prompt are not those that this model has for its messages: train the model that "
            "was served, or use `rllm-gym sft` and `rllm-gym dpo`, which tokenize again"
        )
    temperatures = {step.info.get("temperature") for step in steps}
    if temperatures != {sampler.params.temperature}:
        raise ValueError(
            f"the logged replies were sampled at temperature {', '.join(map(str, temperatures))}, so their log-probs "
            f"are not those of sampling.temperature={sampler.params.temperature:g}"
        )
    for name, value in (("top_p", 1), ("top_k", 0)):
        others = {step.info.get(name, value) for step in steps} - {value}
        if others:
            raise ValueError(
                f"the logged replies were sampled with {name}={', '.join(map(str, others))}, so their log-probs "
                f"are not those of the whole distribution; only conversations with {name}={value} can be replayed"
            )


def _tokens(step: Step) -> TurnTokens:
    if step.tokens is None:
        raise ValueError("the logged episode has no tokens")
    return step.tokens


def _tools(step: Step) -> str | None:
    return step.info.get("offered_tools") or None
