"""The engine that makes episodes of environments, agents and samplers, and what is done with them but training."""

from rllm_gym.engine.execution import AgentExecutionEngine
from rllm_gym.engine.slot import EnvironmentUnavailable
from rllm_gym.engine.spec import Budget, Deadlines, EpisodeSpec, group
from rllm_gym.engine.stats import EngineStats

__all__ = [
    "AgentExecutionEngine",
    "Budget",
    "Deadlines",
    "EngineStats",
    "EnvironmentUnavailable",
    "EpisodeSpec",
    "group",
]
