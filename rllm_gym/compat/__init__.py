"""rLLM's documented API on top of this package: change the import and keep the code.

``docs/from-rllm.md`` lists what is not supported and what to write instead.
"""

from typing import TYPE_CHECKING, Any

from rllm_gym.agents import Action, BaseAgent
from rllm_gym.compat.agents import LegacyAgentAdapter, MathAgent
from rllm_gym.compat.code_agent import (
    CompetitionCodingAgent,
    CompetitionCodingEnv,
    fetch_live_code_bench_system_prompt,
)
from rllm_gym.compat.code_reward import RewardCodeFn, code_reward_fn
from rllm_gym.compat.dataset import Dataset
from rllm_gym.compat.dataset_registry import DatasetRegistry, RegistryError
from rllm_gym.compat.engine import AgentExecutionEngine
from rllm_gym.compat.environments import (
    BaseEnv,
    LegacyEnvAdapter,
    MultiTurnEnvironment,
    SingleTurnEnvironment,
)
from rllm_gym.compat.frozen_lake import (
    FrozenLakeAgent,
    FrozenLakeEnv,
    generate_random_map,
    get_goal_position,
    is_valid,
)
from rllm_gym.compat.legacy_workflow import LegacyWorkflowAdapter
from rllm_gym.compat.mcp_tools import MCPConnectionManager, MCPEnvironment, MCPTool
from rllm_gym.compat.native import BrowserGymEnv, MiniWobAgent, SWEAgent, SWEEnv
from rllm_gym.compat.python_tool import CodeToolOutput, PythonTool
from rllm_gym.compat.results import compute_pass_at_k, save_trajectories
from rllm_gym.compat.rewards import (
    RewardConfig,
    RewardFunction,
    RewardInput,
    RewardMathFn,
    RewardOutput,
    RewardSearchFn,
    RewardType,
    countdown_reward_fn,
    f1_reward_fn,
    math_reward_fn,
    search_reward_fn,
    zero_reward,
)
from rllm_gym.compat.rollout import ModelOutput, OpenAIEngine, RolloutEngine
from rllm_gym.compat.tool import Tool, ToolOutput
from rllm_gym.compat.tool_calls import QwenToolParser, R1ToolParser, ToolCall, ToolParser, get_tool_parser
from rllm_gym.compat.tools import (
    SEARCH_SYSTEM_PROMPT,
    TOOL_SYSTEM_PROMPT,
    MCPToolAgent,
    MultiTool,
    ToolAgent,
    ToolEnvironment,
    ToolRegistry,
    tool_registry,
)
from rllm_gym.compat.types import Episode, Step, Trajectory
from rllm_gym.compat.workflow_engine import AgentWorkflowEngine
from rllm_gym.compat.workflows import (
    CumulativeWorkflow,
    MultiTurnWorkflow,
    SimpleWorkflow,
    SingleTurnWorkflow,
    TerminationEvent,
    TerminationReason,
    Workflow,
)
from rllm_gym.trainer_package import check_trainer_package

if TYPE_CHECKING:
    AgentSFTTrainer: Any
    AgentTrainer: Any

AsyncAgentExecutionEngine = AgentExecutionEngine
PythonInterpreter = PythonTool

__all__ = [
    "SEARCH_SYSTEM_PROMPT",
    "TOOL_SYSTEM_PROMPT",
    "Action",
    "AgentExecutionEngine",
    "AgentSFTTrainer",
    "AgentTrainer",
    "AgentWorkflowEngine",
    "AsyncAgentExecutionEngine",
    "BaseAgent",
    "BaseEnv",
    "BrowserGymEnv",
    "CodeToolOutput",
    "CompetitionCodingAgent",
    "CompetitionCodingEnv",
    "CumulativeWorkflow",
    "Dataset",
    "DatasetRegistry",
    "Episode",
    "FrozenLakeAgent",
    "FrozenLakeEnv",
    "LegacyAgentAdapter",
    "LegacyEnvAdapter",
    "LegacyWorkflowAdapter",
    "MCPConnectionManager",
    "MCPEnvironment",
    "MCPTool",
    "MCPToolAgent",
    "MathAgent",
    "MiniWobAgent",
    "ModelOutput",
    "MultiTool",
    "MultiTurnEnvironment",
    "MultiTurnWorkflow",
    "OpenAIEngine",
    "PythonInterpreter",
    "PythonTool",
    "QwenToolParser",
    "R1ToolParser",
    "RegistryError",
    "RewardCodeFn",
    "RewardConfig",
    "RewardFunction",
    "RewardInput",
    "RewardMathFn",
    "RewardOutput",
    "RewardSearchFn",
    "RewardType",
    "RolloutEngine",
    "SWEAgent",
    "SWEEnv",
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
    "ToolParser",
    "ToolRegistry",
    "Trajectory",
    "Workflow",
    "code_reward_fn",
    "compute_pass_at_k",
    "countdown_reward_fn",
    "f1_reward_fn",
    "fetch_live_code_bench_system_prompt",
    "generate_random_map",
    "get_goal_position",
    "get_tool_parser",
    "is_valid",
    "math_reward_fn",
    "save_trajectories",
    "search_reward_fn",
    "tool_registry",
    "zero_reward",
]


def __getattr__(name: str) -> Any:
    if name in ("AgentSFTTrainer", "AgentTrainer"):
        # On access, since it needs torch, and the trainers import modules of this package.
        check_trainer_package()
        from rllm_gym.compat import trainer

        return getattr(trainer, name)
    raise AttributeError(f"rllm_gym.compat has no {name!r}; see docs/from-rllm.md for its replacement")
