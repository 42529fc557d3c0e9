"""``rllm/ToolMath-v0``: mathematics with a Python tool that runs in the sandbox."""

from rllm_gym.envs.tool_math.env import ToolMathEnv

__all__ = ["ToolMathEnv"]
