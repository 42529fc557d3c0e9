"""The record of an episode: steps with their tokens, trajectories, and the token sequences to train on.

An :class:`Episode` is the only object that ``rllm_gym`` passes to a trainer. The texts are for people and agents;
training reads only :class:`TokenSequence`, which holds exactly the token ids that were sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rllm_gym.core.stop_reason import StopReason

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One training sample: a conversation as the model saw it. All fields have one entry per token (length T).

    Attributes:
        ids: Token ids of the prompt and all turns.
        mask: 1 where the token was sampled in *this* sequence and may be trained on, else 0.
        logprobs: Natural-log probability that the sampler assigned to the token; 0.0 where the mask is 0.
        versions: Version of the weights that sampled the token; -1 where the mask is 0.
        rewards: Reward of a turn, on the last sampled token of that turn; 0.0 elsewhere.
        turns: Index of the trajectory's step that sampled the token; -1 where the mask is 0.
    """

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    rewards: tuple[float, ...]
    turns: tuple[int, ...]

    def __post_init__(self) -> None:
        lengths = {
            len(self.ids),
            len(self.mask),
            len(self.logprobs),
            len(self.versions),
            len(self.rewards),
            len(self.turns),
        }
        if len(lengths) != 1:
            raise ValueError(
                f"the fields of a TokenSequence have one entry per token; their lengths are {sorted(lengths)}"
            )

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """The tokens of one turn: the tokens appended to the context, then the sampled tokens.

    Attributes:
        context_ids: Ids appended before sampling. For the first turn of a branch this is the whole prompt.
        ids: The sampled ids, including the end-of-turn token if it was sampled.
        logprobs: Natural-log probabilities, one per sampled id.
        weight_version: Version of the weights that sampled them.
        branch: Branch of the trajectory that the turn belongs to: 0, increased by one each time the agent rewrites
            its history.
        finish_reason: ``"stop"``, ``"length"``, or another value returned by the sampler.
        advantages: Advantages that the sampled ids were trained with, one each; empty if they are not recorded.
    """

    context_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_version: int = 0
    branch: int = 0
    finish_reason: str = "stop"
    advantages: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.logprobs):
            raise ValueError(
                f"{len(self.ids)} sampled ids but {len(self.logprobs)} log-probs; they must match one to one"
            )


@dataclass(slots=True)
class Step:
    """One turn. The field names are those of rLLM's agents.

    Attributes:
        observation: The observation before the reply.
        chat_completions: The messages given to the model, in OpenAI format, *without* the reply.
        model_response: The reply of the model as text.
        thought: The part of the reply that the agent reports as its reasoning.
        action: The action that the agent passed to the environment.
        reward: The final reward of this step.
        done: Whether the episode ended at this step (terminated or truncated).
        info: The info that the environment returned for this step.
        tokens: The tokens of the turn; ``None`` if the sampler returns none (such episodes cannot be trained on).
        mc_return: Monte Carlo return from this step on, if it has been computed.
    """

    observation: Any = None
    chat_completions: list[dict[str, Any]] = field(default_factory=list)
    model_response: str = ""
    thought: str = ""
    action: Any = None
    reward: float = 0.0
    done: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    tokens: TurnTokens | None = None
    mc_return: float = 0.0


@dataclass(slots=True)
class Trajectory:
    """The steps of one agent in one episode.

    Attributes:
        name: The name of the agent, such as ``"solver_0"``; unique within the episode.
        task: The task as the agent received it.
        steps: The steps, in order.
        reward: Sum of the rewards of the steps.
        role: The role of the agent, such as ``"solver"``. Rewards are compared within a role.
        trainable: Whether its tokens may be trained on; ``False`` for a frozen opponent.
        final_ids: Token ids of the prompt of the next reply, in a truncated episode: the state after the last step.
            Empty if there is no such prompt, for example because it does not fit the context of the model.
    """

    name: str = "agent_0"
    task: Any = None
    steps: list[Step] = field(default_factory=list)
    reward: float = 0.0
    role: str = "agent"
    trainable: bool = True
    final_ids: tuple[int, ...] = ()

    def branches(self) -> list[TokenSequence]:
        """Return one training sample per branch of the conversation. Every sampled token is in exactly one of them.

        Raises:
            ValueError: A step has no tokens, because its sampler returned none.
        """
        groups: dict[int, list[int]] = {}
        for index, step in enumerate(self.steps):
            if step.tokens is None:
                raise ValueError(
                    f"step {index} of trajectory {self.name!r} has no token ids; its sampler returns none, so the "
                    "episode can be evaluated but not trained on (use the torch or vLLM sampler)"
                )
            groups.setdefault(step.tokens.branch, []).append(index)
        return [self._sequence(indices) for _, indices in sorted(groups.items())]

    def _sequence(self, indices: Sequence[int]) -> TokenSequence:
        ids: list[int] = []
        mask: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        rewards: list[float] = []
        turns: list[int] = []
        for index in indices:
            step = self.steps[index]
            tokens = step.tokens
            assert tokens is not None
            context, sampled = len(tokens.context_ids), len(tokens.ids)
            ids += tokens.context_ids
            ids += tokens.ids
            mask += [0] * context + [1] * sampled
            logprobs += [0.0] * context
            logprobs += tokens.logprobs
            versions += [-1] * context + [tokens.weight_version] * sampled
            turns += [-1] * context + [index] * sampled
            rewards += [0.0] * (context + sampled)
            if sampled:
                rewards[-1] = float(step.reward)
        return TokenSequence(tuple(ids), tuple(mask), tuple(logprobs), tuple(versions), tuple(rewards), tuple(turns))


@dataclass(slots=True)
class Episode:
    """The record of one attempt at one task, for trainers and reports.

    Attributes:
        episode_id: Unique within a run.
        task_id: Id of the task. The episodes of a group share it.
        env_id: Id or name of the environment.
        seed: Seed of the dynamics.
        group_id: Name of the group whose rewards are compared: ``task_id`` plus the round in which it was drawn.
        greedy: Whether it was sampled at temperature 0 (the ReMax baseline, or evaluation); never trained on.
        trajectories: One per agent.
        reward: Sum of the rewards of the acting agent's steps.
        success: Whether the task was solved.
        stop_reason: Why the episode ended.
        fault: The error message if ``stop_reason`` is a fault or an agent error, else ``None``.
        attempts: Number of attempts, each on a fresh environment; 1 if there was no fault.
        seconds: Wall time in seconds by phase: ``env``, ``sample``, ``render``, ``total``.
        info: Info of the last step.
        schema_version: Version of the file format.
        metrics: Further metrics of the whole episode, such as ``{"judge_agreed": 1.0}``.
        usage: Of the last attempt ``input_tokens``, those of all prompts, each counted as a whole, ``sampled_tokens``
            (both 0 if an endpoint reports neither ids nor numbers), and ``truncated_replies``, cut by a token limit.
    """

    episode_id: str
    task_id: str
    env_id: str = ""
    seed: int = 0
    group_id: str = ""
    greedy: bool = False
    trajectories: list[Trajectory] = field(default_factory=list)
    reward: float = 0.0
    success: bool = False
    stop_reason: StopReason = StopReason.NONE
    fault: str | None = None
    attempts: int = 1
    seconds: dict[str, float] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION
    metrics: dict[str, float] = field(default_factory=dict)
    usage: dict[str, int] = field(default_factory=dict)

    @property
    def trainable(self) -> bool:
        """Whether the episode may be trained on: ``False`` after faults, agent errors and cancellation, and for
        prompts that were too long or episodes that have not ended."""
        return self.stop_reason not in (
            StopReason.NONE,
            StopReason.FAULT,
            StopReason.AGENT_ERROR,
            StopReason.CANCELLED,
            StopReason.PROMPT_TOO_LONG,
        )

    @property
    def num_turns(self) -> int:
        return sum(len(trajectory.steps) for trajectory in self.trajectories)
