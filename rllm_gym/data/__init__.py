"""Where tasks come from: files, the Hugging Face hub, rows in memory, generators; and a registry of named data sets.

No environment logic lives here: what a row *means* is decided by the function that turns it into a task.
"""

from rllm_gym.data.dataset import Dataset
from rllm_gym.data.load import load_tasks
from rllm_gym.data.procedural import ProceduralTaskset
from rllm_gym.data.registry import DatasetRegistry, RegistryError
from rllm_gym.data.taskset import Taskset, row_to_task

__all__ = [
    "Dataset",
    "DatasetRegistry",
    "ProceduralTaskset",
    "RegistryError",
    "Taskset",
    "load_tasks",
    "row_to_task",
]
