"""Mail that asks for something elsewhere: tasks on two sites of one world."""

from rllm_gym.sites.desk.errands import TEMPLATES

__all__ = ["TEMPLATES"]
