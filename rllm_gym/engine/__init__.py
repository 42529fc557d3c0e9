"""Engines that run episodes with environments, agents and samplers, and tools to save and evaluate the episodes."""

from rllm_gym.engine.agent_session import AgentReply, AgentSession
from rllm_gym.engine.base import EnvironmentUnavailable
from rllm_gym.engine.episodes_file import EpisodeFileError, load_episodes, save_episodes
from rllm_gym.engine.execution_engine import AgentExecutionEngine
from rllm_gym.engine.manifest import write_manifest
from rllm_gym.engine.metrics import Estimate, compute_pass_at_k, pass_at_k
from rllm_gym.engine.options import EngineOptions
from rllm_gym.engine.roles import Role
from rllm_gym.engine.spec import Budget, Deadlines, EpisodeSpec, group
from rllm_gym.engine.stats import EngineStats
from rllm_gym.engine.token_budget import Truncated
from rllm_gym.engine.workflow import Workflow
from rllm_gym.engine.workflow_context import WorkflowContext
from rllm_gym.engine.workflow_engine import AgentWorkflowEngine

__all__ = [
    "AgentExecutionEngine",
    "AgentReply",
    "AgentSession",
    "AgentWorkflowEngine",
    "Budget",
    "Deadlines",
    "EngineOptions",
    "EngineStats",
    "EnvironmentUnavailable",
    "EpisodeFileError",
    "EpisodeSpec",
    "Estimate",
    "Role",
    "Truncated",
    "Workflow",
    "WorkflowContext",
    "compute_pass_at_k",
    "group",
    "load_episodes",
    "pass_at_k",
    "save_episodes",
    "write_manifest",
]
