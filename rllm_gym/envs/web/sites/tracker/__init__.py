"""The issue tracker: projects, filters, labels, milestones, comments and a board."""

from rllm_gym.envs.web.sites.tracker.generate import build
from rllm_gym.envs.web.sites.tracker.pages import ORIGIN, TrackerApp
from rllm_gym.envs.web.sites.tracker.tasks import TEMPLATES

__all__ = ["ORIGIN", "TEMPLATES", "TrackerApp", "build"]
