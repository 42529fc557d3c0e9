"""Web page environments: tasks on the built-in sites and on user-provided pages, and the tasks of MiniWoB++."""

from rllm_gym.envs.web.env import WebEnv
from rllm_gym.envs.web.miniwob import MiniWoBEnv
from rllm_gym.envs.web.page_state import PageState

__all__ = ["MiniWoBEnv", "PageState", "WebEnv"]
