"""The core types: task, environment and episode. Imports no torch and no concrete environment, and does no I/O."""

from rllm_gym.core.async_env import AsyncTextEnv
from rllm_gym.core.env import InvalidAction, Outcome, TextEnv
from rllm_gym.core.episode import SCHEMA_VERSION, Episode, Step, TokenSequence, Trajectory, TurnTokens
from rllm_gym.core.errors import EnvironmentFault, RllmGymError, TaskError
from rllm_gym.core.message_history import MessageHistory
from rllm_gym.core.saved_state import SavedState
from rllm_gym.core.stop_reason import StopReason
from rllm_gym.core.task import SPLITS, Task, TaskSource, select_task, split_of, stream_seed
from rllm_gym.core.text_space import Text

__all__ = [
    "SCHEMA_VERSION",
    "SPLITS",
    "AsyncTextEnv",
    "EnvironmentFault",
    "Episode",
    "InvalidAction",
    "MessageHistory",
    "Outcome",
    "RllmGymError",
    "SavedState",
    "Step",
    "StopReason",
    "Task",
    "TaskError",
    "TaskSource",
    "Text",
    "TextEnv",
    "TokenSequence",
    "Trajectory",
    "TurnTokens",
    "select_task",
    "split_of",
    "stream_seed",
]
