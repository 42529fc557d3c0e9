"""Batched stepping: many environments behind one Gymnasium vector environment, synchronous or asynchronous."""

from rllm_gym.runtime.env_worker import EnvDeadlines
from rllm_gym.vector.bookkeeping import VectorStats
from rllm_gym.vector.curriculum import EnvCurriculum, LevelCurriculum, SuccessCurriculum
from rllm_gym.vector.errors import VectorTimeout
from rllm_gym.vector.multi_task import MultiTaskVectorEnv, WeightedEnv
from rllm_gym.vector.text_vector_env import RecvResult, TextVectorEnv

__all__ = [
    "EnvCurriculum",
    "EnvDeadlines",
    "LevelCurriculum",
    "MultiTaskVectorEnv",
    "RecvResult",
    "SuccessCurriculum",
    "TextVectorEnv",
    "VectorStats",
    "VectorTimeout",
    "WeightedEnv",
]
