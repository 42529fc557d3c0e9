"""Batched stepping: many environments behind one Gymnasium vector environment, together or each at its own pace."""

from rllm_gym.vector.errors import VectorTimeout
from rllm_gym.vector.ledger import VectorStats
from rllm_gym.vector.orders import Deadlines
from rllm_gym.vector.text_vector_env import Received, TextVectorEnv

__all__ = ["Deadlines", "Received", "TextVectorEnv", "VectorStats", "VectorTimeout"]
