"""The engine that makes episodes of environments, agents and samplers, and what is done with them but training."""

from rllm_gym.engine.crew import EnvironmentUnavailable
from rllm_gym.engine.episodes_file import EpisodeFileError, load_episodes, save_episodes
from rllm_gym.engine.execution import AgentExecutionEngine
from rllm_gym.engine.manifest import write_manifest
from rllm_gym.engine.metrics import Estimate, compute_pass_at_k, pass_at_k
from rllm_gym.engine.spec import Budget, Deadlines, EpisodeSpec, group
from rllm_gym.engine.stats import EngineStats

__all__ = [
    "AgentExecutionEngine",
    "Budget",
    "Deadlines",
    "EngineStats",
    "EnvironmentUnavailable",
    "EpisodeFileError",
    "EpisodeSpec",
    "Estimate",
    "compute_pass_at_k",
    "group",
    "load_episodes",
    "pass_at_k",
    "save_episodes",
    "write_manifest",
]
