"""rLLM's data types, as its agents use them, derived from the types of ``rllm_gym.core``."""

from __future__ import annotations

import uuid
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from rllm_gym import core
from rllm_gym.agents import Action


@dataclass
class Step(core.Step):
    """A step with rLLM's additional fields. The engine's own record, with the tokens, is in the episode."""

    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    input: Any = None
    output: Any = None
    prompt_ids: list[int] = field(default_factory=list)
    response_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    model_output: Any = None
    advantage: list[float] | float | None = None
    weight_version: int | None = None

    def __post_init__(self) -> None:
        # Copy, because agents keep modifying the messages that they pass in.
        self.chat_completions = deepcopy(self.chat_completions)
        if self.info is None:
            self.info = {}

    @property
    def metadata(self) -> dict[str, Any]:
        return self.info

    @metadata.setter
    def metadata(self, value: dict[str, Any] | None) -> None:
        self.info = value or {}

    def to_dict(self) -> dict[str, Any]:
        return {
            "prompt_ids": self.prompt_ids,
            "response_ids": self.response_ids,
            "logprobs": self.logprobs,
            "chat_completions": self.chat_completions,
            "observation": self.observation,
            "thought": self.thought,
            "action": self.action.action if isinstance(self.action, Action) else self.action,
            "model_response": self.model_response,
            "info": self.info,
            "reward": self.reward,
            "done": self.done,
            "mc_return": self.mc_return,
            "advantage": self.advantage,
            "weight_version": self.weight_version,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Step:
        names = cls.__dataclass_fields__
        return cls(**{name: value for name, value in data.items() if name in names})


@dataclass
class Trajectory(core.Trajectory):
    """A trajectory with rLLM's additional fields.

    ``reward`` is ``None`` if the environment failed, because a fault is not a reward. ``info`` then gives the reason.
    """

    name: str = "default_traj_name"
    reward: float | None = None  # type: ignore[assignment]
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    input: dict[str, Any] | None = None
    output: Any = None
    signals: dict[str, float] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def metadata(self) -> dict[str, Any]:
        return self.info

    @property
    def result(self) -> Any:
        return self.output

    def is_cumulative(self) -> bool:
        """Return whether the messages of each step begin with those of the step before."""
        pairs = zip(self.steps, self.steps[1:], strict=False)
        return all(
            later.chat_completions[: len(earlier.chat_completions)] == earlier.chat_completions
            for earlier, later in pairs
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "uid": self.uid,
            "name": self.name,
            "task": self.task,
            "steps": [step.to_dict() if isinstance(step, Step) else step_to_dict(step) for step in self.steps],
            "reward": None if self.reward is None else float(self.reward),
            "info": self.info,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Trajectory:
        return cls(
            uid=data.get("uid") or str(uuid.uuid4()),
            name=data["name"],
            task=data["task"],
            steps=[Step.from_dict(step) for step in data.get("steps", [])],
            reward=data["reward"],
            info=data.get("info") or {},
        )


@dataclass
class Episode:
    """rLLM's episode. Its ``id`` has the form ``task_id:rollout_idx``."""

    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    task: Any = None
    termination_reason: Any = None
    is_correct: bool = False
    trajectories: list[Trajectory] = field(default_factory=list)
    artifacts: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def metadata(self) -> dict[str, Any]:
        return self.info

    @property
    def task_id(self) -> str:
        return self.id.split(":")[0]

    @property
    def rollout_idx(self) -> str:
        return self.id.split(":")[1]

    def to_dict(self) -> dict[str, Any]:
        reason = self.termination_reason
        return {
            "id": self.id,
            "task": self.task,
            "termination_reason": None if reason is None else str(getattr(reason, "value", reason)),
            "is_correct": bool(self.is_correct),
            "trajectories": [trajectory.to_dict() for trajectory in self.trajectories],
            "metrics": self.metrics,
            "info": self.info,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Episode:
        return cls(
            id=data["id"],
            task=data["task"],
            termination_reason=data.get("termination_reason"),
            is_correct=data["is_correct"],
            trajectories=[Trajectory.from_dict(trajectory) for trajectory in data["trajectories"]],
            metrics=data.get("metrics") or {},
            info=data.get("info") or {},
        )


def step_to_dict(step: core.Step) -> dict[str, Any]:
    """Return a step of ``rllm_gym.core`` in rLLM's format, with its tokens."""
    names = ("observation", "chat_completions", "model_response", "thought", "action", "reward", "done", "info")
    old = Step(**{name: getattr(step, name) for name in names}, mc_return=step.mc_return)
    if step.tokens is not None:
        old.response_ids, old.logprobs = list(step.tokens.ids), list(step.tokens.logprobs)
        old.weight_version = step.tokens.weight_version
    return old.to_dict()
