"""Task sets from files, the Hugging Face hub, rows in memory and generators.

A conversion function turns each row into a task. What the fields of a task mean is defined by the environments.
"""

from rllm_gym.data.conversion import row_to_task
from rllm_gym.data.load import load_tasks
from rllm_gym.data.presets import PRESETS, Preset
from rllm_gym.data.procedural import ProceduralTaskset
from rllm_gym.data.taskset import Taskset

__all__ = [
    "PRESETS",
    "Preset",
    "ProceduralTaskset",
    "Taskset",
    "load_tasks",
    "row_to_task",
]
