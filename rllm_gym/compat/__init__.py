"""rLLM's documented API on top of this package: change the import and keep the code.

``docs/from-rllm.md`` lists what is not supported and what to write instead.
"""

from typing import TYPE_CHECKING, Any

from rllm_gym.agents import Action, BaseAgent
from rllm_gym.compat.agents import LegacyAgentAdapter, MathAgent
from rllm_gym.compat.engine import AgentExecutionEngine
from rllm_gym.compat.environments import (
    BaseEnv,
    LegacyEnvAdapter,
    MultiTurnEnvironment,
    SingleTurnEnvironment,
)
from rllm_gym.compat.legacy_workflow import LegacyWorkflowAdapter
from rllm_gym.compat.pass_at_k import compute_pass_at_k
from rllm_gym.compat.rewards import RewardFunction, RewardOutput, math_reward_fn, zero_reward
from rllm_gym.compat.rollout import ModelOutput, OpenAIEngine, RolloutEngine
from rllm_gym.compat.tool import Tool, ToolOutput
from rllm_gym.compat.tool_calls import ToolCall
from rllm_gym.compat.tools import MultiTool, ToolAgent, ToolEnvironment
from rllm_gym.compat.types import Episode, Step, Trajectory
from rllm_gym.compat.workflow_engine import AgentWorkflowEngine
from rllm_gym.compat.workflows import (
    MultiTurnWorkflow,
    SimpleWorkflow,
    SingleTurnWorkflow,
    TerminationEvent,
    TerminationReason,
    Workflow,
)
from rllm_gym.data import Dataset, DatasetRegistry
from rllm_gym.trainer_package import check_trainer_package

if TYPE_CHECKING:
    AgentTrainer: Any

__all__ = [
    "Action",
    "AgentExecutionEngine",
    "AgentTrainer",
    "AgentWorkflowEngine",
    "BaseAgent",
    "BaseEnv",
    "Dataset",
    "DatasetRegistry",
    "Episode",
    "LegacyAgentAdapter",
    "LegacyEnvAdapter",
    "LegacyWorkflowAdapter",
    "MathAgent",
    "ModelOutput",
    "MultiTool",
    "MultiTurnEnvironment",
    "MultiTurnWorkflow",
    "OpenAIEngine",
    "RewardFunction",
    "RewardOutput",
    "RolloutEngine",
    "SimpleWorkflow",
    "SingleTurnEnvironment",
    "SingleTurnWorkflow",
    "Step",
    "TerminationEvent",
    "TerminationReason",
    "Tool",
    "ToolAgent",
    "ToolCall",
    "ToolEnvironment",
    "ToolOutput",
    "Trajectory",
    "Workflow",
    "compute_pass_at_k",
    "math_reward_fn",
    "zero_reward",
]


def __getattr__(name: str) -> Any:
    if name == "AgentTrainer":
        # The only import of the trainers in this package: on access, since it needs torch and they import this package.
        check_trainer_package()
        from trainers import AgentTrainer

        return AgentTrainer
    raise AttributeError(f"rllm_gym.compat has no {name!r}; see docs/from-rllm.md for its replacement")
