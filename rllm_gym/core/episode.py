"""What an episode leaves behind: steps with their tokens, trajectories, and the token sequences to train on.

An :class:`Episode` is all that passes from ``rllm_gym`` to a trainer. Texts are for people and agents; training
reads :class:`TokenSequence` alone, whose ids are the very ids the sampler drew.
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
        ids: Token ids, prompt and all turns.
        mask: 1 where the token was sampled in *this* sequence and may be trained on, else 0.
        logprobs: Natural-log probability the sampler gave the token; 0.0 where the mask is 0.
        versions: Weight version that sampled the token; -1 where the mask is 0.
        rewards: Reward of a turn on that turn's last sampled token, else 0.0.
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
    """The tokens of one turn: what was appended to the context, then what was sampled.

    Attributes:
        context_ids: Ids appended before sampling. For the first turn of a branch this is its whole prompt.
        ids: The sampled ids, end-of-turn token included if it was sampled.
        logprobs: One per sampled id.
        weight_version: Version of the weights that sampled them.
        branch: Which branch of the trajectory the turn belongs to: 0, then one more each time the agent rewrote
            its history.
        finish_reason: ``"stop"``, ``"length"`` or what the sampler said.
    """

    context_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_version: int = 0
    branch: int = 0
    finish_reason: str = "stop"

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.logprobs):
            raise ValueError(
                f"{len(self.ids)} sampled ids but {len(self.logprobs)} log-probs; they must match one to one"
            )


@dataclass(slots=True)
class Step:
    """One turn. The names are those rLLM's agents already use.

    Attributes:
        observation: What the environment said before the reply.
        chat_completions: The messages the model was given, OpenAI form, *without* the reply.
        model_response: The model's reply as text.
        thought: The part of the reply the agent calls its thought.
        action: What the agent handed to the environment.
        reward: The reward of this step, final.
        done: The episode ended here (terminated or truncated).
        info: The environment's info of this step.
        tokens: The turn's tokens; ``None`` where the sampler gives none (such episodes cannot be trained on).
        mc_return: Return from here on, filled by whoever computes it.
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
        name: The agent's name, such as ``"solver_0"``; unique within the episode.
        task: The task as the agent received it.
        steps: In order.
        reward: Sum of the steps' rewards.
        role: What it is there for, such as ``"solver"``. Rewards are compared within a role.
        trainable: Whether its tokens may be trained on; a frozen opponent's may not.
    """

    name: str = "agent_0"
    task: Any = None
    steps: list[Step] = field(default_factory=list)
    reward: float = 0.0
    role: str = "agent"
    trainable: bool = True

    def branches(self) -> list[TokenSequence]:
        """One training sample per branch of the conversation; every sampled token is in exactly one.

        Raises:
            ValueError: A step has no tokens: its sampler returned none.
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
    """One attempt at one task: everything a trainer, a report or a person needs to know about it.

    Attributes:
        episode_id: Unique within a run.
        task_id: The episodes of a group share it.
        env_id: Id or name of the environment.
        seed: Seed of the dynamics.
        group_id: Names the group whose rewards are compared; ``task_id`` plus the round it was drawn in.
        greedy: Sampled at temperature 0 (ReMax's twin, or evaluation); never trained on.
        trajectories: One per agent.
        reward: Sum of the rewards of the acting agent's steps.
        success: Whether the task was solved.
        stop_reason: Why it ended.
        fault: What broke, where ``stop_reason`` is a fault or an agent error; else ``None``.
        attempts: Fresh environments it took, 1 without a fault.
        seconds: Wall time by phase: ``env``, ``sample``, ``render``, ``total``.
        info: Info of the last step.
        metrics: Further numbers of the whole episode, such as ``{"judge_agreed": 1.0}``.
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

    @property
    def trainable(self) -> bool:
        """False for episodes that tell nothing about the model: faults, agent errors, cancelled ones."""
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
