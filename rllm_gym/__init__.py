"""rllm-gym: tasks for training language agents, as Gymnasium text environments.

``import rllm_gym`` registers every ``rllm/…`` id with Gymnasium and with PettingZoo. It does not import torch.
"""

from rllm_gym import envs as envs
from rllm_gym import multiagent as multiagent
from rllm_gym.core import (
    EnvironmentFault,
    Episode,
    MessageHistory,
    Step,
    StopReason,
    Task,
    Text,
    TextEnv,
    TokenSequence,
    Trajectory,
)
from rllm_gym.version import __version__

__all__ = [
    "EnvironmentFault",
    "Episode",
    "MessageHistory",
    "Step",
    "StopReason",
    "Task",
    "Text",
    "TextEnv",
    "TokenSequence",
    "Trajectory",
    "__version__",
]
