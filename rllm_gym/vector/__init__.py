"""Batched stepping: many environments behind one Gymnasium vector environment, synchronous or asynchronous."""

from rllm_gym.vector.curriculum import Curriculum, LevelCurriculum, SuccessCurriculum
from rllm_gym.vector.errors import VectorTimeout
from rllm_gym.vector.ledger import VectorStats
from rllm_gym.vector.multi_task import Member, MultiTaskVectorEnv
from rllm_gym.vector.orders import Deadlines
from rllm_gym.vector.text_vector_env import Received, TextVectorEnv

__all__ = [
    "Curriculum",
    "Deadlines",
    "LevelCurriculum",
    "Member",
    "MultiTaskVectorEnv",
    "Received",
    "SuccessCurriculum",
    "TextVectorEnv",
    "VectorStats",
    "VectorTimeout",
]
