"""Engines that run episodes with environments, agents and samplers, and tools to save and evaluate the episodes."""

from rllm_gym.engine.crew import EnvironmentUnavailable
from rllm_gym.engine.episodes_file import EpisodeFileError, load_episodes, save_episodes
from rllm_gym.engine.execution import AgentExecutionEngine
from rllm_gym.engine.manifest import write_manifest
from rllm_gym.engine.metrics import Estimate, compute_pass_at_k, pass_at_k
from rllm_gym.engine.play import Play
from rllm_gym.engine.speaker import Reply, Speaker, Truncated
from rllm_gym.engine.spec import Budget, Deadlines, EpisodeSpec, group
from rllm_gym.engine.stats import EngineStats
from rllm_gym.engine.workflow import Role, Workflow
from rllm_gym.engine.workflow_engine import AgentWorkflowEngine

__all__ = [
    "AgentExecutionEngine",
    "AgentWorkflowEngine",
    "Budget",
    "Deadlines",
    "EngineStats",
    "EnvironmentUnavailable",
    "EpisodeFileError",
    "EpisodeSpec",
    "Estimate",
    "Play",
    "Reply",
    "Role",
    "Speaker",
    "Truncated",
    "Workflow",
    "compute_pass_at_k",
    "group",
    "load_episodes",
    "pass_at_k",
    "save_episodes",
    "write_manifest",
]
